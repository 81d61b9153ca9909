"""Input of each step, and the data that a wait shows as outgoing."""

from __future__ import annotations

from pathlib import Path

import pytest

from config import PipelineConfig, SendMode
from flows.gate.reviewed import Covered
from flows.job.sources import Sources
from tasks import declared
from tasks.shared.step import Source

DIRECT, TRANSFER, S3 = SendMode.DIRECT_RESOURCE_LOAD, SendMode.TRANSFER_LOAD, SendMode.S3_UPLOAD
BEHIND = ("local_import", "pseudonymizer", "wait", "flattening", "wait", "send")


def sending(send_as: SendMode) -> PipelineConfig:
    return PipelineConfig.model_validate({"services": {"send": {"send_as": send_as}}})


def sources(job: Path, send_as: SendMode, steps: tuple[str, ...] = BEHIND, *, tables: bool = True) -> Sources:
    """As they are behind flattening, or in front of it."""
    found = Sources(steps, sending(send_as))
    found.wrote(Source(job / "import", 1))
    found.wrote(Source(job / "pseudonymized", 1))
    if tables:
        found.wrote(Source(job / "csv", None, tables=True))
    return found


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for name in ("import/a.ndjson", "pseudonymized/core.ndjson", "pseudonymized/a.ndjson", "csv/Patient.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"{}\n")
    (tmp_path / "csv_wait").mkdir()
    return tmp_path


@pytest.mark.parametrize(("send_as", "folder"), [(DIRECT, "pseudonymized"), (TRANSFER, "csv"), (S3, "csv")])
def test_send_behind_flattening_reads_the_tables_or_what_flattening_read(
    job: Path, send_as: SendMode, folder: str
) -> None:
    read = sources(job, send_as).read_by(declared("send"))
    assert read is not None
    assert read.path == job / folder


def test_corrected_tables_are_what_the_other_modes_read_and_a_direct_load_does_not(job: Path) -> None:
    for send_as, folder in ((DIRECT, "pseudonymized"), (S3, "csv_wait")):
        found = sources(job, send_as)
        found.wrote(Source(job / "csv_wait", None, tables=True))
        read = found.read_by(declared("send"))
        assert read is not None
        assert read.path == job / folder


def test_what_another_step_changes_before_it_is_sent_does_not_leave_as_it_is(job: Path) -> None:
    in_front = sources(job, S3, tables=False)
    assert in_front.delivery(3) is None
    assert in_front.at_wait(3) is in_front.newest
    steps = ("local_import", "pseudonymizer", "wait", "validation", "wait", "send")
    validated = sources(job, DIRECT, steps, tables=False)
    assert validated.delivery(3) is validated.delivery(5) is declared("send")
    assert validated.at_wait(3) is validated.newest
    assert sources(job, S3, (*BEHIND[:5], "validation")).delivery(5) is None


@pytest.mark.parametrize(
    ("send_as", "folder", "file"), [(DIRECT, "pseudonymized", "a.ndjson"), (S3, "csv", "Patient.csv")]
)
def test_a_wait_behind_flattening_covers_what_will_leave(job: Path, send_as: SendMode, folder: str, file: str) -> None:
    before = sources(job, send_as)
    covered = Covered(job, 5, before.at_wait(5))
    assert covered.place() == job / folder
    corrected = job / f"{folder}_wait"
    corrected.mkdir(exist_ok=True)
    (corrected / ".DS_Store").touch()
    assert covered.place() == job / folder
    (corrected / file).write_bytes(b"id\n")
    assert covered.place() == corrected
    before.passed(covered.source, Source(corrected, tables=covered.source.tables))
    read = before.read_by(declared("send"))
    assert read is not None
    assert read.path == corrected
    assert before.newest is not None
    assert before.newest.tables
