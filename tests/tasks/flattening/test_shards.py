"""A step that is divided among child runs gives what it gives undivided (6-scale-out.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.flattening.routing_index import RoutingIndex
from tasks.flattening.tables import Tables
from tasks.shared.errors import DataError, ServiceError, StorageError
from tasks.shared.step import StepContext
from tests.peers.flattening import (
    FakeFlattening,
    FlatteningJob,
    FlatteningRequest,
    of_patient,
    patient_line,
    provenance,
    resource,
)
from tests.peers.server import Reply
from tests.peers.shards import KilledError, kill_at_call
from tests.tasks.test_kills import SMALL, fill_flattening


def figures(report: Any) -> dict[str, Any]:
    """Return what a report says, without what depends on how the resources were put into requests."""
    found = report.result() | {"content": None}
    details = dict(found["details"])
    del details["requests"]
    details["groups"] = [{key: row[key] for key in row if key != "batches"} for row in details["groups"]]
    return found | {"details": details}


def fill_with_provenances_elsewhere(job: FlatteningJob, lines: int) -> None:
    """Resources whose Provenances are in other files, some of them in several files and in one file twice."""
    seen = [of_patient("Observation", f"o{n}", "p", valueQuantity={"value": n}) for n in range(lines)]
    job.write("a.ndjson", *seen[: lines // 2], seen[0])
    job.write("b.ndjson", *seen[lines // 3 :], resource("Patient", "p"))
    job.write("c.ndjson", *seen, provenance("g-pat", "Patient/p"))
    job.write("d.ndjson", provenance("g-obs", *seen), seen[-1], resource("Encounter", "e"))


def fill_without_provenances(job: FlatteningJob, lines: int) -> None:
    """Resources that are routed by their type, the same ones in several files."""
    for name in "abcd":
        job.write(
            f"{name}.ndjson", *[of_patient("Condition", f"c{name if n % 3 else ''}{n}", "p") for n in range(lines)]
        )


FILLED = (fill_flattening, fill_with_provenances_elsewhere, fill_without_provenances)


def undivided(directory: Path, fill: Callable[[FlatteningJob, int], None], url: str, **more: Any) -> Any:
    job = FlatteningJob(directory)
    fill(job, 12)
    report = job.run(url, **SMALL, **more)
    return job.tables(), figures(report)


@pytest.mark.parametrize("fill", FILLED)
@pytest.mark.parametrize(("shards", "order"), [(2, (1, 0)), (3, (2, 0, 1, 2)), (9, None)])
def test_tables_and_report_are_those_of_an_undivided_run(
    tmp_path: Path, service: FakeFlattening, fill: Callable[[FlatteningJob, int], None], shards: int,
    order: tuple[int, ...] | None,
) -> None:  # fmt: skip
    expected = undivided(tmp_path / "undivided", fill, service.url)
    sent = sorted(one for request in service.requests for one in request.resources)
    service.requests.clear()
    job = FlatteningJob(tmp_path / "job")
    fill(job, 12)
    report = job.run(service.url, **SMALL, shards=shards, order=order)
    assert (job.tables(), figures(report)) == expected
    assert sorted(one for request in service.requests for one in request.resources) == sent
    assert report.details["requests"] == len(service.requests)
    assert {path.name for path in (job.directory / "flattening").iterdir()} == {"ledger.ndjson", "failed"}
    assert not [*(job.directory / ".results").rglob("*.csv")]
    assert (job.directory / "viewdefinitions").is_dir()


def test_parquet_is_made_of_the_tables_of_all_shards(tmp_path: Path, service: FakeFlattening) -> None:
    pytest.importorskip("pyarrow")
    expected = undivided(tmp_path / "undivided", fill_flattening, service.url, formats=["csv", "parquet"])
    job = FlatteningJob(tmp_path / "job")
    fill_flattening(job, 12)
    report = job.run(service.url, **SMALL, shards=3, formats=["csv", "parquet"])
    assert (job.tables(), figures(report)) == expected
    assert not [*(job.directory / ".results").rglob("*.parquet")]


@pytest.mark.parametrize(
    ("where", "name", "call"),
    [
        (RoutingIndex, "save", 0), (Tables, "finish", 0), (Tables, "finish", 1), (Tables, "append", 1),
        (Tables, "finish", 3), (StepContext, "shard_states", 1),
    ],
)  # fmt: skip
def test_killed_anywhere_no_batch_that_is_done_is_sent_again(
    tmp_path: Path, service: FakeFlattening, monkeypatch: pytest.MonkeyPatch, where: type, name: str, call: int
) -> None:
    expected = undivided(tmp_path / "undivided", fill_flattening, service.url)
    job = FlatteningJob(tmp_path / "job")
    fill_flattening(job, 12)
    service.requests.clear()
    kill_at_call(monkeypatch, where, name, call)
    with pytest.raises(KilledError):
        job.run(service.url, **SMALL, shards=3)
    report = job.run(service.url, **SMALL, shards=3)
    assert (job.tables(), figures(report)) == expected
    sent = [one for request in service.requests for one in request.resources]
    assert len(sent) == len(set(sent))


def test_a_shard_whose_service_refuses_goes_on_where_it_stopped(tmp_path: Path, service: FakeFlattening) -> None:
    expected = undivided(tmp_path / "undivided", fill_flattening, service.url)
    job = FlatteningJob(tmp_path / "job")
    fill_flattening(job, 12)
    service.requests.clear()

    def refuses(number: int, _: FlatteningRequest) -> Reply | None:
        return Reply(400, b"about it") if number == 5 else None

    service.script = refuses
    with pytest.raises(ServiceError) as caught:
        job.run(service.url, **SMALL, shards=2)
    assert "flattening/failed/" in str(caught.value.hint)
    service.script = None
    refused = service.requests.pop(4)
    assert refused.resources
    report = job.run(service.url, **SMALL, shards=2)
    assert (job.tables(), figures(report)) == expected


def test_a_table_that_somebody_removed_makes_all_of_them_again(tmp_path: Path, service: FakeFlattening) -> None:
    job = FlatteningJob(tmp_path)
    job.write("a.ndjson", *[patient_line(n) for n in range(3)])
    job.write("b.ndjson", *[patient_line(n) for n in range(3, 5)])

    def removes(_: int) -> None:
        for path in (tmp_path / ".results").rglob("Labor.csv"):
            path.unlink()

    with pytest.raises(StorageError) as caught:
        job.run(service.url, shards=2, between=removes)
    assert caught.value.reference == "shard-file-damaged"
    job.run(service.url, shards=2)
    assert sorted(job.tables()) == ["Diagnosen.csv", "Labor.csv", "Patient.csv"]


@pytest.mark.parametrize(
    ("lines", "reference"), [([resource("Encounter", "e")], "flattening-unrouted"), ([{"x": 1}], "not-a-resource")]
)
def test_what_cannot_be_routed_is_refused_before_a_request(
    tmp_path: Path, service: FakeFlattening, lines: list[dict[str, Any]], reference: str
) -> None:
    job = FlatteningJob(tmp_path)
    job.write("a.ndjson", resource("Encounter", "f"))
    job.write("b.ndjson", *lines)
    with pytest.raises(DataError) as caught:
        job.run(service.url, shards=2)
    assert caught.value.reference == reference
    assert not service.requests
