"""The one submission of a job (docs/services.md): attempted once, because a second one could create a second job.

A note is written before the request, and the handle is in the job record before the first poll. If a run finds the note
without a handle, a person must say which job of the server was created, or that there is none.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tasks.extractor.query import PATIENTS, own_patients, read_patients
from tasks.extractor.server import SERVICE, ExtractionServer
from tasks.extractor.urls import job_id_of, service_url
from tasks.shared.errors import TOKEN_OPERATION, InputError, NetworkError, ServiceError, SluiceError, storage_errors
from tasks.shared.files.part_file import write_whole
from tasks.shared.http.answer import issue_texts
from tasks.shared.log import logger
from tasks.shared.step import Handle, HandleStore, StepContext

DIRECTORY: Final = "extraction"
"""Directory of the step's own files, below the job directory."""

NOTE: Final = "submission.txt"
NEW: Final = "new"

_NOT_SENT: Final = ("connect-failed", "host-", "tls-", "proxy-", "redirect-")
"""Prefixes of references of errors after which the server has certainly not created a job."""


def handle_of(context: StepContext, server: ExtractionServer) -> Handle:
    """Return the stored handle of the job; submit the job if there is none.

    Raises what ``ExtractionServer.submit`` raises; ``submission-unanswered``; ``submission-unknown``.
    """
    stored = context.handle.load()
    if stored is not None:
        return stored
    note = context.job_dir / DIRECTORY / NOTE
    if note.exists():
        raise _unknown(server, note)
    return submit(context, server)


def submit(context: StepContext, server: ExtractionServer) -> Handle:
    """Submit the job's own CRTDL, once."""
    note = context.job_dir / DIRECTORY / NOTE
    patients: tuple[str, ...] = ()
    if context.given.patients is not None:
        patients = read_patients(own_patients(context.job_dir, context.given.patients))
        write_whole(context.job_dir / PATIENTS, "".join(f"{patient}\n" for patient in patients).encode())
    assert context.given.crtdl is not None  # noqa: S101 - checked by ``run``
    write_whole(note, datetime.now(UTC).isoformat(timespec="seconds").encode())
    try:
        status_url = server.submit(context.given.crtdl, patients)
    except SluiceError as error:
        raise _explained(context, error) from None
    handle = Handle(status_url, job_id_of(status_url))
    attach(context.handle, context.job_dir, handle)
    return handle


def attach(store: HandleStore, job_dir: Path, handle: Handle) -> None:
    """Store a job of the server as the extraction of this job."""
    store.save(handle)
    forget(job_dir)
    logger.info("extraction job %s is submitted", handle.job_id)


def answer(store: HandleStore, job_dir: Path, base_url: str, given: str) -> None:
    """Settle an unanswered submission: ``given`` is the id of the job that the server created, or ``new`` for none.

    Raises ``InputError`` (``submission-known``) if no submission is unanswered; ``StorageError``.
    """
    if not (job_dir / DIRECTORY / NOTE).exists():
        known = store.load()
        raise InputError(
            "submission-known",
            f"{SERVICE}: no submission of this job is unanswered",
            context=f"its extraction job is {known.job_id}" if known else "nothing has been submitted",
            hint="leave --extraction out",
        )
    if given == NEW:
        forget(job_dir)
    else:
        attach(store, job_dir, Handle(service_url(base_url, "__status", given), given))


def forget(job_dir: Path) -> None:
    """Remove the note of a submission whose outcome is known. Raises ``StorageError``."""
    with storage_errors(job_dir):
        (job_dir / DIRECTORY / NOTE).unlink(missing_ok=True)


def _explained(context: StepContext, error: SluiceError) -> SluiceError:
    """Return the error for a failed submission; the note stays only if the server may have created a job."""
    status = error.answered
    refused = status is not None and (400 <= status < 500 or status == 503)
    not_sent = error.operation == TOKEN_OPERATION or error.reference.startswith(_NOT_SENT) or error.exit_code == 2
    if refused or not_sent:
        forget(context.job_dir)
    elif status is None or status >= 500:
        return NetworkError(
            "submission-unanswered",
            f"{SERVICE}: no usable answer to the submission ({error.reference}); the server may have created a job",
            context=error.context, operation="submit", status=status,
            hint="nothing is submitted twice: pipeline continue lists the jobs of the server, so that you can choose",
        )  # fmt: skip
    if status in (400, 422):
        # With patients the server may quote their ids.
        said = issue_texts(error.answer.body) if context.given.patients is None else ""
        return ServiceError(
            "crtdl-refused", error.message + said, context=error.context, hint="the server does not accept the CRTDL",
            operation="submit", status=status,
        ).made_from(error.answer)  # fmt: skip
    return error


def _unknown(server: ExtractionServer, note: Path) -> InputError:
    """Return the error for an earlier run that was cut off while it submitted. It lists the server's jobs since that
    hour: clocks may differ by some minutes."""
    with storage_errors(note):
        at = note.read_text()
    try:
        tasks = [task for task in server.tasks() if (task.authored or at)[:13] >= at[:13]][:20]
    except SluiceError as error:
        logger.info("the extraction server does not list its jobs (%s)", error.reference)
        tasks = []
    jobs = [f"{task.id}  {task.state}  {task.authored}".rstrip() for task in tasks]
    return InputError(
        "submission-unknown",
        f"{SERVICE}: an earlier run of this job was cut off while it submitted the extraction ({at}); the server "
        "may have created a job",
        context="\n  ".join(jobs) or "the server lists no job since then", operation="submit",
        hint="pipeline continue CONFIG JOB --extraction ID goes on with one of these jobs, --extraction new submits "
        "again",
    )  # fmt: skip
