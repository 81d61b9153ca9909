"""``job report``: the release report of a job, from the files in its directory. Never imports Prefect."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from config import load_config
from flows.job.directory import JobDirectory
from flows.job.session import opened
from flows.job.which import by_directory
from flows.output import say, write
from flows.reports.short_form import lines
from flows.shell import about
from tasks.release_report import files
from tasks.release_report.document import ReleaseReport
from tasks.release_report.page import html
from tasks.shared.errors import InputError
from tasks.shared.files.out_file import write_file

STOPS = 5
"""The exit code with ``--check`` when something speaks against a release."""


@dataclass(frozen=True)
class Asked:
    """What somebody wants to see, and where."""

    config: str
    job: str
    overrides: Sequence[str] = ()
    recipient: bool = False
    as_json: bool = False
    browser: bool = False
    out: Path | None = None
    check: bool = False


def report(asked: Asked) -> int:
    """Print where the newest report of a job is, its stops and what to look at; 0, or ``STOPS`` with ``check``.

    Raises:
        InputError: there is no such job, or no report of it.
        DataError: what stands in its place is none.
        StorageError: the copy cannot be written.
    """
    loaded = load_config(Path(asked.config), overrides=asked.overrides)
    jobs_dir = loaded.config.jobs_dir
    job = by_directory(jobs_dir, asked.job)
    if job is None:  # the record knows
        with opened(loaded) as session:
            job = session.find(asked.job)
    directory = JobDirectory.of(jobs_dir, job)
    found = _found(directory, recipient=asked.recipient)
    place = files.document if asked.as_json else files.page
    path = place(directory.path, found.step, recipient=asked.recipient)
    text = f"{found.model_dump_json(indent=2)}\n"
    if asked.out is not None:
        path = write_file(asked.out.absolute(), (text if asked.as_json else html(found)).encode())
    if asked.as_json and asked.out is None:
        write(text)
    else:
        say("\n".join([str(path), *lines(found)]))
    if asked.browser and not webbrowser.open(_page_of(asked, directory, found, path).as_uri()):
        say("no browser was found here: open the file above in one", err=True)
    return STOPS if asked.check and found.tiles.stops else 0


def _page_of(asked: Asked, directory: JobDirectory, found: ReleaseReport, path: Path) -> Path:
    """What a browser opens."""
    return files.page(directory.path, found.step, recipient=asked.recipient) if asked.as_json else path


def _found(directory: JobDirectory, *, recipient: bool) -> ReleaseReport:
    if not directory.path.is_dir():
        raise InputError(
            "job-unknown",
            "there is no directory of such a job",
            context=str(directory.path),
            hint=f"see: {about('job list')}",
        )
    found = files.newest(directory.path, recipient=recipient)
    if found is None:
        raise InputError(
            "no-report", "this job has no release report", context=str(directory.path / files.DIRECTORY),
            hint="it is made before a decision and at the end; the job's page says why not",
        )  # fmt: skip
    return found
