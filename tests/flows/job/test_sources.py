"""Input of each step, and the data that a wait shows as outgoing (4-product.md §4, "What a step reads")."""

from __future__ import annotations

from pathlib import Path

import pytest

from config import PipelineConfig, SendMode
from flows.gate.reviewed_files import NEXT, ReviewedFiles, correction_words, to_be_read, wait_lines
from flows.job.steps import Sources
from flows.reports.pages import wait_description
from tasks import declared
from tasks.shared.errors import DataError
from tasks.shared.report import Corrections, Waiting
from tasks.shared.step import Source
from tasks.shared.stop import Stop

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


def wait(job: Path, send_as: SendMode, position: int = 5) -> Waiting:
    """As it is recorded when a wait behind flattening is parked."""
    found = sources(job, send_as)
    leaving = found.data_sent_after(position)
    assert found.newest is not None
    leaves = leaving.path if leaving else None
    delivery = found.delivery(position)
    reader = delivery.name if delivery else NEXT
    reviewed = ReviewedFiles(
        job, position, found.newest.path, job / "csv_wait", leaves, found.corrections(position), reader
    )
    looked_at = Waiting(position=5, step="wait", directory=str(job / "csv_wait"), looked_at=str(job / "csv"), since="x")
    return reviewed.shown(looked_at, reviewed.list_files(None, Stop()))


@pytest.mark.parametrize(
    ("steps", "asked"),
    [
        (("local_import", "send"), False), (("local_import", "wait", "send"), True),
        (("local_import", "wait", "pseudonymizer", "send"), False), (("local_import", "wait"), False),
        (("local_import", "pseudonymizer", "wait", "validation", "send"), True),
    ],
)  # fmt: skip
def test_a_person_is_asked_where_data_leave_as_a_wait_released_them(steps: tuple[str, ...], asked: bool) -> None:
    assert Sources(steps, sending(DIRECT)).asks_before_delivery() is asked


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
    assert in_front.data_sent_after(3) is None
    assert in_front.corrections(3) is Corrections.NDJSON
    steps = ("local_import", "pseudonymizer", "wait", "validation", "wait", "send")
    validated = sources(job, DIRECT, steps, tables=False)
    assert validated.data_sent_after(3) is validated.data_sent_after(5) is validated.newest
    assert sources(job, S3, (*BEHIND[:5], "validation")).data_sent_after(5) is None


@pytest.mark.parametrize(
    ("send_as", "folder", "files"),
    [
        (DIRECT, "pseudonymized", ("a.ndjson, 3 B", "core.ndjson, 3 B")),
        (TRANSFER, "csv", ("Patient.csv, 3 B",)),
        (S3, "csv", ("Patient.csv, 3 B",)),
    ],
)
def test_a_wait_behind_flattening_says_which_files_will_leave(
    job: Path, send_as: SendMode, folder: str, files: tuple[str, ...]
) -> None:
    waiting = wait(job, send_as)
    assert waiting.looked_at == str(job / "csv")
    assert (waiting.reads, waiting.files) == (str(job / folder), files)
    assert wait_lines(waiting) == [
        f"  send will read these files in {job / folder}",
        *(f"    {file}" for file in files),
    ]
    assert to_be_read(waiting) == (job / folder, files)
    page = wait_description(waiting, BEHIND)
    assert f"**To be sent**: `send` reads these files in `{job / folder}`" in page
    assert f"`{files[0]}`" in page
    assert f"**Look at** the files in `{job / 'csv'}`" in page


def test_corrected_tables_are_what_will_leave(job: Path) -> None:
    (job / "csv_wait" / "Patient.csv").write_bytes(b"id\n")
    waiting = wait(job, S3)
    assert (waiting.reads, waiting.files) == (str(job / "csv_wait"), ("Patient.csv, 3 B",))
    assert to_be_read(waiting)[0] == job / "csv_wait"
    assert correction_words(waiting) == f"  corrected tables go into {job / 'csv_wait'}"


def test_before_a_decision_corrected_tables_that_would_not_be_sent_are_refused(job: Path) -> None:
    waiting = wait(job, DIRECT)
    assert "would not be sent" in correction_words(waiting)
    assert "would not be sent" in wait_description(waiting, BEHIND)
    (job / "csv_wait" / "NOTES.txt").touch()
    ReviewedFiles.of(job, waiting).check()
    (job / "csv_wait" / "Patient.csv").write_bytes(b"id\n")
    with pytest.raises(DataError) as caught:
        ReviewedFiles.of(job, waiting).check()
    assert caught.value.reference == "corrections-not-sent"
    assert caught.value.context == f"{job / 'csv_wait'}\n  Patient.csv"
    assert wait(job, DIRECT).reads == str(job / "pseudonymized")


def test_a_decision_is_about_the_jobs_directory_as_this_machine_sees_it(job: Path) -> None:
    waiting = wait(job, DIRECT)
    places = ("directory", "looked_at", "leaves")
    elsewhere = waiting.model_copy(update={name: f"/mnt/x/{Path(getattr(waiting, name)).name}" for name in places})
    here, there = ReviewedFiles.of(job, waiting), ReviewedFiles.of(job, elsewhere)
    assert here == there
    assert there.bytes == 9
    assert there.list_files(None, Stop()).digest == here.list_files(None, Stop()).digest


@pytest.mark.parametrize(
    ("steps", "send_as", "position", "readers"),
    [
        (("local_import", "wait", "send"), DIRECT, 2, [3]),
        (("local_import", "wait", "validation", "pseudonymizer", "send"), DIRECT, 2, [3, 4]),
        (("local_import", "wait", "validation", "wait", "send"), DIRECT, 2, [3]),
        (("local_import", "wait", "flattening", "send"), DIRECT, 2, [3, 4]),
        (("local_import", "wait", "flattening", "send"), S3, 2, [3]),
        (BEHIND, DIRECT, 3, [4, 6]),
        (BEHIND, TRANSFER, 3, [4]),
        (BEHIND, DIRECT, 5, [6]),
        (("local_import", "wait"), DIRECT, 2, []),
    ],
)
def test_who_reads_what_a_wait_released(
    steps: tuple[str, ...], send_as: SendMode, position: int, readers: list[int]
) -> None:
    assert Sources(steps, sending(send_as)).readers(position) == readers
