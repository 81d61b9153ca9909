"""HAPI's JPA server takes a direct load and a transfer (docs/services.md)."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployments.sandbox.data import DATA
from tasks.send.step import STEP
from tasks.shared.errors import TerminalError
from tasks.shared.report import StepReport
from tests.peers.data import observation, patient, write
from tests.peers.job import configuration, context
from tests.real.conftest import Start

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

PROJECT = "http://medizininformatik-initiative.de/sid/project-identifier"


def send(directory: Path, url: str, **settings: Any) -> StepReport:
    settings = {"send_as": "direct_resource_load", "url": url} | settings
    return STEP.run(context(directory, "send", configuration({"send": settings}), source=directory / "import"))


def coded(identifier: str, of: str = "kept", **more: Any) -> dict[str, Any]:
    return observation(identifier, of, **{"status": "final", "code": {"text": "made up"}} | more)


class Hapi:
    """A running HAPI, and what a reader gets from it."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url, self.http = url, http

    def get(self, path: str) -> httpx.Response:
        return self.http.get(path, headers={"Accept": "application/fhir+json", "Cache-Control": "no-cache"})


@pytest.fixture(scope="module")
def hapi(start: Start) -> Iterator[Hapi]:
    url = start("hapi")
    with httpx.Client(base_url=f"{url}/fhir/", trust_env=False, timeout=60) as http:
        yield Hapi(url, http)


def test_a_load_changes_nothing_when_it_is_repeated(hapi: Hapi, tmp_path: Path) -> None:
    keys = set()
    for turn in ("first", "second"):
        for source in sorted(DATA.glob("*.ndjson")):
            lines = source.read_bytes().splitlines()
            write(tmp_path / turn / "import" / source.name, *lines)
            resources = [entry["resource"] for line in lines for entry in json.loads(line)["entry"]]
            keys |= {f"{one['resourceType']}/{one['id']}" for one in resources}
        report = send(tmp_path / turn, hapi.url, batch_size=30, max_concurrent_requests=4)
        assert report.resources_out == len(keys)
    assert {hapi.get(key).json()["meta"]["versionId"] for key in keys} == {"1"}
    assert '"value":1.50' in hapi.get("MedicationAdministration/demo-01-given-1").text


def test_what_is_refused_is_listed_and_all_else_is_loaded(hapi: Hapi, tmp_path: Path) -> None:
    """References to what comes later and to what never comes, and resources that are wrong."""
    wrong = [coded("status", status="no such status"), coded("123"), coded("date", effectiveDateTime="yesterday")]
    early = [coded(f"early-{number}", "late") for number in range(20)]
    write(tmp_path / "import" / "a.ndjson", *early, *wrong, coded("lost", "nobody"))
    write(tmp_path / "import" / "b.ndjson", patient("late"), patient("kept"))
    with pytest.raises(TerminalError) as caught:
        send(tmp_path, hapi.url)
    assert caught.value.reference == "send-refused"
    assert hapi.get("Observation?subject=Patient/late&_summary=count").json()["total"] == 20
    assert hapi.get("Patient/kept").status_code == 200
    assert hapi.get("Observation/lost").status_code == 404
    assert len((tmp_path / "send" / "summary.csv").read_text().splitlines()) == 1 + 4


def test_a_transfer_is_read_as_the_receiving_process_does_and_the_next_replaces_it(hapi: Hapi, tmp_path: Path) -> None:
    transfer = {"project_identifier": "project-1", "organization_identifier": "hospital.test"}
    for number in (1, 2):
        place = tmp_path / str(number)
        source = write(place / "import" / "a.ndjson", coded(f"o{number}"))
        send(place, hapi.url, send_as="transfer_load", transfer=transfer)
        (entry,) = hapi.get(f"DocumentReference?identifier={PROJECT}|project-1").json()["entry"]
        attachment = entry["resource"]["content"][0]["attachment"]
        data = hapi.http.get(attachment["url"], headers={"Accept": "application/zip"}).content
        assert attachment["size"] == len(data)
        assert attachment["hash"] == base64.b64encode(hashlib.sha1(data).digest()).decode()
        assert zipfile.ZipFile(io.BytesIO(data)).read("a.ndjson") == source.read_bytes()
