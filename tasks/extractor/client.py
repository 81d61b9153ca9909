"""The calls to the extraction server (document 2): submission, status, cohort preview, Task API.

Nothing here waits or decides: the poll loop is in ``polling.py``, the one submission of a job in ``submission.py``.
Errors are those of ``http/client.py`` with the operations ``submit``, ``poll``, ``preview`` and ``task``; a failure
is worth another attempt only when it is a ``TransientError`` (document 1, "Errors"). 500 never is: the server means it.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from config import PipelineConfig
from tasks.extractor.task import ExtractionTask, JobStatus, Priority, parse_answer, parse_json, parse_task, parse_tasks
from tasks.extractor.urls import is_job_id, job_id_of, resolve, service_url
from tasks.shared.errors import InputError, ServiceError, SluiceError
from tasks.shared.fhir.crtdl import read_content
from tasks.shared.fhir.reading import ID, UNREADABLE, RepeatedKeyError, unique_members
from tasks.shared.http.answer import Answer, RefusedError, RequestContext, wrong_answer
from tasks.shared.http.client import ServiceClient
from tasks.shared.service import METADATA, Service
from tasks.shared.step import StepContext

SERVICE = "extractor"

T = TypeVar("T")
FHIR_JSON = "application/fhir+json"
JSON = "application/json"

TRANSIENT = frozenset({408, 429, *range(501, 600)})
"""Answers that may be another one later. The server reserves 500 for what has failed for good (document 1)."""

_EVERY_ANSWER = frozenset({100, 101, 102, 103, *range(200, 300), *range(400, 600)})
"""What the poll loop reads itself: everything but redirects."""

TURNED_AWAY = frozenset({429, 503})
"""Answers after which the server has certainly done nothing."""

_REPEATS = 10
"""How often the Task is read again after a 409 or 412."""

PAUSE = 0.2
"""Seconds before that, times the number of the attempt."""

_STALE = frozenset({409, 412})
"""Answers to a version that has moved on: the first is document 2's, the second that of deployed servers."""

_RUNNING = frozenset({status for status in JobStatus if status.startswith("RUNNING")})
_FINAL = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED})
_ALLOWED: dict[str, Collection[str]] = {
    "pause": _RUNNING,
    "resume": {JobStatus.PAUSED},
    "cancel": frozenset(JobStatus) - _FINAL,
}
"""States in which an operation may be asked for (document 2, "States and transitions")."""

_PATIENT = "Patient/"

_BRIEF = 10.0
"""Seconds that a call may take which only adds to what a person sees."""

_LARGEST_ANSWER = 512 * 1024 * 1024


def service(config: PipelineConfig) -> Service:
    """``services.extractor``."""
    extractor = config.services.extractor
    return Service(SERVICE, extractor.base_url, extractor.auth, METADATA)


def service_client(config: PipelineConfig, context: StepContext | None = None) -> ServiceClient:
    """Return the HTTP client for ``services.extractor``, which must have a ``base_url``."""
    base_url_of(config)
    extractor = config.services.extractor
    timeout, connections = extractor.request_timeout.total_seconds(), extractor.max_concurrent_downloads + 2
    if context is None:
        return service(config).client(config, timeout=timeout, max_connections=connections)
    return context.client(service(config), timeout=timeout, max_connections=connections)


def extraction_client(config: PipelineConfig, http: ServiceClient) -> ExtractionClient:
    """Return the client of the configured server."""
    extractor = config.services.extractor
    return ExtractionClient(
        http,
        base_url_of(config),
        timeout=extractor.request_timeout.total_seconds(),
        preview_timeout=max(extractor.request_timeout, extractor.extraction_timeout).total_seconds(),
    )


def base_url_of(config: PipelineConfig) -> str:
    """Return the configured ``base_url``. Raises ``InputError`` (``extractor-url``) if there is none."""
    base_url = config.services.extractor.base_url
    if base_url is None:
        raise InputError(
            "extractor-url",
            "no extraction server is configured",
            context="services.extractor.base_url",
            hint="set it to the server's URL, without /fhir",
        )
    return base_url


class ExtractionClient:
    """One extraction server. ``http`` must send the credentials to the origin of ``base_url``.

    ``timeout`` in seconds is for one request, ``preview_timeout`` for the cohort preview, which the server answers when
    the cohort is known.
    """

    def __init__(
        self, http: ServiceClient, base_url: str, *, timeout: float = 60.0, preview_timeout: float = 1800.0
    ) -> None:
        self.http = http
        self.base_url = base_url
        self._timeout = timeout
        self._preview_timeout = preview_timeout

    def submit(self, crtdl: Path | bytes, patients: Sequence[str] = ()) -> str:
        """Start a job, in one attempt; its status URL, absolute.

        A file travels as ``application/fhir+json``; a CRTDL in memory as ``application/json`` (document 1). With
        ``patients`` the cohort of the CRTDL is bypassed.

        Raises ``InputError`` (``crtdl-unreadable``, ``crtdl-not-json``), ``ServiceError`` (``crtdl-refused``,
        ``content-location-missing``, ``extractor-answer``, …), ``ServiceBusyError``, ``NetworkError``.
        """
        content = crtdl if isinstance(crtdl, bytes) else read_content(crtdl)
        if parse_json(content) is None:
            where = str(crtdl) if isinstance(crtdl, Path) else None
            raise InputError("crtdl-not-json", "the CRTDL is not valid JSON", context=where, operation="submit")
        parameters: list[dict[str, str]] = [
            {"name": "crtdl", "valueBase64Binary": base64.b64encode(content).decode("ascii")}
        ]
        parameters += [{"name": "patient", "valueString": patient} for patient in patients]
        url = service_url(self.base_url, "$extract-data")
        body = msgspec.json.encode({"resourceType": "Parameters", "parameter": parameters})
        kind = JSON if isinstance(crtdl, bytes) else FHIR_JSON
        answer = self._send("POST", url, operation="submit", content=body, headers={"Content-Type": kind}, retry=False)
        locations = {text for value in answer.headers.get_list("content-location") if (text := value.strip())}
        asked = RequestContext(SERVICE, "submit", "POST", url)
        if not locations:
            raise wrong_answer(
                answer,
                asked,
                "without a Content-Location, so the job's address is unknown",
                reference="content-location-missing",
                hint="is services.extractor.base_url an extraction server, and does a proxy drop headers?",
            )
        location = locations.pop()
        if locations or any(ord(char) < 33 for char in location):
            raise _unexpected(answer, asked, "with more than one Content-Location")
        status_url = resolve(location, self.base_url)
        if not is_job_id(job_id_of(status_url)):
            raise _unexpected(answer, asked, "with a Content-Location that names no job: its last segment is no UUID")
        return status_url

    def poll(self, status_url: str) -> Answer:
        """Ask for the state of a job, once: the answer, whatever its status, but for redirects.

        Raises ``NetworkError`` when there is none, and what a token costs.
        """
        return self.http.send(
            "GET",
            status_url,
            operation="poll",
            headers={"Accept": JSON},
            retry=False,
            accept=_EVERY_ANSWER,
            timeout=self._timeout,
        )

    def evaluate_cohort(self, query: bytes) -> tuple[str, ...]:
        """Return the ids of the patients that a CRTDL or a bare CCDL selects; the server stores nothing.

        Raises ``ServiceError`` (``extractor-answer``) for anything but a List with every ``Patient/<id>`` once.
        """
        url = service_url(self.base_url, "$evaluate-cohort")
        answer = self._send(
            "POST",
            url,
            operation="preview",
            content=query,
            headers={"Content-Type": JSON},
            timeout=self._preview_timeout,
            max_answer_bytes=_LARGEST_ANSWER,
        )
        cohort = _cohort(answer)
        if cohort is None:
            where = RequestContext(SERVICE, "preview", "POST", url)
            raise _unexpected(answer, where, "with something else than a List with every Patient/<id> once")
        return cohort

    def tasks(
        self, ids: Sequence[str] = (), statuses: Sequence[str] = (), *, strict: bool = False
    ) -> list[ExtractionTask]:
        """Return the matching jobs, newest first. With ``strict`` the server answers 400 to an unknown value.

        Raises ``ServiceError`` (``extractor-answer``) for anything but a Bundle, and for a job that is not asked for.
        """
        query = [f"{name}={','.join(values)}" for name, values in (("_id", ids), ("status", statuses)) if values]
        found = self._listed("?" + "&".join(query) if query else "", strict=strict, brief=False)[0]
        if ids and not {task.id.lower() for task in found} <= {job_id.lower() for job_id in ids}:
            where = RequestContext(SERVICE, "task", "GET", service_url(self.base_url, "Task"))
            hint = "the server ignores the ids that are asked for; leave them out"
            raise where.error(ServiceError, "extractor-answer", "was answered with the Task of another job", hint=hint)
        return found

    def census(self) -> tuple[list[ExtractionTask], float | None]:
        """Return all jobs, in one brief attempt, and the server's clock (seconds since the epoch) if it is known."""
        return self._listed("", strict=False, brief=True)

    def _listed(self, query: str, *, strict: bool, brief: bool) -> tuple[list[ExtractionTask], float | None]:
        more = {"Prefer": "handling=strict"} if strict else {}
        url = service_url(self.base_url, "Task")
        answer = self._read(url + query, brief=brief, headers=more)
        found = parse_tasks(parse_answer(answer))
        if found is None:
            raise _unexpected(answer, RequestContext(SERVICE, "task", "GET", url), "with something else than a Bundle")
        return found, _date(answer.headers.get("date"))

    def task(self, job_id: str, *, brief: bool = False) -> ExtractionTask:
        """Return one job. Raises ``ServiceError`` (``service-not-found`` if there is none).

        ``brief`` makes one attempt of ten seconds at most.
        """
        return self._task_in(self._read(self._task_url(job_id), brief=brief), job_id, "task", "GET")

    def _read(self, url: str, *, brief: bool, headers: Mapping[str, str] | None = None) -> Answer:
        timeout = min(self._timeout, _BRIEF) if brief else self._timeout
        return self._send("GET", url, operation="task", headers=headers, retry=not brief, timeout=timeout)

    def _send(
        self,
        method: str,
        url: str,
        *,
        operation: str,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **more: Any,
    ) -> Answer:
        """Send a request that is answered with FHIR; ``more`` as in ``ServiceClient.send``."""
        return self.http.send(
            method,
            url,
            operation=operation,
            headers={"Accept": FHIR_JSON} | dict(headers or {}),
            transient=TRANSIENT,
            timeout=timeout or self._timeout,
            **more,
        )

    def change(self, job_id: str, operation: str) -> ExtractionTask:
        """``pause``, ``resume`` or ``cancel``; the updated Task. Repeated is what certainly did nothing: after 429 and
        503, and after a 409 or 412 when the Task shows that the state allows the operation. Any other second attempt
        could meet the work of the first.

        Raises ``ServiceError``, status 409 or 412 when the job's state does not allow it, or its version was stale ten
        times.
        """
        url = self._task_url(job_id, f"${operation}")
        answer = self._until_fresh(
            lambda: self._send("POST", url, operation=operation, content=b"", retry=TURNED_AWAY),
            lambda: self._is_in(job_id, _ALLOWED[operation]),
        )
        return self._task_in(answer, job_id, operation, "POST")

    def delete(self, job_id: str) -> None:
        """Remove a job and its result files; repeated as ``change`` is."""
        url = self._task_url(job_id)
        self._until_fresh(
            lambda: self._send("DELETE", url, operation="delete", retry=TURNED_AWAY),
            lambda: self._is_in(job_id, frozenset(JobStatus)),
        )

    def _until_fresh(self, call: Callable[[], T], is_allowed: Callable[[], bool] = lambda: True) -> T:
        """Make a call until it meets the version that the job has, as long as the job's state allows it."""
        for attempt in range(1, _REPEATS):
            try:
                return call()
            except ServiceError as error:
                if error.answered not in _STALE or not is_allowed():
                    raise
            time.sleep(PAUSE * attempt)
        return call()

    def _is_in(self, job_id: str, states: Collection[str]) -> bool:
        """Return whether the job is in one of these states, as far as its Task can be read."""
        try:
            return self.task(job_id, brief=True).status in states
        except SluiceError:
            return False

    def prioritize(self, job_id: str, priority: Priority) -> ExtractionTask:
        """Change a job's priority. The version is read again after a 409 or 412: it moves on whenever a batch finishes.

        Raises ``ServiceError``, status 409 or 412 when the version was stale ten times, 428 when the server does not
        understand the one it gave.
        """
        return self._until_fresh(lambda: self._put(self.task(job_id), priority))

    def _put(self, task: ExtractionTask, priority: Priority) -> ExtractionTask:
        if task.priority is priority:
            return task
        where = RequestContext(SERVICE, "prioritize", "PUT", self._task_url(task.id))
        if task.version is None:
            raise where.error(ServiceError, "extractor-answer", "is impossible: the Task has no version", hint=_HINT)
        body = {
            "resourceType": "Task",
            "id": task.id,
            "status": task.task_status,
            "intent": task.intent,
            "priority": priority.code,
        }
        headers = {"Content-Type": FHIR_JSON, "If-Match": f'W/"{task.version}"'}
        content = msgspec.json.encode(body)
        answer = self._send("PUT", where.url, operation="prioritize", content=content, headers=headers)
        # The body of a successful PUT is not specified: read the Task when it is none, or the one before.
        written = parse_task(parse_answer(answer)) and self._task_in(answer, task.id, "prioritize", "PUT")
        if written is None or written.priority is not priority:
            written = self.task(task.id)
        if written.priority is not priority:
            raise _unexpected(answer, where, "and the Task has its old priority")
        return written

    def _task_url(self, job_id: str, *more: str) -> str:
        return service_url(self.base_url, "Task", job_id, *more)

    def _task_in(self, answer: Answer, job_id: str, operation: str, method: str) -> ExtractionTask:
        task = parse_task(parse_answer(answer))
        if task is None or task.id.lower() != job_id.lower():
            what = "something else than a Task" if task is None else "the Task of another job"
            raise _unexpected(
                answer, RequestContext(SERVICE, operation, method, self._task_url(job_id)), f"with {what}"
            )
        return task


class _Item(msgspec.Struct):
    reference: str


class _TaskEntry(msgspec.Struct):
    item: _Item


class _CohortList(msgspec.Struct):
    resource_type: str = msgspec.field(default="", name="resourceType")
    entry: list[_TaskEntry] = []


def _cohort(answer: Answer) -> tuple[str, ...] | None:
    """Return the ids in a List; ``None`` if the answer or an entry is something else."""
    try:
        unique_members(answer.body)
        cohort = msgspec.json.decode(answer.body, type=_CohortList)
    except (RepeatedKeyError, *UNREADABLE):
        return None
    ids = dict.fromkeys(entry.item.reference.removeprefix(_PATIENT) for entry in cohort.entry)
    patients = all(entry.item.reference.startswith(_PATIENT) for entry in cohort.entry)
    whole = patients and len(ids) == len(cohort.entry) and all(map(ID.fullmatch, ids))
    return tuple(ids) if whole and cohort.resource_type == "List" and answer.says_json else None


_HINT = "is services.extractor.base_url an extraction server, or is a login page in front of it?"


def _unexpected(answer: Answer, where: RequestContext, what: str) -> RefusedError:
    return wrong_answer(answer, where, what, reference="extractor-answer", hint=_HINT)


def _date(value: str | None) -> float | None:
    try:
        moment = parsedate_to_datetime(value) if value else None
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return None if moment is None else moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
