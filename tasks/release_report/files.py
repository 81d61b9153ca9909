"""The files of a release report: ``report/release-report.json`` and the page beside it, 0600, each by rename."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from tasks.release_report.document import ReleaseReport
from tasks.release_report.page import html
from tasks.shared.errors import DataError, storage_errors
from tasks.shared.files.part_file import write_whole

DIRECTORY: Final = "report"
NAME: Final = "release-report"


def page_of(job: Path) -> Path:
    """Return the path of the page, which may not exist."""
    return job / DIRECTORY / f"{NAME}.html"


def document_of(job: Path) -> Path:
    """Return the path of the JSON document."""
    return page_of(job).with_suffix(".json")


def write(job: Path, report: ReleaseReport) -> None:
    """Write the page, then the document, which is never there without the page. Raises ``StorageError``."""
    with storage_errors(job / DIRECTORY):
        (job / DIRECTORY).mkdir(mode=0o700, exist_ok=True)
    for path, text in (
        (page_of(job), html(report)),
        (document_of(job), report.model_dump_json(indent=1) + "\n"),
    ):
        write_whole(path, text.encode())


def read(job: Path) -> ReleaseReport | None:
    """Return the report of a job; ``None`` if there is none. Raises ``StorageError`` and ``DataError``."""
    path = document_of(job)
    try:
        with storage_errors(path):
            return ReleaseReport.model_validate_json(path.read_bytes()) if path.exists() else None
    except ValidationError:
        raise DataError(
            "report-damaged", "the file is not a release report, or another version wrote it",
            context=str(path), hint="continue the job, or run job report: the report is made again",
        ) from None  # fmt: skip


def remove(job: Path) -> None:
    """Remove the report, so that nobody takes it for a new one that fails. Raises ``StorageError``."""
    for path in (document_of(job), page_of(job)):
        with storage_errors(path), suppress(FileNotFoundError):
            path.unlink()


def remove_from(job: Path, first: int) -> None:
    """Remove the report of the step at ``first`` or a later one, or of the end. Raises as ``read`` and ``remove``."""
    try:
        report = read(job)
    except DataError:
        report = None
    if report is None or report.step is None or report.step >= first:
        remove(job)
