"""``job report``: show the release report of a job from the files in its directory, if the record matches them.

As at the gate, an edited file is refused. A report that failed, or that does not cover the current files, is made again
first; otherwise Prefect is not imported.
"""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from config import ConfigError
from flows.gate.rules import GONE, OTHER_THAN_SEEN
from flows.gate.sight import is_still_there, why_again
from flows.job.directory import JobDirectory
from flows.job.inputs import JobInputs
from flows.job.record import JobRecord
from flows.job.session import opened
from flows.jobs_dir import load
from flows.output import print_line, write
from flows.reports.short_form import lines
from tasks.release_report.page import files
from tasks.release_report.page.page import html
from tasks.release_report.report.document import ReleaseReport
from tasks.shared.errors import DataError, InputError
from tasks.shared.files.named_file import check_target
from tasks.shared.files.out_file import write_file

STOPS = 5
"""The exit code with ``--check`` when something speaks against a release."""


@dataclass(frozen=True)
class ReportRequest:
    """The arguments of ``job report``."""

    config: str
    job: str
    overrides: Sequence[str] = ()
    recipient: bool = False
    as_json: bool = False
    browser: bool = False
    out: Path | None = None
    check: bool = False


def report(asked: ReportRequest) -> int:
    """Print the path of a job's newest report, its stops and points to check; return 0, or ``STOPS`` with ``check``.

    Raises:
        InputError: there is no such job, it has no report, or the copy cannot be written there.
        DataError: the report is damaged, or is not the recorded one; with ``check``, the data files are not those that
            it covers.
        StorageError: the copy cannot be written.
    """
    if asked.out is not None:
        check_target("--out", asked.out)
    loaded = load(asked.config, asked.overrides)
    with opened(loaded, asked.job) as session:
        record = session.job(session.find(asked.job))
        directory = JobDirectory.of(session.jobs_dir, record.id)
    if _is_due(directory, record):
        from flows.commands import continue_job

        continue_job.report_again(continue_job.ContinueRequest(asked.config, record.id, tuple(asked.overrides)))
        with opened(loaded, record.id) as session:
            record = session.job(record.id)
    found = _found(directory, record, recipient=asked.recipient)
    place = files.document if asked.as_json else files.page
    path = place(directory.path, found.step, recipient=asked.recipient)
    text = f"{found.model_dump_json(indent=2)}\n"
    if asked.out is not None:
        path = write_file(asked.out.absolute(), (text if asked.as_json else html(found)).encode())
    if asked.as_json and asked.out is None:
        write(text)
    else:
        print_line("\n".join([str(path), *lines(found)]))
    if asked.browser and not webbrowser.open(_page_of(asked, directory, found, path).as_uri()):
        print_line("no browser found: open the file above yourself", err=True)
    if asked.check and not found.tiles.stops and not is_still_there(directory.path, record.steps, found.files):
        raise DataError(
            "report-differs", OTHER_THAN_SEEN, context=str(directory.path),
            hint="restore the files: the report covers only the original ones",
        )  # fmt: skip
    return STOPS if asked.check and found.tiles.stops else 0


def _is_due(directory: JobDirectory, record: JobRecord) -> bool:
    """Return whether the report of a waiting or complete job failed or does not cover the current files."""
    try:
        config = JobInputs.of(record.parameters).load().config
    except (ValidationError, ConfigError):
        return False  # of another version, or the file is gone: the report that is there is shown
    return why_again(directory.path, record, config, on_demand=True) is not None


def _page_of(asked: ReportRequest, directory: JobDirectory, found: ReleaseReport, path: Path) -> Path:
    """Return the path of the page for a browser."""
    return files.page(directory.path, found.step, recipient=asked.recipient) if asked.as_json else path


def _found(directory: JobDirectory, record: JobRecord, *, recipient: bool) -> ReleaseReport:
    step, shown = record.newest_report
    if shown is None or shown.on_demand or shown.missing is not None:
        missing = shown.missing if shown is not None else None
        raise InputError(
            "no-report", "this job has no release report" if missing is None else "the release report is missing",
            context=missing if missing is not None else str(directory.path / files.DIRECTORY),
            hint="reports are made before a decision and at the end; the job's page gives the reason",
        )  # fmt: skip
    found = files.read(directory.path, step, recipient=recipient)
    if found is None or not files.is_as_made(directory.path, step, shown.sha256):
        raise DataError(
            "report-differs", GONE, context=str(files.document(directory.path, step)),
            hint="the report is not valid: it is made again when the job continues, before a decision",
        )  # fmt: skip
    return found
