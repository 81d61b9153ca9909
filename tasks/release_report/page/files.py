"""The files of release reports in a job's directory: written whole, private, read with a look at what they are.

``report/step-<position>/`` has the report for the decision at that step, ``report/`` the one of the job's end. Each
place has ``release-report.html`` and ``.json``, the in-house copy, ``release-report.recipient.html`` and ``.json``, the
recipient's, and ``files.csv``, every file that leaves. All are 0600 (document 5, section 3).
"""

from __future__ import annotations

import csv
import errno
import io
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from tasks.release_report.measure.measured import MeasuredFile
from tasks.release_report.page.page import html
from tasks.release_report.report.document import Decided, ReleaseReport, decisions_for, sha256
from tasks.shared.errors import DataError, SluiceError, StorageError, storage_errors
from tasks.shared.files.out_file import PartFile, as_text, publish, size_of
from tasks.shared.report import Approval

DIRECTORY: Final = "report"
FILES: Final = "files.csv"

_NAME: Final = "release-report"
_STEP: Final = "step-"


def place(job: Path, step: int | None) -> Path:
    """Return the directory of the report for the decision at ``step``, or of the one at the end without a step."""
    return job / DIRECTORY if step is None else job / DIRECTORY / f"{_STEP}{step}"


def page(job: Path, step: int | None, *, recipient: bool = False) -> Path:
    """Return the path of the page, which may not exist."""
    return place(job, step) / f"{_NAME}{'.recipient' if recipient else ''}.html"


def document(job: Path, step: int | None, *, recipient: bool = False) -> Path:
    """Return the path of the JSON document."""
    return page(job, step, recipient=recipient).with_suffix(".json")


def write(job: Path, report: ReleaseReport, recipient: ReleaseReport | None, files: Sequence[MeasuredFile]) -> Path:
    """Write a report, the recipient's copy and the list of files; return the in-house page.

    The files get their names when all are complete, the in-house JSON last: who finds it finds the others.

    Raises:
        StorageError: one of them cannot be written; those of before are still there.
    """
    texts = {place(job, report.step) / FILES: _csv(files)}
    for one in (recipient, report):
        if one is not None:
            texts |= _texts(job, one)
    _write(texts)
    return page(job, report.step)


def read(job: Path, step: int | None, *, recipient: bool = False) -> ReleaseReport | None:
    """Return the report of the JSON document; ``None`` if there is none.

    Raises:
        DataError: the file is no release report.
    """
    path = document(job, step, recipient=recipient)
    try:
        return ReleaseReport.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _damaged(path, f"the release report cannot be read: {error.strerror}") from None
    except ValidationError:
        raise _damaged(path, "the file is not a release report, or another version wrote it") from None


def is_as_made(job: Path, step: int | None, digest: str) -> bool:
    """Return whether the report has this SHA-256 and the page beside it shows that report."""
    try:
        report = read(job, step)
    except SluiceError:
        return False
    return report is not None and sha256(report) == digest and _page_shows(page(job, step), report)


def _page_shows(path: Path, report: ReleaseReport) -> bool:
    """Return whether the page is what ``html`` makes of the report.

    A page of another version may be rendered differently, so only its existence is checked.
    """
    made_by = next((row[1] for row in report.rows("versions") if row[0] == "sluice"), None)
    if made_by is not None and made_by != metadata.version("sluice"):
        return size_of(path) > 0
    try:
        return path.read_bytes() == html(report).encode()
    except OSError:
        return False


def decided(job: Path, step: int | None, decisions: Sequence[Approval], *, copy_to: Path | None = None) -> None:
    """Put the decisions into a report and its page, and into the copy in ``copy_to``, where it is. The recipient reads
    who decided and when, not the words beside it.

    Nothing happens where there is no report. Raises ``DataError`` and ``StorageError`` as ``read`` and ``write`` do.
    """
    texts: dict[Path, bytes] = {}
    for recipient in (True, False):
        report = read(job, step, recipient=recipient)
        if report is not None:
            of_record = map(Decided.of, decisions)
            report = report.model_copy(update={"decisions": decisions_for(of_record, recipient=recipient)})
            texts |= _texts(job, report)
    _write(texts)
    if report is not None and copy_to is not None and size_of(copy_to / name_of_copy(report.job, report.step)) > 0:
        copy(report, copy_to)


def remove(job: Path, step: int | None) -> None:
    """Remove the report that was there: when a new one fails, nobody shall take the old one for it.

    Raises ``StorageError``, also where something stands that is no file.
    """
    for path in (each(job, step, recipient=one) for one in (True, False) for each in (page, document)):
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


def remove_copy(directory: Path, job: str, step: int | None) -> None:
    """Remove the copy of this job's report in ``directory``. Raise ``StorageError``."""
    with storage_errors(directory), suppress(FileNotFoundError):
        (directory / name_of_copy(job, step)).unlink()


def name_of_copy(job: str, step: int | None) -> str:
    """Return what the page is called where ``report.copy_to`` puts it: one for each decision of each job."""
    return f"{_NAME}-{job}{'' if step is None else f'-{_STEP}{step}'}.html"


def copy(report: ReleaseReport, directory: Path) -> Path:
    """Put the page into ``directory``, 0640 and of its group, for a reader without a shell; where it is.

    Raises:
        StorageError: there is no such directory, it cannot be written, or its group is not one of this user's.
    """
    final = directory / name_of_copy(report.job, report.step)
    with storage_errors(directory):
        found = directory.stat()
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    with PartFile(final) as part:
        part.write(html(report).encode())
        try:
            # A directory with the setgid bit has given it the group already, also where a process may change no group.
            if _group_of(part.path) != found.st_gid:
                os.chown(part.path, -1, found.st_gid)
        except OSError as error:
            raise StorageError(
                "report-copy-group", f"the group of the page cannot be set to that of the directory: {error.strerror}",
                context=str(directory), hint="make this user a member of that group",
            ) from None  # fmt: skip
        with storage_errors(final):
            part.path.chmod(0o640)
        return part.commit()


def _group_of(path: Path) -> int:
    return path.stat().st_gid


def _texts(job: Path, report: ReleaseReport) -> dict[Path, bytes]:
    return {
        page(job, report.step, recipient=report.recipient): html(report).encode(),
        document(job, report.step, recipient=report.recipient): report.model_dump_json(indent=1).encode() + b"\n",
    }


def _write(texts: dict[Path, bytes]) -> None:
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


def _csv(files: Sequence[MeasuredFile]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("name", "stored bytes", "content bytes", "lines", "resources", "sha256"))
    for one in files:
        writer.writerow((as_text(one.name), one.bytes, one.content, one.lines, one.resources, one.sha256))
    return text.getvalue().encode(errors="backslashreplace")


def _damaged(path: Path, why: str) -> DataError:
    return DataError("report-damaged", why, context=str(path), hint="continue the job to make it again")
