"""``extraction preview | list | show | pause | resume | cancel | delete | prioritize``: the extraction server's jobs.

The cohort preview and the Task API of the extraction server, independent of our jobs. Never imports Prefect.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.commands import complete
from flows.commands.options import config_argument, set_option
from flows.jobs_dir import load
from flows.output import patience, print_findings, print_line
from flows.shell import about
from tasks.extractor.query import read_query
from tasks.extractor.task import PRIORITIES, ExtractionTask
from tasks.shared.errors import InputError, ServiceError, SluiceError, shown
from tasks.shared.files.part_file import write_whole
from tasks.shared.units import human_count, human_seconds

if TYPE_CHECKING:
    from tasks.extractor.server import ExtractionServer

SHORTEST, WHOLE = 4, 36
"""Fewest characters of the beginning of an id, and the number of a whole id."""

_ALLOWED = {
    "pause": "only a running job can be paused",
    "resume": "only a paused job can be resumed",
    "cancel": "a job that is completed, failed or cancelled cannot be cancelled",
}
"""Hints by operation: in which states it is possible."""


@click.group("extraction")
def group() -> None:
    """Preview a cohort; control the extraction server's jobs.

    CONFIG is the YAML configuration file. ID is the id of a job on the extraction server, or its first characters (four
    or more).
    """


def _on_jobs(one: Callable[..., ExtractionTask | None]) -> Callable[..., int]:
    """Return a command that calls ``one`` for each given job, and returns the exit code of the first error or 0."""

    @functools.wraps(one)
    def command(config: str, ids: tuple[str, ...], overrides: tuple[str, ...], **options: Any) -> int:
        code = 0
        with _opened(config, overrides) as server:
            for job_id in _named(server, ids):
                try:
                    task = one(server, job_id, **options)
                except SluiceError as error:
                    problem = _explained(error, server, job_id)
                    code = code or problem.exit_code
                    print_findings([problem])
                    continue
                print_line(_described(task) if task is not None else f"{job_id} is deleted")
        return code

    several = click.argument("ids", nargs=-1, required=True, metavar="ID…")
    for decorate in (set_option, several, config_argument):
        command = decorate(command)
    return command


@group.command()
@config_argument
@click.argument("crtdl", type=complete.FILE)
@click.option(
    "--ids",
    "target",
    metavar="FILE",
    type=complete.FILE,
    help="Write the patient ids there, one a line, as --patients reads them.",
)
@set_option
def preview(config: str, crtdl: str, target: str | None, overrides: tuple[str, ...]) -> None:
    """Print how many patients a CRTDL selects. CRTDL may also be a bare cohort definition (CCDL).

    The server evaluates the cohort, creates no job and stores nothing.
    """
    path = Path(target or "ids")
    replaceable = path.is_file() and not path.is_symlink()
    if target and not replaceable and (os.path.lexists(path) or not path.parent.is_dir()):
        hint = "name a new file, or one that is to be replaced"
        raise InputError("file-unwritable", "the ids cannot be written there", context=f"--ids: {path}", hint=hint)
    query = read_query(Path(crtdl))
    with _opened(config, overrides) as server:
        ids = server.evaluate_cohort(query)
    print_line(human_count(len(ids), "patient"))
    if target is not None:
        write_whole(path, "".join(f"{patient}\n" for patient in ids).encode())
        print_line(f"ids: {target}")


@group.command("list")
@config_argument
@click.argument("ids", nargs=-1, metavar="[ID…]")
@set_option
def list_(config: str, ids: tuple[str, ...], overrides: tuple[str, ...]) -> None:
    """List the server's extraction jobs, newest first. Includes those of other clients.

    The ids are the server's, not those of pipeline jobs; pipeline status shows the extraction of a job.
    """
    with _opened(config, overrides) as server:
        tasks = server.tasks(_named(server, ids))
    if not tasks:
        print_line("no extraction jobs")
        return
    print_line(f"{'EXTRACTION':36}  {'STATE':21}  {'PRIORITY':8}  {'AUTHORED':20}  PROGRESS")
    for task in tasks:
        authored = task.authored[:19].replace("T", " ")
        print_line(f"{task.id:36}  {task.state:21}  {task.priority:8}  {authored:20}  {task.progress}")


@group.command()
@_on_jobs
def show(server: ExtractionServer, job_id: str) -> ExtractionTask:
    """Show jobs: state, priority, times and progress."""
    return server.task(job_id)


@group.command()
@_on_jobs
def pause(server: ExtractionServer, job_id: str) -> ExtractionTask:
    """Pause running jobs. The current batch is finished."""
    return server.change(job_id, "pause")


@group.command()
@_on_jobs
def resume(server: ExtractionServer, job_id: str) -> ExtractionTask:
    """Resume paused jobs where they stopped."""
    return server.change(job_id, "resume")


@group.command()
@_on_jobs
def cancel(server: ExtractionServer, job_id: str) -> ExtractionTask:
    """Cancel jobs permanently. A pipeline that waits for one ends with an error."""
    return server.change(job_id, "cancel")


@group.command()
@_on_jobs
def delete(server: ExtractionServer, job_id: str) -> None:
    """Remove jobs and their result files from the server. Also while they run."""
    server.delete(job_id)


@group.command()
@_on_jobs
@click.option(
    "--priority",
    type=click.Choice([*PRIORITIES]),
    default="high",
    show_default=True,
    help="Jobs with high priority start before normal ones.",
)
def prioritize(server: ExtractionServer, job_id: str, priority: str) -> ExtractionTask:
    """Change the priority of jobs."""
    return server.prioritize(job_id, priority)


@contextmanager
def _opened(config: str, overrides: Sequence[str]) -> Iterator[ExtractionServer]:
    from tasks.extractor.server import extraction_server

    loaded = load(config, overrides)
    print_findings(loaded.warnings)
    with patience("asking the extraction server"), extraction_server(loaded.config) as server:
        yield server


def _named(server: ExtractionServer, ids: Sequence[str]) -> list[str]:
    """Return whole ids. To complete the beginning of an id, list the server's jobs.

    Raises ``InputError`` (``extraction-unknown``, ``id-ambiguous``).
    """
    whole = all(len(text) == WHOLE for text in ids)
    known = [] if whole else [task.id for task in server.tasks()]
    found = []
    for text in ids:
        meant = [text] if len(text) == WHOLE else [one for one in known if one.startswith(text.lower())]
        if len(text) < SHORTEST or not meant:
            raise InputError(
                "extraction-unknown", f"no extraction job's id begins with {shown(text)}",
                context=f"give the id, or at least its first {SHORTEST} characters",
                hint=f"see: {about('extraction list')}",
            )  # fmt: skip
        if len(meant) > 1:
            raise InputError("id-ambiguous", f"{len(meant)} ids begin with {text}", context=", ".join(meant))
        found += meant
    return found


def _explained(error: SluiceError, server: ExtractionServer, job_id: str) -> SluiceError:
    """Return the error of an operation on one job, reworded if its HTTP status has a special meaning there."""
    operation, status = str(error.operation), error.answered
    if status == 404:
        hint = f"see: {about('extraction list')}; is services.extractor.base_url the right server?"
        return InputError("extraction-unknown", "the extraction server has no such job", context=job_id, hint=hint)
    if operation in _ALLOWED and status == 409:
        task = server.look(job_id)
        state = task.state if task is not None else "not known"
        what = f"{operation} is not allowed in the job's state: {state}"
        return ServiceError("extraction-state", what, context=job_id, hint=_ALLOWED[operation])
    return error


def _described(task: ExtractionTask) -> str:
    facts = {
        "state": f"{task.state} ({task.task_status})",
        "priority": task.priority,
        "authored": task.authored,
        "started": task.started,
        "ended": task.ended,
        "took": human_seconds(task.seconds) if task.seconds is not None else None,
        "progress": task.progress,
        "consent audit files": len(task.consent_urls) or None,
    }
    return "\n".join([f"extraction {task.id}", *(f"  {name:20} {value}" for name, value in facts.items() if value)])
