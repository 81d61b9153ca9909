"""``job report``: show the release report of a job from the files in its directory.

A report that failed, or that does not cover the current files, is made again first; otherwise Prefect is not imported.
"""

from __future__ import annotations

import webbrowser
from collections.abc import Iterable
from pathlib import Path

from flows.job.directory import JobDirectory
from flows.job.record import JobRecord
from flows.job.session import opened
from flows.jobs_dir import load
from flows.output import print_line, write
from flows.reports.short_form import lines
from tasks.release_report.page import files
from tasks.release_report.report.document import ReleaseReport
from tasks.shared.errors import DataError, InputError
from tasks.shared.files.inventory import take_inventory
from tasks.shared.report import StepReport
from tasks.shared.stop import Stop

STOPS = 5
"""The exit code with ``--check`` when something speaks against a release."""


def report(config: str, job: str, overrides: tuple[str, ...], *, as_json: bool, browser: bool, check: bool) -> int:
    """Print the path of a job's newest report, its stops and points to check; return 0, or ``STOPS`` with ``check``.

    Raises:
        InputError: there is no such job, or it has no report.
        DataError: the report is damaged; with ``check``, the data files are not those that it covers.
    """
    loaded = load(config, overrides)
    with opened(loaded, job) as session:
        record = session.job(session.find(job))
        directory = JobDirectory.of(session.jobs_dir, record.id)
    if _is_due(record):
        from flows.commands import continue_job

        continue_job.report_again(continue_job.ContinueRequest(config, record.id, overrides))
        with opened(loaded, record.id) as session:
            record = session.job(record.id)
    found = _found(directory, record)
    page = files.page(directory.path, found.step)
    if as_json:
        write(f"{found.model_dump_json(indent=2)}\n")
    else:
        print_line("\n".join([str(page), *lines(found)]))
    if browser and not webbrowser.open(page.as_uri()):
        print_line("no browser found: open the file above yourself", err=True)
    if check and not found.tiles.stops and not is_still_there(directory.path, record.steps, found.files):
        raise DataError(
            "report-differs", "the release report was made from other files", context=str(directory.path),
            hint="restore the files: the report covers only the original ones",
        )  # fmt: skip
    return STOPS if check and found.tiles.stops else 0


def _is_due(record: JobRecord) -> bool:
    """Return whether the report of a waiting or complete job is missing."""
    waiting = record.undecided
    shown = record.shown.get(waiting.position) if waiting is not None else record.shown_at_the_end
    return (waiting is not None or record.done) and (shown is None or shown.page is None)


def is_still_there(job_dir: Path, steps: Iterable[StepReport], digest: str) -> bool:
    """Return whether the files with this digest are in a data directory of the job. Raises ``StorageError``."""
    places = dict.fromkeys(name for step in steps for name in (step.directory, step.output) if name)
    return any(take_inventory(job_dir, [job_dir / name], stop=Stop()).digest == digest for name in reversed(places))


def _found(directory: JobDirectory, record: JobRecord) -> ReleaseReport:
    step, shown = record.newest_report
    if shown is None or shown.page is None:
        missing = shown.failed if shown is not None else None
        raise InputError(
            "no-report", "this job has no release report" if missing is None else "the release report is missing",
            context=missing if missing is not None else str(directory.path / files.DIRECTORY),
            hint="reports are made before a decision and at the end; the job's page gives the reason",
        )  # fmt: skip
    found = files.read(directory.path, step)
    if found is None:
        raise DataError(
            "report-damaged", "the release report is missing", context=str(files.document(directory.path, step)),
            hint="continue the job to make it again",
        )  # fmt: skip
    return found
