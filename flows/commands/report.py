"""``job report``: show the release report of a job from the files in its directory, if the record matches them.

As at the gate, an edited file is refused. A report that failed, or that does not cover the current files, is made again
first; otherwise Prefect is not imported.
"""

from __future__ import annotations

import webbrowser
from pathlib import Path

from pydantic import ValidationError

from config import ConfigError
from flows.gate.reviewed_files import is_still_there, why_again
from flows.gate.rules import GONE, OTHER_THAN_SEEN
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


def report(
    config: str,
    job: str,
    overrides: tuple[str, ...],
    *,
    recipient: bool,
    as_json: bool,
    browser: bool,
    out: Path | None,
    check: bool,
) -> int:
    """Print the path of a job's newest report, its stops and points to check; return 0, or ``STOPS`` with ``check``.

    Raises:
        InputError: there is no such job, it has no report, or the copy cannot be written there.
        DataError: the report is damaged, or is not the recorded one; with ``check``, the data files are not those that
            it covers.
        StorageError: the copy cannot be written.
    """
    if out is not None:
        check_target("--out", out)
    loaded = load(config, overrides)
    with opened(loaded, job) as session:
        record = session.job(session.find(job))
        directory = JobDirectory.of(session.jobs_dir, record.id)
    if _is_due(directory, record):
        from flows.commands import continue_job

        continue_job.report_again(continue_job.ContinueRequest(config, record.id, overrides))
        with opened(loaded, record.id) as session:
            record = session.job(record.id)
    found = _found(directory, record, recipient=recipient)
    page = files.page(directory.path, found.step, recipient=recipient)
    path = files.document(directory.path, found.step, recipient=recipient) if as_json else page
    text = f"{found.model_dump_json(indent=2)}\n"
    if out is not None:
        path = write_file(out.absolute(), (text if as_json else html(found)).encode())
        page = page if as_json else path
    if as_json and out is None:
        write(text)
    else:
        print_line("\n".join([str(path), *lines(found)]))
    if browser and not webbrowser.open(page.as_uri()):
        print_line("no browser found: open the file above yourself", err=True)
    if check and not found.tiles.stops and not is_still_there(directory.path, record.steps, found.files):
        raise DataError(
            "report-differs", OTHER_THAN_SEEN, context=str(directory.path),
            hint="restore the files: the report covers only the original ones",
        )  # fmt: skip
    return STOPS if check and found.tiles.stops else 0


def _is_due(directory: JobDirectory, record: JobRecord) -> bool:
    """Return whether the report of a waiting or complete job failed or does not cover the current files."""
    try:
        config = JobInputs.of(record.parameters).load().config
    except (ValidationError, ConfigError):
        return False  # of another version, or the file is gone: the report that is there is shown
    return why_again(directory.path, record, config, on_demand=True) is not None


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
