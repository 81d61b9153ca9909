"""An interrupted step continues where it stopped (document 3 §5; 4-product.md §4 "Continue")."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tasks.flattening.flattening import FlatteningBounds
from tasks.flattening.views import GroupView
from tasks.shared.errors import ServiceError
from tests.peers.flattening import (
    OBSERVATIONS,
    VIEWS,
    FakeFlattening,
    FlatteningJob,
    FlatteningRequest,
    patient_line,
    serving,
    view,
)
from tests.peers.server import Reply
from tests.tasks.test_kills import SMALL, fill_flattening, without_requests


def copied(source: FlatteningJob, target: Path) -> FlatteningJob:
    job = FlatteningJob(target, source.views)
    for path in source.input.iterdir():
        (job.input / path.name).write_bytes(path.read_bytes())
    return job


def _killed_before_the_renames(job: FlatteningJob) -> None:
    for name in ("Labor.csv", "Patient.csv"):
        (job.output / name).rename(job.output / f"{name}.partial")


@pytest.mark.parametrize(
    ("happens", "asked"),
    [
        (lambda _: None, set()),
        (_killed_before_the_renames, set()),
        (lambda job: (job.output / "Labor.csv").unlink(), {"Observation"}),
    ],
    ids=["nothing", "a kill between the ledger and the renames", "a table is missing"],
)
@pytest.mark.parametrize("more", [False, True], ids=["", "columns that the view does not have"])
def test_a_second_run_asks_only_for_the_table_that_is_missing_and_reports_the_same(
    job: FlatteningJob, service: FakeFlattening, happens: Callable[[FlatteningJob], None], asked: set[str], more: bool
) -> None:
    fill_flattening(job, 10)
    plain = service.rows
    service.rows = lambda view, resource: [row[:-1] + b',"more":1}' if more else row for row in plain(view, resource)]
    first = job.run(service.url, **SMALL)
    assert sum("columns that the view does not have" in warning for warning in first.warnings) == 3 * more
    before = job.tables()
    happens(job)
    service.requests.clear()
    second = job.run(service.url, **SMALL)
    assert {request.type for request in service.requests} == asked
    assert job.tables() == before
    assert without_requests(second) == without_requests(first)


@pytest.mark.parametrize("change", ["view", "input", "batch size", "service", "ledger"])
@pytest.mark.parametrize("finished", [True, False])
def test_under_other_terms_everything_is_begun_anew(tmp_path: Path, change: str, finished: bool) -> None:
    job = FlatteningJob(tmp_path / "job")
    job.write("a.ndjson", *[patient_line(n, 4) for n in range(12)])
    options = dict(SMALL)

    def breaks(number: int, _: FlatteningRequest) -> Reply | None:
        return Reply(400) if number >= 6 else None

    with serving() as service, serving() as another:
        if finished:
            job.run(service.url, **options)
        else:
            service.script = breaks
            with pytest.raises(ServiceError):
                job.run(service.url, **options)
            service.script = None
        url = service.url
        if change == "view":
            job.views = (*VIEWS[:2], view("g-obs", "Observation", {"value": "valueQuantity.value"}, name="Labor"))
        elif change == "input":
            job.write("b.ndjson", patient_line(90))
        elif change == "batch size":
            options["batch_size_mb"] = 2
        elif change == "service":
            url = another.url
        else:
            (job.directory / "flattening" / "ledger.ndjson").unlink()
        service.requests.clear()
        result = job.run(url, **options)
        asked = len(service.requests) + len(another.requests)
        other = copied(job, tmp_path / "other")
        service.requests.clear()
        fresh = other.run(service.url, **options)
        assert asked == len(service.requests)
    assert job.tables() == other.tables()
    assert result.details["groups"] == fresh.details["groups"]
    assert any(warning.startswith("3 tables were made again") for warning in result.warnings) == finished


def test_tables_and_definitions_of_groups_that_are_gone_are_removed(tmp_path: Path, service: FakeFlattening) -> None:
    job = FlatteningJob(tmp_path)
    job.write("a.ndjson", *[patient_line(n) for n in range(3)])
    job.run(service.url)
    (job.output / "stranger.csv.partial").write_bytes(b"x")
    job.views = VIEWS[:2]
    job.run(service.url)
    assert sorted(job.tables()) == ["Diagnosen.csv", "Patient.csv"]
    names = sorted(path.name for path in (job.directory / "viewdefinitions").iterdir())
    assert names == ["Diagnosen.json", "Patient.json"]


@pytest.mark.slow
def test_after_a_loss_of_any_end_of_the_ledger_or_the_tables_the_result_is_the_same(
    tmp_path: Path, service: FakeFlattening
) -> None:
    views: list[GroupView] = [OBSERVATIONS]
    job = FlatteningJob(tmp_path, views)
    job.write("a.ndjson", *[patient_line(n, 4) for n in range(10)])
    options: dict[str, Any] = {"bounds": FlatteningBounds(mebibyte=1500), "batch_size_mb": 1}
    job.run(service.url, **options)
    expected = job.tables()
    assert len(service.requests) >= 6
    ledger = (job.directory / "flattening" / "ledger.ndjson").read_bytes()
    content = expected["Labor.csv"]
    draw = random.Random(1)
    for turn in range(14):
        with suppress(FileNotFoundError):
            (job.output / "Labor.csv").unlink()
        part = content[: draw.randrange(len(content))] if turn % 2 else content + b"written,after,the,last,entry"
        (job.output / "Labor.csv.partial").write_bytes(part)
        (job.directory / "flattening" / "ledger.ndjson").write_bytes(ledger[: draw.randrange(len(ledger))])
        job.run(service.url, **options)
        assert job.tables() == expected


def test_an_unfinished_table_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    job = FlatteningJob(tmp_path / "job")
    job.write("a.ndjson", *[patient_line(n, 4) for n in range(10)])
    with serving(lambda number, _: Reply(400) if number >= 6 else None) as service:
        with pytest.raises(ServiceError):
            job.run(service.url, **SMALL)
        foreign = tmp_path / "foreign"
        foreign.write_bytes(b"x" * 10_000)
        part = job.output / "Labor.csv.partial"
        part.unlink()
        part.symlink_to(foreign)
        service.script = None
        job.run(service.url, **SMALL)
        other = copied(job, tmp_path / "other")
        other.run(service.url, **SMALL)
    assert foreign.read_bytes() == b"x" * 10_000
    assert job.tables() == other.tables()
