"""``extraction preview | list | show | pause | resume | cancel | delete | prioritize``: document 2, on a terminal.

The cohort preview and the Task API of the extraction server, independent of our jobs. Never imports Prefect.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.commands import complete
from flows.commands.options import config_argument, set_option
from flows.job.which import begun, exact, nearest, one_of
from flows.output import print_findings, print_json, print_line
from flows.shell import about
from tasks.shared.errors import InputError, ServiceError, SluiceError
from tasks.shared.files.named_file import check_target
from tasks.shared.units import human_count, human_seconds

if TYPE_CHECKING:
    from tasks.extractor.server import ExtractionServer
    from tasks.extractor.task import ExtractionTask

_STATUSES = (
    "PENDING", "RUNNING_GET_COHORT", "RUNNING_PROCESS_BATCH", "RUNNING_PROCESS_CORE", "PAUSED", "TEMP_FAILED",
    "COMPLETED", "FAILED", "CANCELLED",
)  # fmt: skip

_ALLOWED = {
    "pause": "only a running job can be paused",
    "resume": "only a paused job can be resumed",
    "cancel": "a job that is completed, failed or cancelled cannot be cancelled",
}
"""In which states a job may be changed."""

_KEPT_CHANGING = (
    "extraction-version", "the priority was not changed: the job kept changing meanwhile",
    "try again in a moment: its version moves on whenever a batch finishes",
)  # fmt: skip
_REFUSED = {
    ("prioritize", 409): _KEPT_CHANGING,
    ("prioritize", 412): _KEPT_CHANGING,
    ("prioritize", 428): (
        "extraction-precondition", "the server did not receive the version (If-Match)",
        "a proxy may remove the header If-Match",
    ),
    ("delete", 500): (
        "extraction-delete", "the server could not remove the result files of the job",
        "see its log: files may be left on its disk",
    ),
}  # fmt: skip
"""What a status means for an operation: reference, message and hint."""


@click.group("extraction")
def group() -> None:
    """Preview a cohort; control the extraction server's jobs."""


_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _on_jobs(one: Callable[..., ExtractionTask | None], *, in_full: bool = False) -> Callable[..., int]:
    """Return a command that calls ``one`` for each job given; its further options are passed on."""

    @functools.wraps(one)
    def command(config: str, ids: tuple[str, ...], overrides: tuple[str, ...], as_json: bool, **options: Any) -> int:
        each = functools.partial(one, **options)
        return _each(config, ids, each, overrides=overrides, as_json=as_json, in_full=in_full)

    several = click.argument("ids", nargs=-1, required=True, metavar="ID…")
    for decorate in (_json_option, set_option, several, config_argument):
        command = decorate(command)
    return command


@group.command()
@config_argument
@click.argument("crtdl", shell_complete=complete.files)
@click.option(
    "--ids",
    "target",
    metavar="FILE",
    shell_complete=complete.files,
    help="Write the patient ids there, one a line, as --patients reads them.",
)
@set_option
@_json_option
def preview(config: str, crtdl: str, target: str | None, overrides: tuple[str, ...], as_json: bool) -> int:
    """Print how many patients a CRTDL selects. CRTDL may also be a bare cohort definition (CCDL).

    The server evaluates the cohort, creates no job and stores nothing.
    """
    from tasks.extractor.query import read_query
    from tasks.shared.files.out_file import write_file

    if target is not None:
        check_target("--ids", Path(target))
    query = read_query(Path(crtdl))
    with _opened(config, overrides) as client:
        ids = client.evaluate_cohort(query)
    if target is not None:
        # Readable by this user only.
        write_file(Path(target), "".join(f"{patient}\n" for patient in ids).encode())
    if as_json:
        print_json({"patients": len(ids), "ids": target})
    else:
        print_line(human_count(len(ids), "patient"))
        if target is not None:
            print_line(f"ids: {target}")
    return 0


@group.command("list")
@config_argument
@click.argument("ids", nargs=-1, metavar="[ID…]")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(_STATUSES, case_sensitive=False),
    help="Only jobs in this state; repeatable.",
)
@click.option("--lenient", is_flag=True, help="Let the server ignore unsupported search parameters.")
@set_option
@_json_option
def list_(
    config: str,
    ids: tuple[str, ...],
    statuses: tuple[str, ...],
    lenient: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> int:
    """List the server's extraction jobs, newest first. Includes those of other clients.

    The ids are the server's, not those of pipeline jobs; pipeline status shows the extraction of a job.
    """
    with _opened(config, overrides) as client:
        try:
            tasks = client.tasks(_named(client, ids), [status.upper() for status in statuses], strict=not lenient)
        except ServiceError as error:
            if error.answered != 400:
                raise
            raise InputError(
                "extraction-search", "the extraction server does not accept the search", context=error.context,
                hint="it may not support one of the states; with --lenient it ignores those",
                operation="task", status=400,
            ) from None  # fmt: skip
    if as_json:
        print_json([task.as_dict() for task in tasks])
        return 0
    if not tasks:
        print_line("no extraction jobs")
        return 0
    print_line(f"{'EXTRACTION':36}  {'STATE':21}  {'PRIORITY':8}  {'AUTHORED':20}  PROGRESS")
    for task in tasks:
        authored = (task.authored or "")[:19].replace("T", " ")
        progress = task.describe_progress()
        print_line(f"{task.id:36}  {task.state:21}  {task.priority:8}  {authored:20}  {progress}")
    return 0


@group.command()
@functools.partial(_on_jobs, in_full=True)
def show(client: ExtractionServer, job_id: str) -> ExtractionTask:
    """Show jobs: state, priority, times and progress."""
    return client.task(job_id)


@group.command()
@_on_jobs
def pause(client: ExtractionServer, job_id: str) -> ExtractionTask:
    """Pause running jobs. The current batch is finished."""
    return client.change(job_id, "pause")


@group.command()
@_on_jobs
def resume(client: ExtractionServer, job_id: str) -> ExtractionTask:
    """Resume paused jobs where they stopped."""
    return client.change(job_id, "resume")


@group.command()
@_on_jobs
def cancel(client: ExtractionServer, job_id: str) -> ExtractionTask:
    """Cancel jobs for good. A pipeline that waits for one ends with an error."""
    return client.change(job_id, "cancel")


@group.command()
@_on_jobs
def delete(client: ExtractionServer, job_id: str) -> None:
    """Remove jobs and their result files from the server. Also while they run."""
    client.delete(job_id)


@group.command()
@_on_jobs
@click.option(
    "--priority",
    type=click.Choice(["high", "normal"]),
    default="high",
    show_default=True,
    help="Jobs with high priority start before normal ones.",
)
def prioritize(client: ExtractionServer, job_id: str, priority: str) -> ExtractionTask:
    """Change the priority of jobs. The version is read again if it has changed in between."""
    from tasks.extractor.task import Priority

    return client.prioritize(job_id, Priority(priority))


@contextmanager
def _opened(config: str, overrides: Sequence[str] = ()) -> Iterator[ExtractionServer]:
    """Open the client of the configured server."""
    from flows.jobs_dir import load
    from tasks.extractor.server import extraction_server

    loaded = load(config, overrides)
    print_findings(loaded.warnings)
    with extraction_server(loaded.config) as server:
        yield server


def _named(client: ExtractionServer, ids: Sequence[str]) -> list[str]:
    """Return the ids as the server writes them, each once; for the beginning of an id, the server's jobs are listed.

    Raises ``InputError`` (``extraction-id``, ``id-ambiguous``, ``extraction-unknown``). There is no "latest": the
    server also has jobs of others.
    """
    see = f"see: {about('extraction list')}"
    hint = f"{see}; pipeline status shows the one of a pipeline job"
    starts = {text: begun(text, reference="extraction-id", hint=hint) for text in ids if exact(text) is None}
    known = [task.id for task in client.tasks()] if starts else []
    found: dict[str, None] = {}
    for text in ids:
        job = exact(text) or one_of(starts[text], known)
        if job is None:
            raise InputError(
                "extraction-unknown", f"no extraction job's id begins with {starts[text]}",
                context=f"{human_count(len(known), 'extraction job')} on the server",
                hint=f"{nearest(starts[text], known)}{see}",
            )  # fmt: skip
        found[job] = None
    return list(found)


def _each(
    config: str,
    ids: Sequence[str],
    one: Callable[[ExtractionServer, str], ExtractionTask | None],
    *,
    overrides: Sequence[str],
    as_json: bool,
    in_full: bool,
) -> int:
    """Call ``one`` for each job, also after one has failed; return the exit code of the worst."""
    errors: list[SluiceError] = []
    documents: list[dict[str, Any]] = []
    with _opened(config, overrides) as client:
        for job_id in _named(client, ids):
            try:
                task = one(client, job_id)
            except SluiceError as error:
                problem = _explained(error, client, job_id)
                errors.append(problem)
                print_findings([problem])
                continue
            if as_json:
                documents.append(task.as_dict() if task is not None else {"id": job_id, "deleted": True})
            elif task is None:
                print_line(f"{job_id} is deleted")
            else:
                brief = f"{task.id} {task.state}, priority {task.priority}"
                print_line(_in_full(task) if in_full else brief)
    if as_json:
        print_json(documents)
    # What a person must mend comes before what may mend itself.
    return next((code for code in (2, 1, 3) if any(error.exit_code == code for error in errors)), 0)


def _explained(error: SluiceError, client: ExtractionServer, job_id: str) -> SluiceError:
    """Return the error of an operation on one job, worded for that job if its status has a special meaning."""
    operation, status = str(error.operation), error.answered
    if status == 404:
        return InputError(
            "extraction-unknown", "the extraction server has no such job", context=job_id, operation=error.operation,
            status=404, hint=f"see: {about('extraction list')}; is services.extractor.base_url the right server?",
        )  # fmt: skip
    known = _REFUSED.get((operation, status or 0))
    if operation in _ALLOWED and status in (409, 412):
        message = f"the state of the job does not allow to {operation} it: {_state(client, job_id)}"
        known = "extraction-state", message, _ALLOWED[operation]
    if known is None:
        return error
    reference, message, hint = known
    return ServiceError(reference, message, context=job_id, hint=hint, operation=operation, status=error.status)


def _state(client: ExtractionServer, job_id: str) -> str:
    task = client.look(job_id)
    return (task.status if task is not None else "") or "not known"


def _in_full(task: ExtractionTask) -> str:
    facts = {
        "state": f"{task.status} ({task.task_status})" if task.status else task.task_status,
        "priority": str(task.priority),
        "version": task.version,
        "authored": task.authored,
        "started": task.started,
        "ended": task.ended,
        "took": human_seconds(task.seconds) if task.seconds is not None else None,
        "progress": task.describe_progress(),
        "batch size": task.progress.batch_size if task.progress else None,
        "consent audit files": len(task.consent_urls) or None,
    }
    lines = [f"extraction {task.id}", *(f"  {name:20} {value}" for name, value in facts.items() if value)]
    return "\n".join(lines)
