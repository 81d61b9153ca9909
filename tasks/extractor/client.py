"""The calls to the extraction server (document 2): submission, status, cohort preview, Task API.

Nothing here waits or decides: the poll loop is in ``polling.py``, the one submission of a job in ``submission.py``.
Errors are those of ``http/client.py`` with the operations ``submit``, ``poll``, ``preview`` and ``task``; a failure
is worth another attempt only when it is a ``TransientError`` (document 1, "Errors"). 500 never is: the server means it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path

import msgspec

from tasks.extractor.json_values import parse_json
from tasks.extractor.task import ExtractionTask, Priority, parse_task, parse_tasks
from tasks.extractor.urls import resolve, service_url
from tasks.shared.errors import InputError, ServiceError, SluiceError
from tasks.shared.fhir.crtdl import read_content
from tasks.shared.http.answer import Answer, place
from tasks.shared.http.client import ServiceClient

SERVICE = "extractor"
FHIR_JSON = "application/fhir+json"
JSON = "application/json"

TRANSIENT = frozenset({408, 429, *range(501, 600)})
"""Answers that may be another one later. The server reserves 500 for what has failed for good (document 1)."""

_EVERY_ANSWER = frozenset({100, 101, 102, 103, *range(200, 300), *range(400, 600)})
"""What the poll loop reads itself: everything but redirects."""

_REPEATS = 10
"""How often ``prioritize`` reads the version again after a 409."""

_BRIEF = 10.0
"""Seconds that a call may take which only adds to what a person sees."""

_LARGEST_ANSWER = 512 * 1024 * 1024


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
        ``content-location-missing``, …), ``ServiceBusyError``, ``NetworkError``.
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
        answer = self.http.send(
            "POST",
            url,
            operation="submit",
            content=msgspec.json.encode({"resourceType": "Parameters", "parameter": parameters}),
            headers={"Content-Type": JSON if isinstance(crtdl, bytes) else FHIR_JSON, "Accept": FHIR_JSON},
            retry=False,
            transient=TRANSIENT,
            timeout=self._timeout,
        )
        location = answer.headers.get("content-location", "").strip()
        if not location:
            raise ServiceError(
                "content-location-missing",
                f"extractor: submit was answered {answer.status} without a Content-Location, so nobody knows the job",
                context=f"POST {place(url)}",
                hint="is services.extractor.base_url an extraction server, and does a proxy drop headers?",
                operation="submit",
                status=answer.status,
            )
        return resolve(location, self.base_url)

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
        """The ids of the patients that a CRTDL or a bare CCDL selects; nothing is stored on the server."""
        url = service_url(self.base_url, "$evaluate-cohort")
        answer = self.http.send(
            "POST",
            url,
            operation="preview",
            content=query,
            headers={"Content-Type": JSON, "Accept": FHIR_JSON},
            transient=TRANSIENT,
            timeout=self._preview_timeout,
            max_answer_bytes=_LARGEST_ANSWER,
        )
        try:
            cohort = msgspec.json.decode(answer.body, type=_CohortList)
        except (msgspec.DecodeError, UnicodeDecodeError):
            cohort = None
        if cohort is None or cohort.resource_type != "List":
            raise _unexpected("preview", f"POST {place(url)}", "with something else than a List", answer.status)
        return tuple(entry.item.reference.removeprefix("Patient/") for entry in cohort.entry)

    def tasks(
        self, ids: Sequence[str] = (), statuses: Sequence[str] = (), *, strict: bool = False
    ) -> list[ExtractionTask]:
        """The jobs that match, newest first as the server lists them. ``strict``: a value it does not know is a 400."""
        query = [f"{name}={','.join(values)}" for name, values in (("_id", ids), ("status", statuses)) if values]
        return self._listed("?" + "&".join(query) if query else "", strict=strict, brief=False)[0]

    def census(self) -> tuple[list[ExtractionTask], float | None]:
        """All jobs, in one brief attempt, and the server's clock (seconds since the epoch), if it says."""
        return self._listed("", strict=False, brief=True)

    def _listed(self, query: str, *, strict: bool, brief: bool) -> tuple[list[ExtractionTask], float | None]:
        more = {"Prefer": "handling=strict"} if strict else {}
        answer = self._read(service_url(self.base_url, "Task") + query, brief=brief, **more)
        found = parse_tasks(parse_json(answer.body))
        if found is None:
            raise _unexpected("task", None, "with something else than a Bundle", answer.status)
        return found, _date(answer.headers.get("date"))

    def task(self, job_id: str, *, brief: bool = False) -> ExtractionTask:
        """One job. Raises ``ServiceError`` (``service-not-found`` when there is none).

        ``brief`` makes one attempt of ten seconds at most.
        """
        return self._task_in(self._read(self._task_url(job_id), brief=brief), job_id)

    def _read(self, url: str, *, brief: bool, **headers: str) -> Answer:
        return self.http.send(
            "GET",
            url,
            operation="task",
            headers={"Accept": FHIR_JSON} | headers,
            transient=TRANSIENT,
            retry=not brief,
            timeout=min(self._timeout, _BRIEF) if brief else self._timeout,
        )

    def change(self, job_id: str, operation: str) -> ExtractionTask:
        """``pause``, ``resume`` or ``cancel``; the updated Task. In one attempt: a second one would meet a 409.

        Raises ``ServiceError``, status 409 when the job's state does not allow it.
        """
        answer = self.http.send(
            "POST",
            self._task_url(job_id, f"${operation}"),
            operation=operation,
            headers={"Accept": FHIR_JSON},
            content=b"",
            transient=TRANSIENT,
            retry=False,
            timeout=self._timeout,
        )
        return self._task_in(answer, job_id)

    def delete(self, job_id: str) -> None:
        """Remove a job and its result files, in one attempt."""
        self.http.send(
            "DELETE",
            self._task_url(job_id),
            operation="delete",
            headers={"Accept": FHIR_JSON},
            transient=TRANSIENT,
            retry=False,
            timeout=self._timeout,
        )

    def prioritize(
        self, job_id: str, priority: Priority, *, pause: Callable[[int], None] = lambda _: None
    ) -> ExtractionTask:
        """Change a job's priority. The version is read again after a 409: it moves on whenever a batch finishes.

        ``pause`` is called with the number of the attempt that failed. Raises ``ServiceError``, status 409 when the
        version was stale ten times, 428 when the server does not understand the one it gave.
        """
        for attempt in range(1, _REPEATS + 1):
            task = self.task(job_id)
            if task.priority is priority:
                return task
            try:
                return self._put(task, priority)
            except ServiceError as error:
                if error.status != 409 or attempt == _REPEATS:
                    raise
            pause(attempt)
        raise AssertionError("unreachable")

    def _put(self, task: ExtractionTask, priority: Priority) -> ExtractionTask:
        if task.version is None:
            raise _unexpected("prioritize", None, "with a Task that has no version", 200)
        body = {
            "resourceType": "Task",
            "id": task.id,
            "status": task.task_status,
            "intent": task.intent,
            "priority": priority.code,
        }
        answer = self.http.send(
            "PUT",
            self._task_url(task.id),
            operation="prioritize",
            content=msgspec.json.encode(body),
            headers={"Content-Type": FHIR_JSON, "Accept": FHIR_JSON, "If-Match": f'W/"{task.version}"'},
            transient=TRANSIENT,
            timeout=self._timeout,
        )
        # The body of a successful PUT is not specified: read the Task when it is none.
        return parse_task(parse_json(answer.body)) or self.task(task.id)

    def _task_url(self, job_id: str, *more: str) -> str:
        return service_url(self.base_url, "Task", job_id, *more)

    def _task_in(self, answer: Answer, job_id: str) -> ExtractionTask:
        task = parse_task(parse_json(answer.body))
        if task is None:
            raise _unexpected("task", place(self._task_url(job_id)), "with something else than a Task", answer.status)
        return task


class _Item(msgspec.Struct):
    reference: str


class _Entry(msgspec.Struct):
    item: _Item


class _CohortList(msgspec.Struct):
    resource_type: str = msgspec.field(default="", name="resourceType")
    entry: list[_Entry] = []


def _unexpected(operation: str, where: str | None, what: str, status: int) -> SluiceError:
    return ServiceError(
        "extractor-answer",
        f"extractor: {operation} was answered {status} {what}",
        context=where,
        hint="is services.extractor.base_url an extraction server, or is a login page in front of it?",
        operation=operation,
        status=status,
    )


def _date(value: str | None) -> float | None:
    try:
        moment = parsedate_to_datetime(value) if value else None
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return None if moment is None else moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
