"""The calls to the extraction server (docs/services.md): submission, status, cohort preview, Task API.

Only a ``TransientError`` is worth another attempt. A 500 never is one: the server answers it after a final failure.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from config import PipelineConfig
from tasks.extractor.poll_transport import PollTransport
from tasks.extractor.task import PRIORITIES, ExtractionTask, parse_task, parse_tasks
from tasks.extractor.urls import is_job_id, job_id_of, resolve, service_url
from tasks.shared.errors import InputError, ServiceError, SluiceError
from tasks.shared.fhir.crtdl import parse_document, read_content
from tasks.shared.fhir.resource import ID, list_of, object_of, parse_json
from tasks.shared.http.answer import Answer
from tasks.shared.http.client import Call, ServiceClient
from tasks.shared.http.errors import RequestContext, wrong_answer
from tasks.shared.http.network import Network
from tasks.shared.service import Found, Service

SERVICE: Final = "extractor"
FHIR_JSON: Final = "application/fhir+json"
JSON: Final = "application/json"

TRANSIENT: Final = frozenset({408, 429, *range(501, 600)})
"""Statuses after which the same request may succeed later."""

LARGEST_SUBMISSION: Final = 2 << 20
"""Most bytes of a submission: a deployed server answers 500 to a larger one, and creates no job."""

HINT: Final = "is services.extractor.base_url an extraction server, or is a login page or a proxy in front of it?"

_EVERY_ANSWER: Final = frozenset({*range(100, 300), *range(400, 600)})
_BUT_401: Final = frozenset(range(400, 600)) - {401, 407}
_PATIENT: Final = re.compile(rf"Patient/({ID.pattern})")
_STALE: Final = frozenset({409, 412})
"""Statuses for an old version of a Task, which changes whenever a batch ends: 409 as documented, 412 as deployed."""
_ATTEMPTS: Final = 10
_PAUSE: Final = 0.2


class MetadataProbe:
    """Requests ``/fhir/metadata`` without credentials. Any answer will do, but after a 401 the request is repeated with
    credentials, and a second 401 is an error. With OAuth 2.0 a token is obtained first.
    """

    proves = False

    def find_problems(self, service: Service, config: PipelineConfig, **more: Any) -> Iterator[Found]:
        """See ``Probe``; a service without URL is not asked."""
        if not service.url:
            return
        url = f"{service.url.rstrip('/')}/fhir/metadata"
        try:
            with replace(service, timeout=15.0).client(config, **more) as client:
                client.authorize()
                if client.peek("GET", url).status == 401:
                    client.send(Call("GET", url, "test request", accept=_BUT_401))
        except SluiceError as error:
            yield error


def service(config: PipelineConfig) -> Service:
    """Return ``services.extractor``."""
    settings = config.services.extractor
    timeout = settings.request_timeout.total_seconds()
    return Service(SERVICE, settings.base_url, settings.auth, timeout, MetadataProbe())


def poll_request(url: str) -> RequestContext:
    """Return the context of errors about a status poll."""
    return RequestContext(SERVICE, "poll", "GET", url)


@contextmanager
def extraction_server(config: PipelineConfig, **more: Any) -> Iterator[ExtractionServer]:
    """Open the configured server; ``more`` goes to ``ServiceClient``. Raises ``InputError`` (``extractor-url``)."""
    extractor = config.services.extractor
    if extractor.base_url is None:
        hint = "set it to the server's URL, without /fhir"
        what = "no extraction server is configured"
        raise InputError("extractor-url", what, context="services.extractor.base_url", hint=hint)
    where, polled = service(config), Network(config.tls, transport=PollTransport)
    with (
        where.client(config, **more) as http,
        where.client(config, network=polled, **more) as polls,
    ):
        yield ExtractionServer(http, polls, str(extractor.base_url), extractor.extraction_timeout.total_seconds())


class ExtractionServer:
    """One extraction server. ``polls`` is the client of status polls; ``preview_timeout`` (seconds) limits a cohort
    preview, which is answered only when the cohort is known."""

    def __init__(self, http: ServiceClient, polls: ServiceClient, base_url: str, preview_timeout: float) -> None:
        self.http = http
        self.base_url = base_url
        self._polls = polls
        self._preview_timeout = preview_timeout

    def submit(self, crtdl: Path | bytes, patients: Sequence[str] = ()) -> str:
        """Start a job, in one attempt; return its status URL, absolute.

        A file is sent as ``application/fhir+json``; a CRTDL in memory as ``application/json``. With
        ``patients`` the server ignores the cohort of the CRTDL. Raises ``InputError`` (``crtdl-unreadable``,
        ``crtdl-not-json``, ``submission-too-large``), ``ServiceError`` (``content-location-missing``, …),
        ``ServiceBusyError``, ``NetworkError``.
        """
        content, kind = (crtdl, JSON) if isinstance(crtdl, bytes) else (read_content(crtdl), FHIR_JSON)
        parse_document(content, crtdl if isinstance(crtdl, Path) else Path("CRTDL"))
        parameters = [{"name": "crtdl", "valueBase64Binary": base64.b64encode(content).decode("ascii")}]
        parameters += [{"name": "patient", "valueString": patient} for patient in patients]
        body = msgspec.json.encode({"resourceType": "Parameters", "parameter": parameters})
        if len(body) > LARGEST_SUBMISSION:
            what = f"the query with {len(patients):,} patient ids is larger than the 2 MiB that the server takes"
            hint = "split the list of patients into several jobs"
            raise InputError("submission-too-large", what, hint=hint, operation="submit")
        call = Call("POST", service_url(self.base_url, "$extract-data"), "submit", body, {"Content-Type": kind})
        answer = self._send(call, retry=False)
        location = answer.headers.get("content-location", "").strip()
        if not location:
            what = "without a Content-Location, so the job's address is unknown"
            raise _unexpected(answer, call, what, "content-location-missing")
        status_url = resolve(location, self.base_url)
        if not is_job_id(job_id_of(status_url)):
            raise _unexpected(answer, call, "with a Content-Location that names no job: its last segment is no UUID")
        return status_url

    def poll(self, status_url: str) -> Answer:
        """Ask for the state of a job, once; return the answer, whatever its status. Raises ``NetworkError``."""
        call = Call("GET", status_url, "poll", headers={"Accept": JSON}, accept=_EVERY_ANSWER)
        return self._polls.send(call, retry=False)

    def evaluate_cohort(self, query: bytes) -> tuple[str, ...]:
        """Return the ids of the patients that a CRTDL or a bare CCDL selects; the server stores nothing."""
        url, headers = service_url(self.base_url, "$evaluate-cohort"), {"Content-Type": JSON}
        call = Call("POST", url, "preview", query, headers, self._preview_timeout)
        answer = self._send(call)
        found = object_of(json_of(answer))
        items = [object_of(object_of(entry).get("item")) for entry in list_of(found.get("entry"))]
        patients = [_PATIENT.fullmatch(str(item.get("reference"))) for item in items]
        if found.get("resourceType") != "List" or None in patients:
            raise _unexpected(answer, call, "with something other than a List of Patient/<id>")
        return tuple(dict.fromkeys(patient[1] for patient in patients if patient is not None))

    def tasks(self, ids: Sequence[str] = ()) -> list[ExtractionTask]:
        """Return these jobs, or all, newest first."""
        call = Call("GET", service_url(self.base_url, "Task") + (f"?_id={','.join(ids)}" if ids else ""), "task")
        answer = self._send(call)
        found = parse_tasks(json_of(answer))
        if found is None:
            raise _unexpected(answer, call, "with something other than a Bundle")
        return found

    def task(self, job_id: str, *, retry: bool = True) -> ExtractionTask:
        """Return one job. Raises ``ServiceError`` (``service-not-found`` if there is none)."""
        return self._ask(Call("GET", self._task_url(job_id), "task"), retry=retry)

    def look(self, job_id: str) -> ExtractionTask | None:
        """Return one job, in one attempt; ``None`` after any error."""
        try:
            return self.task(job_id, retry=False)
        except SluiceError:
            return None

    def change(self, job_id: str, operation: str) -> ExtractionTask:
        """``pause``, ``resume`` or ``cancel`` a job, in one attempt; return the updated Task.

        Raises ``ServiceError``, status 409 if the state of the job does not allow it.
        """
        return self._ask(Call("POST", self._task_url(job_id, f"${operation}"), operation, b""), retry=False)

    def delete(self, job_id: str) -> None:
        """Remove a job and its result files, in one attempt."""
        self._send(Call("DELETE", self._task_url(job_id), "delete"), retry=False)

    def prioritize(self, job_id: str, priority: str) -> ExtractionTask:
        """Change a job's priority (a key of ``PRIORITIES``); read its version again as long as it is stale."""
        for attempt in range(1, _ATTEMPTS):
            try:
                return self._put(self.task(job_id), PRIORITIES[priority])
            except ServiceError as error:
                if error.answered not in _STALE:
                    raise
            time.sleep(_PAUSE * attempt)
        return self._put(self.task(job_id), PRIORITIES[priority])

    def _put(self, task: ExtractionTask, priority: str) -> ExtractionTask:
        body = {
            "resourceType": "Task", "id": task.id, "status": task.task_status, "intent": "order", "priority": priority,
        }  # fmt: skip
        headers = {"Content-Type": FHIR_JSON, "If-Match": f'W/"{task.version}"'}
        call = Call("PUT", self._task_url(task.id), "prioritize", msgspec.json.encode(body), headers)
        self._send(call, retry=False)
        return self.task(task.id)  # the body of a successful PUT is not specified

    def _send(self, call: Call, *, retry: bool = True) -> Answer:
        """Send a request that is answered with FHIR."""
        headers = {"Accept": FHIR_JSON} | dict(call.headers)
        return self.http.send(replace(call, headers=headers, transient=TRANSIENT), retry=retry)

    def _ask(self, call: Call, *, retry: bool) -> ExtractionTask:
        """Send a request that is answered with a Task."""
        answer = self._send(call, retry=retry)
        task = parse_task(json_of(answer))
        if task is None:
            raise _unexpected(answer, call, "with something other than a Task")
        return task

    def _task_url(self, job_id: str, *more: str) -> str:
        return service_url(self.base_url, "Task", job_id, *more)


def json_of(answer: Answer) -> Any:
    """Return the value of a JSON answer; ``None`` for any other."""
    return parse_json(answer.body) if answer.says_json else None


def _unexpected(answer: Answer, call: Call, what: str, reference: str = "extractor-answer") -> ServiceError:
    where = RequestContext(SERVICE, call.operation, call.method, call.url)
    return wrong_answer(answer, where, what, reference=reference, hint=HINT)
