"""What the ``extraction`` commands do: the cohort preview and the Task API of the extraction server (document 2)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import click

from config import load_config
from tasks.extractor.client import ExtractionClient
from tasks.extractor.connection import extraction_client, service_client
from tasks.extractor.task import ExtractionTask, Priority
from tasks.shared.errors import InputError, ServiceError, SluiceError, shown
from tasks.shared.fhir.crtdl import parse_document, read_content
from tasks.shared.files.out_file import write_file
from tasks.shared.units import human_seconds

_PAUSE = 0.2
"""Seconds before the version is read again after a 409, times the number of the attempt."""


@contextmanager
def opened(config: str, overrides: Sequence[str] = ()) -> Iterator[ExtractionClient]:
    """The client of the configured server; errors say what the server's answer means."""
    loaded = load_config(Path(config), overrides=overrides)
    for warning in loaded.warnings:
        click.echo(warning.render(), err=True)
    with service_client(loaded.config) as http:
        yield extraction_client(loaded.config, http)


def preview(config: str, crtdl: str, *, target: str | None, overrides: Sequence[str], as_json: bool) -> int:
    """Print the size of the cohort; write the ids to ``target``, readable by this user only."""
    path = Path(crtdl)
    content = read_content(path)
    _check_query(parse_document(content, path), path)
    with opened(config, overrides) as client:
        ids = client.evaluate_cohort(content)
    if target is not None:
        write_file(Path(target), "".join(f"{patient}\n" for patient in ids).encode())
    if as_json:
        click.echo(_dump({"patients": len(ids), "ids": target}))
    else:
        click.echo(f"{len(ids):,} patients")
        if target is not None:
            click.echo(f"ids: {target}")
    return 0


def _check_query(document: Any, path: Path) -> None:
    """A CRTDL or a bare CCDL; whether its criteria are right is for the server to say."""
    if not isinstance(document, dict) or not {"cohortDefinition", "inclusionCriteria"} & document.keys():
        raise InputError(
            "crtdl-keys", "neither a CRTDL (cohortDefinition) nor a CCDL (inclusionCriteria)", context=str(path),
            hint="give the query itself, not a FHIR resource that wraps it",
        )  # fmt: skip


def list_jobs(
    config: str, ids: Sequence[str], *, statuses: Sequence[str], strict: bool, overrides: Sequence[str], as_json: bool
) -> int:
    """Print the server's jobs, newest first."""
    with opened(config, overrides) as client:
        try:
            tasks = client.tasks(checked(ids), [status.upper() for status in statuses], strict=strict)
        except ServiceError as error:
            if error.status != 400:
                raise
            raise InputError(
                "extraction-search", "the extraction server does not accept the search", context=error.context,
                hint="it may not know a state; --lenient lets it ignore what it does not know",
                operation="task", status=400,
            ) from None  # fmt: skip
    if as_json:
        click.echo(_dump([task.as_dict() for task in tasks]))
        return 0
    if not tasks:
        click.echo("no extraction jobs")
        return 0
    click.echo(f"{'JOB':36}  {'STATE':21}  {'PRIORITY':8}  {'AUTHORED':20}  PROGRESS")
    for task in tasks:
        authored = (task.authored or "")[:19].replace("T", " ")
        click.echo(
            f"{task.id:36}  {task.status or task.task_status:21}  {task.priority:8}  {authored:20}  {_done(task)}"
        )
    return 0


def show(config: str, ids: Sequence[str], *, overrides: Sequence[str], as_json: bool) -> int:
    """Print each job in full."""

    def one(client: ExtractionClient, job_id: str) -> ExtractionTask:
        return client.task(job_id)

    return _each(config, ids, one, overrides=overrides, as_json=as_json, told=_in_full)


def change(config: str, ids: Sequence[str], operation: str, *, overrides: Sequence[str], as_json: bool) -> int:
    """``pause``, ``resume`` or ``cancel`` each job."""

    def one(client: ExtractionClient, job_id: str) -> ExtractionTask:
        try:
            return client.change(job_id, operation)
        except ServiceError as error:
            if error.status == 409:
                raise _not_allowed(client, job_id, operation) from None
            raise

    return _each(config, ids, one, overrides=overrides, as_json=as_json)


def delete(config: str, ids: Sequence[str], *, overrides: Sequence[str], as_json: bool) -> int:
    """Delete each job."""

    def one(client: ExtractionClient, job_id: str) -> None:
        try:
            client.delete(job_id)
        except ServiceError as error:
            if error.status == 500:
                raise ServiceError(
                    "extraction-delete", "the server could not remove the result files of the job", context=job_id,
                    hint="see its log: files may be left on its disk", operation="delete", status=500,
                ) from None  # fmt: skip
            raise

    return _each(config, ids, one, overrides=overrides, as_json=as_json)


def prioritize(config: str, ids: Sequence[str], priority: str, *, overrides: Sequence[str], as_json: bool) -> int:
    """Set the priority of each job."""

    def one(client: ExtractionClient, job_id: str) -> ExtractionTask:
        try:
            return client.prioritize(job_id, Priority(priority), pause=lambda attempt: time.sleep(_PAUSE * attempt))
        except ServiceError as error:
            raise _version_refused(error, job_id) from None

    return _each(config, ids, one, overrides=overrides, as_json=as_json)


def checked(ids: Sequence[str]) -> list[str]:
    """The ids as the server writes them, each once. Raises ``InputError`` (``extraction-id``)."""
    found: dict[str, None] = {}
    for job_id in ids:
        try:
            found[str(UUID(job_id))] = None
        except ValueError:
            raise InputError(
                "extraction-id", "the id of an extraction job is a UUID", context=shown(job_id),
                hint="see: extraction list CONFIG; pipeline status shows the one of a pipeline job",
            ) from None  # fmt: skip
    return list(found)


def _each(
    config: str,
    ids: Sequence[str],
    one: Callable[[ExtractionClient, str], ExtractionTask | None],
    *,
    overrides: Sequence[str],
    as_json: bool,
    told: Callable[[ExtractionTask], str] | None = None,
) -> int:
    """Do something to each job, also after one of them failed; the exit code of the worst."""
    errors: list[SluiceError] = []
    documents: list[dict[str, Any]] = []
    with opened(config, overrides) as client:
        for job_id in checked(ids):
            try:
                task = one(client, job_id)
            except SluiceError as error:
                problem = _explained(error, job_id)
                errors.append(problem)
                click.echo(problem.render(), err=True)
                continue
            if as_json:
                documents.append(task.as_dict() if task is not None else {"id": job_id, "deleted": True})
            elif task is None:
                click.echo(f"{job_id} is deleted")
            else:
                click.echo(told(task) if told is not None else _line(task))
    if as_json:
        click.echo(_dump(documents))
    # What a person must mend comes before what may mend itself.
    return next((code for code in (2, 1, 3) if any(error.exit_code == code for error in errors)), 0)


def _explained(error: SluiceError, job_id: str) -> SluiceError:
    if error.status != 404:
        return error
    return InputError(
        "extraction-unknown", "the extraction server has no such job", context=job_id, operation=error.operation,
        status=404, hint="see: extraction list CONFIG; is services.extractor.base_url the right server?",
    )  # fmt: skip


def _not_allowed(client: ExtractionClient, job_id: str, operation: str) -> ServiceError:
    """Why the server answered 409, as far as the job's state tells."""
    try:
        state = client.task(job_id, brief=True).status or "not known"
    except SluiceError:
        state = "not known"
    allowed = {
        "pause": "only a running job can be paused",
        "resume": "only a paused job can be resumed",
        "cancel": "a job that is completed, failed or cancelled cannot be cancelled",
    }
    return ServiceError(
        "extraction-state", f"the state of the job does not allow to {operation} it: {state}", context=job_id,
        hint=allowed[operation], operation=operation, status=409,
    )  # fmt: skip


def _version_refused(error: ServiceError, job_id: str) -> ServiceError:
    """What 409, 412 and 428 mean for a change of priority."""
    if error.status in (409, 412):
        reference, message = "extraction-version", "the job kept changing while its priority was to be changed"
        hint = "try again in a moment: its version moves on whenever a batch finishes"
    elif error.status == 428:
        reference, message = "extraction-precondition", "the server did not see which version is meant (If-Match)"
        hint = "a proxy in between may drop the header If-Match"
    else:
        return error
    return ServiceError(reference, message, context=job_id, hint=hint, operation="prioritize", status=error.status)


def _line(task: ExtractionTask) -> str:
    return f"{task.id} {task.status or task.task_status}, priority {task.priority}"


def _in_full(task: ExtractionTask) -> str:
    progress = task.progress
    facts = {
        "state": f"{task.status} ({task.task_status})" if task.status else task.task_status,
        "priority": str(task.priority),
        "version": task.version,
        "authored": task.authored,
        "started": task.started,
        "ended": task.ended,
        "took": _took(task),
        "progress": _done(task),
        "batch size": progress.batch_size if progress else None,
        "consent audit files": len(task.consent_urls) or None,
    }
    lines = [f"extraction {task.id}", *(f"  {name:20} {value}" for name, value in facts.items() if value)]
    return "\n".join(lines)


def _took(task: ExtractionTask) -> str | None:
    try:
        begin, end = (datetime.fromisoformat(moment or "") for moment in (task.started, task.ended))
        return human_seconds(max(0.0, (end - begin).total_seconds()))
    except (ValueError, TypeError):
        return None


def _done(task: ExtractionTask) -> str:
    if task.progress is None:
        return ""
    share = task.progress.fraction
    return ", ".join(part for part in (f"{share:.0%}" if share is not None else "", task.progress.describe()) if part)


def _dump(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)
