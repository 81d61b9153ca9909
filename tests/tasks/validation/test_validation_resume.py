"""An interrupted validation continues where it stopped, and its findings still count (document 3 §6)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.shared.errors import SluiceError
from tests.peers.server import Reply
from tests.peers.validation import ValidationJob, patient, serving
from tests.tasks.test_kills import CHUNK, fill_validation

REQUESTS = 23
"""How many requests that input takes."""


Whole = tuple[dict[str, bytes], dict[str, Any]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Return the output of an undisturbed run and its counts."""
    job = ValidationJob(tmp_path_factory.mktemp("undisturbed"))
    fill_validation(job, 20)
    with serving() as server:
        result = job.validate(server.url, chunk_bytes=CHUNK)
        assert len(server.bodies) == REQUESTS
    return job.files(), result.details


def test_a_second_run_over_finished_files_asks_nothing_and_reports_the_same(tmp_path: Path) -> None:
    job = ValidationJob(tmp_path)
    fill_validation(job, 20)
    with serving() as server:
        details = job.validate(server.url, chunk_bytes=CHUNK).details
        expected = job.files()
        asked = len(server.bodies)
        result = job.validate(server.url, chunk_bytes=9 * CHUNK)
        assert len(server.bodies) == asked
    assert result.details == details
    assert result.details["findings"] > 50
    assert job.files() == expected


def test_a_file_with_a_report_is_skipped_and_its_findings_still_count(tmp_path: Path) -> None:
    job = ValidationJob(tmp_path)
    job.write("a.ndjson", patient("p1", bad=2))
    with serving() as server:
        job.validate(server.url)
        job.write("b.ndjson", patient("p2", bad=1))
        result = job.validate(server.url)
    assert server.validated == ["Patient/p1", "Patient/p2"]
    assert (result.details["findings"], result.resources_in) == (3, 2)
    assert [row["file"] for row in job.summary() if row["resource"]] == ["a.ndjson", "a.ndjson", "b.ndjson"]


def test_a_file_that_changed_since_its_report_is_validated_anew(tmp_path: Path) -> None:
    job = ValidationJob(tmp_path)
    job.write("a.ndjson", patient("p1", bad=2))
    job.write("b.ndjson", patient("p2", bad=1))
    with serving() as server:
        job.validate(server.url)
        job.write("a.ndjson", patient("p1"))
        result = job.validate(server.url)
    assert server.validated[2:] == ["Patient/p1"]
    assert result.details["findings"] == 1


@pytest.mark.parametrize("gone", ["a.validation.ndjson", ".state/a.csv", ".state/ledger.ndjson"])
def test_whose_report_or_records_are_gone_is_validated_anew(tmp_path: Path, gone: str) -> None:
    job = ValidationJob(tmp_path)
    job.write("a.ndjson", patient("p1", bad=2))
    with serving() as server:
        first = job.validate(server.url)
        files = job.files()
        (job.output / gone).unlink()
        again = job.validate(server.url)
    assert len(server.bodies) == 2
    assert again.details == first.details
    assert job.files() == files


def test_a_report_about_a_file_that_is_no_longer_there_is_removed(tmp_path: Path) -> None:
    job = ValidationJob(tmp_path)
    job.write("a.ndjson", patient("p1", bad=2))
    gone = job.write("b.ndjson", patient("p2", bad=1))
    with serving() as server:
        job.validate(server.url)
        gone.unlink()
        result = job.validate(server.url)
    assert sorted(job.reports()) == ["a.validation.ndjson"]
    assert result.details["findings"] == 2
    assert {row["file"] for row in job.summary()} == {"a.ndjson"}


def test_a_large_file_goes_on_inside(tmp_path: Path) -> None:
    job = ValidationJob(tmp_path)
    job.write("a.ndjson", *[patient(f"p{n}", bad=1, x="y" * 600) for n in range(30)])
    with serving(lambda number, _: Reply(403) if number == 20 else None) as server:
        with pytest.raises(SluiceError):
            job.validate(server.url, chunk_bytes=1000, max_concurrent_requests=1)
        assert sorted(job.reports()) == []
        server.script = None
        result = job.validate(server.url, chunk_bytes=1000)
    assert sorted(server.validated) == sorted(f"Patient/p{n}" for n in range(30))
    assert (result.details["findings"], result.resources_in, result.lines_in) == (30, 30, 30)
    assert [row["resource"] for row in job.summary() if row["resource"]] == [f"Patient/p{n}" for n in range(30)]


def test_rows_of_an_earlier_version_go_on_to_count_and_have_no_profile_recorded(tmp_path: Path) -> None:
    job = ValidationJob(tmp_path)
    meta = {"profile": ["http://a.example/one"]}
    job.write("a.ndjson", *[patient(f"p{n}", bad=1, meta=meta) for n in range(2)])
    with serving() as server:
        job.validate(server.url)
        rows = job.output / ".state" / "a.csv"
        new = rows.read_bytes()
        old = b"".join(row.rpartition(b",")[0] + b"\n" for row in new.splitlines())
        rows.write_bytes(old)
        ledger = job.output / ".state" / "ledger.ndjson"
        assert ledger.read_bytes().count(b'"row_bytes":%d' % len(new)) == 1
        ledger.write_bytes(ledger.read_bytes().replace(b'"row_bytes":%d' % len(new), b'"row_bytes":%d' % len(old)))
        job.write("b.ndjson", patient("p9", bad=1, meta=meta))
        result = job.validate(server.url)
    assert server.validated == ["Patient/p0", "Patient/p1", "Patient/p9"]
    assert result.details["findings"] == 3
    found = [(row["file"], row["profile"]) for row in job.summary() if row["resource"]]
    assert found == [("a.ndjson", None), ("a.ndjson", None), ("b.ndjson", "http://a.example/one")]


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(st.tuples(st.integers(0, 15), st.integers(0, 40)), min_size=1, max_size=4))
def test_the_reports_are_the_same_for_any_truncated_ledger_and_files(
    whole: Whole, tmp_path_factory: pytest.TempPathFactory, rounds: list[tuple[int, int]]
) -> None:
    expected, details = whole
    job = ValidationJob(tmp_path_factory.mktemp("job"))
    fill_validation(job, 20)
    with serving() as server:
        for good, lost in rounds:
            until = len(server.bodies) + good
            server.script = lambda number, _, until=until: Reply(403) if number >= until else None
            with suppress(SluiceError):
                job.validate(server.url, chunk_bytes=CHUNK, max_concurrent_requests=1 + good % 3)
            ledger = job.output / ".state" / "ledger.ndjson"
            ledger.write_bytes(ledger.read_bytes()[: -lost or None])
        server.script = None
        result = job.validate(server.url, chunk_bytes=CHUNK)
    assert job.files() == expected
    assert result.details == details


def test_parts_that_a_power_cut_left_shorter_than_the_ledger_says_are_begun_anew(whole: Whole, tmp_path: Path) -> None:
    expected, details = whole
    job = ValidationJob(tmp_path / "job")
    fill_validation(job, 20)
    with serving(lambda number, _: Reply(403) if number == 18 else None) as server:
        with pytest.raises(SluiceError):
            job.validate(server.url, chunk_bytes=CHUNK, max_concurrent_requests=1)
        [part] = job.output.glob("*.part")
        os.truncate(part, 10)
        server.script = None
        result = job.validate(server.url, chunk_bytes=CHUNK)
    assert job.files() == expected
    assert result.details == details
