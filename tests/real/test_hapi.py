"""Sending to HAPI's JPA server: transactions and refused ones (document 3 §7, "direct_resource_load")."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deployments.sandbox import data as demo
from tasks.send.step import run as send_data
from tasks.shared.errors import TerminalError
from tasks.shared.report import StepReport
from tests.real.conftest import Measure
from tests.real.hapi_server import Hapi
from tests.real.job import job, observation, patient, write
from tests.real.victim import killed_while_sending

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


def send(hapi: Hapi, directory: Path, **more: Any) -> StepReport:
    return send_data(job(directory, {"send": {"send_as": "direct_resource_load", "url": hapi.url, **more}}))


def bundle(*resources: dict[str, Any]) -> dict[str, Any]:
    """Return a patient's line as the extraction server writes it."""
    entries = [{"resource": one, "request": {"method": "POST", "url": "made-up"}} for one in resources]
    return {"resourceType": "Bundle", "type": "transaction", "entry": entries}


def test_the_demo_data_of_the_sandbox_is_loaded_and_a_second_send_changes_nothing(
    hapi: Hapi, tmp_path: Path, figure: Measure
) -> None:
    keys: set[str] = set()
    for source in sorted(Path(demo.__file__).parent.glob("*.ndjson")):
        for run in ("first", "second"):
            (tmp_path / run / "import").mkdir(parents=True, exist_ok=True)
            shutil.copy(source, tmp_path / run / "import")
        for line in source.read_bytes().splitlines():
            resources = [entry["resource"] for entry in msgspec.json.decode(line)["entry"]]
            keys.update(f"{one['resourceType']}/{one['id']}" for one in resources)
    for run in ("first", "second"):
        result = figure(
            "hapi", f"the sandbox's data, loaded the {run} time",
            partial(send, hapi, tmp_path / run, batch_size=30, max_concurrent_requests=4),
        )  # fmt: skip
        assert result.resources_out == len(keys)
        assert hapi.versions(keys) == dict.fromkeys(keys, "1")


def test_decimals_keep_their_spelling(hapi: Hapi, tmp_path: Path) -> None:
    line = b'{"resourceType":"Observation","id":"spelled","status":"final","code":{"text":"x"},'
    write(tmp_path, "a.ndjson", line + b'"valueQuantity":{"value":1.50}}')
    send(hapi, tmp_path)
    assert hapi.read("Observation/spelled")["valueQuantity"]["value"] == "1.50"


def test_resources_without_an_id_get_a_stable_one(hapi: Hapi, tmp_path: Path) -> None:
    nameless = observation("dropped") | {"identifier": [{"system": "urn:made-up", "value": "nameless"}]}
    del nameless["id"]
    for run in ("first", "second"):
        write(tmp_path / run, "a.ndjson", nameless)
        assert send(hapi, tmp_path / run).details["derived_ids"] == 1
        assert hapi.count("Observation?identifier=urn:made-up|nameless") == 1


def test_a_target_that_comes_later_puts_its_referrers_off_until_it_is_there(hapi: Hapi, tmp_path: Path) -> None:
    write(tmp_path, "a.ndjson", *(observation(f"early-{number}", f"late-{number}") for number in range(30)))
    lines = (bundle(patient(f"late-{number}"), observation(f"own-{number}", f"late-{number}")) for number in range(30))
    write(tmp_path, "b.ndjson", *lines)
    result = send(hapi, tmp_path, batch_size=10, max_concurrent_requests=4)
    assert result.resources_out == 90
    assert result.details["deferred"] == 30
    assert hapi.count("Observation?subject=Patient/late-29") == 2


@pytest.mark.differs("hapi", "refuses a reference to a missing resource, so resources with references are sent last")
def test_a_target_that_never_comes_is_a_terminal_error_for_what_refers_to_it_only(hapi: Hapi, tmp_path: Path) -> None:
    write(tmp_path, "a.ndjson", observation("lost", "nobody-canary"), patient("found"), observation("kept", "found"))
    with pytest.raises(TerminalError) as caught:
        send(hapi, tmp_path)
    assert caught.value.reference == "send-refused"
    assert "fewer than 5 of 3 resources" in caught.value.message
    assert "a.ndjson:1 Observation" in caught.value.render()
    assert "canary" not in caught.value.render()
    assert hapi.read("Observation/kept")["subject"] == {"reference": "Patient/found"}
    assert hapi.get("Observation/lost").status_code == 404


@pytest.mark.differs("hapi", "refuses ids of digits only from a client")
@pytest.mark.parametrize(
    "guilty",
    [
        observation("guilty", status="no such status"),
        observation("123"),
        observation("guilty", effectiveDateTime="yesterday"),
    ],
    ids=["code", "numeric id", "date"],
)
def test_a_resource_that_hapi_rejects_is_found_by_halving_and_the_others_are_stored(
    hapi: Hapi, tmp_path: Path, guilty: dict[str, Any]
) -> None:
    innocent = [observation(f"innocent-{number}") for number in range(40)]
    write(tmp_path, "a.ndjson", *innocent[:17], guilty, *innocent[17:])
    with pytest.raises(TerminalError) as caught:
        send(hapi, tmp_path)
    assert "fewer than 5 of 41 resources" in caught.value.message
    assert "a.ndjson:18 Observation" in caught.value.render()
    assert all(hapi.get(f"Observation/{one['id']}").status_code == 200 for one in innocent)
    assert hapi.get(f"Observation/{guilty['id']}").status_code == 404
    summary = (tmp_path / "send" / "failed" / "summary.csv").read_text().splitlines()
    assert len(summary) == 2


def test_the_last_of_two_with_the_same_id_in_one_transaction_wins(hapi: Hapi, tmp_path: Path) -> None:
    write(tmp_path, "a.ndjson", patient("twice", active=False), patient("twice", active=True))
    result = send(hapi, tmp_path)
    assert result.details["collapsed"] == 1
    assert hapi.read("Patient/twice")["active"] is True


def test_patients_that_refer_to_each_other_in_a_circle_get_in_together(hapi: Hapi, tmp_path: Path) -> None:
    def related(one: str, other: str) -> dict[str, Any]:
        return patient(one, link=[{"other": {"reference": f"Patient/{other}"}, "type": "seealso"}])

    write(tmp_path, "a.ndjson", related("ring-a", "ring-b"))
    write(tmp_path, "b.ndjson", related("ring-b", "ring-c"))
    write(tmp_path, "c.ndjson", related("ring-c", "ring-a"))
    assert send(hapi, tmp_path).resources_out == 3
    assert hapi.read("Patient/ring-c")["link"][0]["other"]["reference"] == "Patient/ring-a"


def test_two_loads_that_write_the_same_resources_at_once_both_succeed(hapi: Hapi, tmp_path: Path) -> None:
    def one(number: int) -> int | None:
        directory = tmp_path / str(number)
        write(directory, "a.ndjson", *(patient(f"shared-{index}", active=bool(number)) for index in range(60)))
        retry = {"max_attempts": 10, "initial_backoff_ms": 20, "max_backoff_ms": 500}
        services = {"send": {"send_as": "direct_resource_load", "url": hapi.url, "batch_size": 20}}
        return send_data(job(directory, services, retry=retry)).resources_out

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(one, range(3))) == [60, 60, 60]


def test_a_resumed_send_asks_for_nothing_that_is_on_the_server(hapi: Hapi, tmp_path: Path) -> None:
    write(tmp_path, "a.ndjson", *(observation(f"resumed-{number}") for number in range(50)))
    assert send(hapi, tmp_path).details["requests"] == 1
    assert send(hapi, tmp_path).details["requests"] == 0


@pytest.mark.parametrize("moments", [3])
def test_killed_at_random_moments_and_continued_everything_is_there_once(
    hapi: Hapi, tmp_path: Path, moments: int
) -> None:
    lines = [
        bundle(patient(f"k{moments}-{number}"), *(observation(f"k{moments}-{number}-{index}") for index in range(9)))
        for number in range(150)
    ]
    write(tmp_path, "a.ndjson", *lines)
    service = {"send_as": "direct_resource_load", "url": hapi.url, "batch_size": 20}
    killed = killed_while_sending(tmp_path, {"send": service}, times=moments, seconds=2 / moments)
    assert killed
    result = send(hapi, tmp_path, batch_size=20)
    assert result.resources_in == 1500
    resources = [entry["resource"] for line in lines for entry in line["entry"]]
    keys = [f"{one['resourceType']}/{one['id']}" for one in resources]
    # A transaction whose answer was lost is sent again, and changes nothing.
    assert hapi.versions(keys) == dict.fromkeys(keys, "1")
