"""The one submission of a job, also when the process dies in the middle of it (document 1, procedure 2 and 3).

Submission is attempted once and never repeated, because a repetition could create a second job. The handle is in the
job record before anything is polled. Between the request and the record a process can die, or a connection break, and
then nobody knows whether there is a job. So a note is left before the request (``extraction/submission.json``: the
time, and which jobs the server had). A later run that finds the note without a handle compares: no new job means that
nothing was submitted, exactly one from that moment is ours, anything else is for a person to decide.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from tasks.extractor import failures
from tasks.extractor.client import ExtractionClient
from tasks.extractor.patients import read_patients
from tasks.extractor.task import ExtractionTask
from tasks.extractor.urls import job_id_of, resolve, service_url
from tasks.shared.answer import answer_of
from tasks.shared.errors import NetworkError, ServiceBusyError, ServiceError, SluiceError
from tasks.shared.log import logger
from tasks.shared.ndjson import PartFile, storage_error
from tasks.shared.oauth import TOKEN_OPERATION
from tasks.shared.step import Handle, HandleStore

DIRECTORY = "extraction"
"""What the step keeps beside the data, in the job directory (``4-product.md`` §4)."""

NOTE = "submission.json"
REFUSAL = "submission-refused.json"

_NOT_SENT = frozenset({
    "connect-failed", "connect-timeout", "host-unknown", "tls-handshake", "proxy-unreachable", "service-busy",
})  # fmt: skip
"""Failures after which the server has certainly not created a job; ``service-busy`` only with ``_TURNED_AWAY``."""

_TURNED_AWAY = frozenset({429, 503})

_ACCEPTED = frozenset({"content-location-missing", "result-url"})
"""The server has created a job, and did not say in a usable way which."""

_AROUND = 900.0
"""Seconds around the submission in which a new job can be ours, by the server's clock (a proxy's may differ)."""


class _Note(msgspec.Struct):
    """``known`` are the jobs the server had, ``None`` when it did not say; ``at`` its clock (seconds since the epoch).

    ``asked`` is set when a person was told that it is not known whether there is a job.
    """

    known: list[str] | None = None
    at: float | None = None
    asked: bool = False


@dataclass(frozen=True)
class Query:
    """What is extracted: the effective CRTDL, and the file of patients if they are given instead of its cohort."""

    crtdl: Path
    patients: Path | None = None


class Submission:
    """Gives the handle of a job's extraction: the stored one, else that of the one submission.

    ``directory`` is the job's ``extraction/``. ``warnings`` collects what a person should know.
    """

    def __init__(self, client: ExtractionClient, store: HandleStore, directory: Path, query: Query) -> None:
        self._client = client
        self._store = store
        self._directory = directory
        self._query = query
        self.warnings: list[str] = []

    def handle(self) -> Handle:
        """The handle; submits when there is none and nothing was under way.

        Raises what ``ExtractionClient.submit`` raises; ``crtdl-refused``; ``submission-unanswered`` when no answer
        came; ``submission-unknown``.
        """
        stored = self._store.load()
        if stored is not None:
            logger.info("extraction job %s is re-attached", stored.job_id)
            self._forget()
            return stored
        note = self._read()
        if note is not None and not note.asked:
            adopted = self._adopt(note)
            if adopted is not None:
                return adopted
        return self.submit()

    def submit(self) -> Handle:
        """Submit, once. What an earlier submission left behind is forgotten."""
        patients = read_patients(self._query.patients) if self._query.patients is not None else ()
        self._write(self._take_note())
        try:
            status_url = self._client.submit(self._query.crtdl, patients)
        except SluiceError as error:
            raise self._explained(error) from None
        return self._keep(status_url)

    def _keep(self, status_url: str) -> Handle:
        job_id = job_id_of(status_url)
        if not job_id:
            raise ServiceError("result-url", "extractor: the status URL names no job", operation="submit")
        handle = Handle(status_url, job_id)
        self._store.save(handle)
        logger.info("extraction job %s is submitted", job_id)
        self._forget()
        return handle

    def _explained(self, error: SluiceError) -> SluiceError:
        """What a failed submission means; the note stays only where the server may have a job."""
        certain = error.operation == TOKEN_OPERATION or (
            error.reference in _NOT_SENT and (error.status is None or error.status in _TURNED_AWAY)
        )
        broken = isinstance(error, NetworkError | ServiceBusyError) or (error.status or 0) == 500
        if broken and not certain:
            return failures.unanswered(error) if error.status is None else error
        if error.reference in _ACCEPTED:
            return error
        self._forget()
        if isinstance(error, ServiceError) and error.status in (400, 422):
            return failures.crtdl_refused(error, self._keep_answer(error))
        return error

    def _keep_answer(self, error: SluiceError) -> str:
        """Keep what the server said about the CRTDL: it names the part that is wrong, and may quote data."""
        answer = answer_of(error)
        with PartFile(self._directory / REFUSAL) as part:
            part.write(answer.body if answer is not None else b"")
            part.commit()
        return f"{self._directory.name}/{REFUSAL}"

    def _take_note(self) -> _Note:
        try:
            tasks, at = self._client.census()
        except SluiceError as error:
            logger.info("the extraction server does not list its jobs (%s)", error.reference)
            return _Note()
        return _Note(known=[task.id for task in tasks], at=at)

    def _adopt(self, note: _Note) -> Handle | None:
        """The job that a submission which was cut off has created; ``None`` when it has created none."""
        candidates: Sequence[ExtractionTask] = ()
        listed = note.known is not None
        if note.known is not None:
            try:
                tasks, _ = self._client.census()
            except SluiceError as error:
                if error.transient:
                    raise
                listed = False
            else:
                known = set(note.known)
                candidates = [task for task in tasks if task.id not in known and _from_then(task, note.at)]
        if listed and not candidates:
            logger.info("an earlier submission was cut off; it has created no job on the server")
            return None
        if len(candidates) != 1:
            self._write(_Note(known=note.known, at=note.at, asked=True))
            raise failures.unknown_submission(len(candidates))
        job_id = candidates[0].id
        self.warnings.append(
            f"an earlier run was cut off while it submitted the extraction; job {job_id}, the only one that the server "
            "has from that moment, was taken for it"
        )
        return self._keep(resolve(service_url(self._client.base_url, "__status", job_id), self._client.base_url))

    def _read(self) -> _Note | None:
        try:
            return msgspec.json.decode((self._directory / NOTE).read_bytes(), type=_Note)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError:
            return _Note()
        except OSError as error:
            raise storage_error(error, self._directory / NOTE) from None

    def _write(self, note: _Note) -> None:
        with PartFile(self._directory / NOTE) as part:
            part.write(msgspec.json.encode(note))
            part.commit()

    def _forget(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._directory / NOTE).unlink()


def under_way(job_dir: Path) -> bool:
    """Whether a submission of this job was begun whose outcome is not recorded."""
    return (job_dir / DIRECTORY / NOTE).exists()


def _from_then(task: ExtractionTask, at: float | None) -> bool:
    """Whether a job can be from the moment of a submission, as far as the times are known."""
    try:
        authored = datetime.fromisoformat(task.authored) if task.authored else None
    except ValueError:
        return True
    if at is None or authored is None or authored.tzinfo is None:
        return True
    return abs(authored.timestamp() - at) <= _AROUND
