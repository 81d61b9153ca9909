"""The files of release reports in a job's directory: written whole, private, read with a look at what they are.

``report/step-<position>/`` has the report for the decision at that step, ``report/`` the one of the job's end: in each
place ``release-report.html`` and ``.json``, 0600 (document 5, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from tasks.release_report.page.page import html
from tasks.release_report.report.document import Decided, ReleaseReport
from tasks.shared.errors import DataError, storage_errors
from tasks.shared.files.out_file import PartFile, publish

DIRECTORY: Final = "report"

_NAME: Final = "release-report"
_STEP: Final = "step-"


def place(job: Path, step: int | None) -> Path:
    """Return the directory of the report for the decision at ``step``, or of the one at the end without a step."""
    return job / DIRECTORY if step is None else job / DIRECTORY / f"{_STEP}{step}"


def page(job: Path, step: int | None) -> Path:
    """Return the path of the page, which may not exist."""
    return place(job, step) / f"{_NAME}.html"


def document(job: Path, step: int | None) -> Path:
    """Return the path of the JSON document."""
    return page(job, step).with_suffix(".json")


def write(job: Path, report: ReleaseReport) -> Path:
    """Write a report; return its page.

    The files get their names when both are complete, the JSON last: who finds it finds the page.

    Raises:
        StorageError: one of them cannot be written; those of before are still there.
    """
    _write(job, report)
    return page(job, report.step)


def read(job: Path, step: int | None) -> ReleaseReport | None:
    """Return the report of the JSON document; ``None`` if there is none.

    Raises:
        DataError: the file is no release report.
    """
    path = document(job, step)
    try:
        return ReleaseReport.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _damaged(path, f"the release report cannot be read: {error.strerror}") from None
    except ValidationError:
        raise _damaged(path, "the file is not a release report, or another version wrote it") from None


def decided(job: Path, step: int | None, decisions: Sequence[object]) -> None:
    """Put the decisions into a report and its page.

    Nothing happens where there is no report. Raises ``DataError`` and ``StorageError`` as ``read`` and ``write`` do.
    """
    report = read(job, step)
    if report is not None:
        _write(job, report.model_copy(update={"decisions": tuple(map(Decided.of, decisions))}))


def remove(job: Path, step: int | None) -> None:
    """Remove the report that was there: when a new one fails, nobody shall take the old one for it.

    Raises ``StorageError``, also where something stands that is no file.
    """
    for path in (page(job, step), document(job, step)):
        with storage_errors(path), suppress(FileNotFoundError):
            path.unlink()


def remove_from(job: Path, first: int) -> None:
    """Remove the reports of the decisions from the step at ``first`` on, and that of the end. Raises ``StorageError``.

    For a job that makes again what they were about.
    """
    remove(job, None)
    for path in (job / DIRECTORY).glob(f"{_STEP}[0-9]*"):
        step = path.name.removeprefix(_STEP)
        if step.isascii() and step.isdecimal() and int(step) >= first:
            remove(job, int(step))


def _write(job: Path, report: ReleaseReport) -> None:
    texts = {
        page(job, report.step): html(report).encode(),
        document(job, report.step): report.model_dump_json(indent=1).encode() + b"\n",
    }
    parts: list[PartFile] = []
    try:
        for path, content in texts.items():
            parts.append(PartFile(path))
            parts[-1].write(content)
            parts[-1].sync()
        for part in parts:
            part.close()
        publish(*((part.path, part.final) for part in parts))
    finally:
        for part in parts:
            part.abort()


def _damaged(path: Path, why: str) -> DataError:
    return DataError("report-damaged", why, context=str(path), hint="continue the job to make it again")
