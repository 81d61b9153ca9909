"""The one submission of a job, also when the process dies in the middle of it (document 1, procedure 2 and 3).

Submission is attempted once and never repeated, because a repetition could create a second job. The handle is in the
job record before anything is polled. Between the request and the record a process can die, or a connection break, and
then nobody knows whether there is a job. So a note is left before the request (``extraction/submission.json``: the
time, and which jobs the server had). A later run that finds the note without a handle compares. No new job means that
nothing was submitted. A single new job may be ours, or somebody else's: it is taken on trial, and nothing of it is
imported before its result has shown that it was asked the same. Anything else is for a person to decide.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from config import ConfigError
from tasks.extractor import failures
from tasks.extractor.client import TURNED_AWAY, ExtractionClient
from tasks.extractor.manifest import parse_result
from tasks.extractor.query import read_patients, same_query
from tasks.extractor.task import DELETED, ExtractionTask, parse_json
from tasks.extractor.urls import job_id_of, service_url
from tasks.shared.blanked import blanked
from tasks.shared.errors import (
    InputError,
    NetworkError,
    ServiceBusyError,
    ServiceError,
    SluiceError,
    storage_errors,
)
from tasks.shared.fhir.crtdl import read_content
from tasks.shared.files.out_file import part_of, write_file
from tasks.shared.files.private_file import read_state
from tasks.shared.http.answer import TOKEN_OPERATION, Answer, answer_of
from tasks.shared.log import logger
from tasks.shared.step import Handle, HandleStore

DIRECTORY = "extraction"
"""What the step keeps beside the data, in the job directory (``4-product.md`` §4)."""

NOTE = "submission.json"
REFUSAL = "submission-refused.json"
ASKED = "asked.json"
"""Hashes of what was submitted: of the query as JSON, not of its bytes, and of the patients."""
PATIENTS = "patients.txt"
"""The job's own copy of the patients it was started with (mode 0600)."""

_NOT_SENT = frozenset({
    "connect-failed", "connect-timeout", "host-unknown", "tls-handshake", "proxy-unreachable", "service-busy",
})  # fmt: skip
"""Failures after which the server has certainly not created a job; ``service-busy`` only with ``TURNED_AWAY``."""

_REFUSALS = frozenset({400, 413, 422})
"""Answers about the query itself: it is to be mended."""

_UNREADABLE = frozenset({"result-url", "answer-encoding"})
"""The server may have created a job, and did not say in a usable way which."""

_AROUND = 900.0
"""Seconds around the submission in which a new job can be ours, by the server's clock (a proxy's may differ)."""


class _Note(msgspec.Struct):
    """``known`` are the jobs that are not ours, ``None`` when the server did not say which it had; ``at`` is its clock
    at the submission (seconds since the epoch).

    ``trial`` is the job that is taken on trial. ``settled`` is set when it is known what became of the submission, or a
    person was told that it is not known.
    """

    known: list[str] | None = None
    at: float | None = None
    trial: str | None = None
    settled: bool = False


class _SubmittedQuery(msgspec.Struct):
    crtdl: str
    patients: str


@dataclass(frozen=True)
class SubmittedQuery:
    """The query to submit: the effective CRTDL, and the file of patients if it replaces the cohort.

    ``given`` makes the effective CRTDL anew, of what was given and of the rules as they are now; ``None`` where it
    cannot know. It raises ``InputError`` and ``ConfigError``.
    """

    crtdl: Path
    patients: Path | None = None
    given: Callable[[], bytes | None] = lambda: None


class Submission:
    """Gives the handle of a job's extraction: the stored one, else that of the one submission.

    ``directory`` is the job's ``extraction/``. ``warnings`` collects what a person should know.
    """

    def __init__(self, client: ExtractionClient, store: HandleStore, directory: Path, query: SubmittedQuery) -> None:
        self._client = client
        self._store = store
        self._directory = directory
        self._query = query
        self.warnings: list[str] = []

    def handle(self) -> Handle:
        """Return the handle; submit the query if there is none and no submission is in progress.

        Raises what ``ExtractionClient.submit`` raises; ``crtdl-refused``; ``submission-unanswered`` when no answer
        came; ``submission-unknown``.
        """
        stored = self._store.load()
        if stored is not None:
            logger.info("extraction job %s is re-attached", stored.job_id)
            part = part_of(self._directory / NOTE)  # left if a process was killed just after the job was recorded
            with storage_errors(part):
                part.unlink(missing_ok=True)
            return stored
        note = self._read()
        if note is not None and not note.settled:
            candidate = self._candidate(note)
            if candidate is not None:
                return self._record(self._status_url(candidate), msgspec.structs.replace(note, trial=candidate))
        return self.submit()

    def submit(self) -> Handle:
        """Submit, once. What an earlier submission left behind is forgotten, but not what it asked: that is asked
        again, and nothing else, unless the server refused it.

        Raises ``InputError`` (``query-changed``) when it is something else now.
        """
        patients = self._patients()
        asked = _SubmittedQuery(_digest(parse_json(read_content(self._query.crtdl))), _digest(sorted(patients)))
        self._compare(asked)
        note = self._take_note()
        write_file(self._directory / ASKED, msgspec.json.encode(asked))
        self._write(note)
        try:
            status_url = self._client.submit(self._query.crtdl, patients)
        except SluiceError as error:
            raise self._explained(error) from None
        return self._record(status_url, msgspec.structs.replace(note, settled=True))

    def _compare(self, asked: _SubmittedQuery) -> None:
        before = read_state(self._directory / ASKED, _SubmittedQuery)
        if before is None:
            return
        # The job's own copies, and what they were made of: a person who edits one of these expects it to count.
        what = {
            "the CRTDL, or what enrichment makes of it,": {before.crtdl} != {asked.crtdl, self._given_crtdl(asked)},
            "the list of patients": {before.patients} != {asked.patients, self._given_patients(asked)},
        }
        if changed := [name for name, differs in what.items() if differs]:
            raise failures.query_changed(changed)

    def _given_crtdl(self, asked: _SubmittedQuery) -> str:
        try:
            content = self._query.given()
        except (InputError, ConfigError):
            return ""
        return asked.crtdl if content is None else _digest(parse_json(content))

    def _given_patients(self, asked: _SubmittedQuery) -> str:
        given = self._query.patients
        if given is None or vanished(given):
            return asked.patients
        try:
            return _digest(sorted(read_patients(given)))
        except InputError:
            return ""

    def on_trial(self, handle: Handle) -> bool:
        """Return whether the job of this handle may be somebody else's."""
        note = self._read()
        return note is not None and note.trial == handle.job_id

    def is_ours(self, handle: Handle, answer: Answer) -> bool:
        """Return whether a complete job belongs to this submission; ``answer`` is the 200 of its status.

        A job on trial with another query is given up: ``handle`` looks for another one. Raises
        ``submission-unknown`` when its result does not tell, ``result-unreadable`` when the job is not on trial.
        """
        note = self._read()
        job = parse_result(answer, handle.status_url, self._client.base_url).extensions.get("job")
        on_trial = note is not None and note.trial == handle.job_id
        try:
            same = same_query(job, read_content(self._query.crtdl), self._patients())
        except InputError:
            if on_trial:
                raise
            same = None  # what was submitted is not there any more
        if note is None or not on_trial:
            if same is False:
                raise failures.result_unreadable(handle.status_url, "the result of another query")
            return True
        if same is None:
            raise self.undecided([handle.job_id])
        if same:
            self._write(msgspec.structs.replace(note, trial=None, settled=True))
            self.warnings.append(
                f"an earlier run was cut off while it submitted the extraction; job {handle.job_id}, which the server "
                "has from that moment and which was asked the same, was taken for it"
            )
            return True
        logger.info("extraction job %s has another query, so it was not started by this job", handle.job_id)
        # The record first: without the note, a recorded job is taken for ours.
        self._store.save(None)
        self._write(msgspec.structs.replace(note, trial=None, known=[*(note.known or ()), handle.job_id]))
        return False

    def undecided(self, candidates: Sequence[str]) -> SluiceError:
        """Return the error that asks a person which job belongs to this submission. Forget the handle."""
        self._store.save(None)
        self._write(_Note(settled=True))
        return failures.unknown_submission([self._status_url(job_id) for job_id in candidates])

    def _status_url(self, job_id: str) -> str:
        return service_url(self._client.base_url, "__status", job_id)

    def _patients(self) -> tuple[str, ...]:
        """Return the patients of the job, from its own copy of the given file."""
        if self._query.patients is None:
            return ()
        kept = self._directory / PATIENTS
        path = patients_file(self._directory.parent, self._query.patients)
        patients = read_patients(path)
        if path != kept:
            write_file(kept, "".join(f"{patient}\n" for patient in patients).encode())
        return patients

    def _record(self, status_url: str, note: _Note) -> Handle:
        job_id = job_id_of(status_url)
        handle = Handle(status_url, job_id)
        # A job on trial is noted as such before it is recorded as ours.
        if note.trial is not None:
            self._write(note)
        self._store.save(handle)
        logger.info("extraction job %s is %s", job_id, "taken on trial" if note.trial else "submitted")
        if note.trial is None:
            self._write(note)
        return handle

    def _explained(self, error: SluiceError) -> SluiceError:
        """Explain a failed submission; the note stays only if the server may have created a job."""
        certain = error.operation == TOKEN_OPERATION or (
            error.reference in _NOT_SENT and (error.answered is None or error.answered in TURNED_AWAY)
        )
        if not certain:
            if isinstance(error, NetworkError | ServiceBusyError) or error.status == 500:
                return failures.unanswered(error) if error.status is None else error
            if error.reference in _UNREADABLE or 200 <= (error.status or 0) < 300:
                if (answer := answer_of(error)) is not None and answer.body:
                    error.hint = f"{error.hint}; its answer is in {self._keep_answer(error)} of the job directory"
                return error
        self._forget(asked=error.answered is None or error.answered in _REFUSALS)
        if error.answered in (400, 422):
            return failures.crtdl_refused(error, self._keep_answer(error))
        return error

    def _keep_answer(self, error: SluiceError) -> str:
        """Keep what the server said about the CRTDL: it names the part that is wrong, and may quote data."""
        answer = answer_of(error)
        write_file(self._directory / REFUSAL, blanked(answer.body) if answer is not None else b"")
        return f"{self._directory.name}/{REFUSAL}"

    def _take_note(self) -> _Note:
        try:
            tasks, at = self._client.census()
        except SluiceError as error:
            logger.info("the extraction server does not list its jobs (%s)", error.reference)
            return _Note()
        return _Note(known=[task.id for task in tasks], at=at)

    def _candidate(self, note: _Note) -> str | None:
        """Return the job that an interrupted submission may have created; ``None`` if it created none."""
        if note.known is None:
            raise self.undecided([])
        try:
            tasks, _ = self._client.census()
        except SluiceError as error:
            if error.transient:
                raise
            raise self.undecided([]) from None
        known = set(note.known)
        listed = [task for task in tasks if task.id not in known and task.status != DELETED]
        found = [task.id for task in listed if _from_then(task, note.at)]
        if len(found) > 1:
            found = [job_id for job_id in found if not self._asked_something_else(job_id)]
        if len(found) > 1:
            raise self.undecided(found)
        if not found:
            logger.info("an earlier submission was cut off; it has created no job on the server")
        return found[0] if found else None

    def _asked_something_else(self, job_id: str) -> bool:
        """Return whether a job is complete and its result has a different query."""
        status_url = self._status_url(job_id)
        answer = self._client.poll(status_url)
        if answer.status != 200:
            return False
        try:
            job = parse_result(answer, status_url, self._client.base_url).extensions.get("job")
        except ServiceError:
            return False
        return same_query(job, read_content(self._query.crtdl), self._patients()) is False

    def _read(self) -> _Note | None:
        note = read_state(self._directory / NOTE, _Note)
        return _Note() if note is None and begun(self._directory.parent) else note

    def _write(self, note: _Note) -> None:
        write_file(self._directory / NOTE, msgspec.json.encode(note))

    def _forget(self, *, asked: bool) -> None:
        """Forget the submission; with ``asked`` also what it asked, which may be something else the next time."""
        for name in (NOTE, *([ASKED] if asked else [])):
            with storage_errors(self._directory / name):
                (self._directory / name).unlink(missing_ok=True)


def begun(job_dir: Path) -> bool:
    """Return whether a submission of this job has begun and was not refused, so that its query is fixed."""
    return (job_dir / DIRECTORY / NOTE).exists()


def patients_file(job_dir: Path, given: Path) -> Path:
    """Return the file with the patients of a job: its own copy, once the job depends on it or ``given`` is missing."""
    kept = job_dir / DIRECTORY / PATIENTS
    return kept if kept.is_file() and (begun(job_dir) or vanished(given)) else given


def vanished(given: Path) -> bool:
    """Return whether a file that a job was started with is not there any more."""
    # os.path, not Path: a directory above that may not be entered is an answer here, no exception.
    return not os.path.exists(given)  # noqa: PTH110


def _from_then(task: ExtractionTask, at: float | None) -> bool:
    """Return whether a job can date from the moment of a submission, as far as the times are known."""
    try:
        authored = datetime.fromisoformat(task.authored) if task.authored else None
    except ValueError:
        return True
    if at is None or authored is None or authored.tzinfo is None:
        return True
    return abs(authored.timestamp() - at) <= _AROUND


def _digest(document: object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
