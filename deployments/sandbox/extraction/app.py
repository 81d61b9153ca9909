"""The sandbox extraction server as an ASGI application. It routes requests; ``JobEngine`` does the work.

Base path ``/fhir``; result files below ``/output``; ``/openapi.json`` and ``/docs`` describe the API. The event loop
only moves bytes: work that can wait for a lock or the disk runs in threads.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from starlette.responses import Response
from starlette.routing import Route

from deployments.sandbox.common.gate import RequiredCredentials
from deployments.sandbox.common.request import FhirProblem, FhirRequest, answer
from deployments.sandbox.common.service import SandboxService, ServiceBackend
from deployments.sandbox.data import DATA
from deployments.sandbox.extraction.board import JobStore
from deployments.sandbox.extraction.cohort import CohortQuery
from deployments.sandbox.extraction.dates import instant
from deployments.sandbox.extraction.engine import (
    JobEngine,
    JobEngineSettings,
    NotAllowedError,
    StaleVersionError,
    UnknownJobError,
)
from deployments.sandbox.extraction.files import OUTPUT, ResultFileServer, ResultUrls, UrlStyle
from deployments.sandbox.extraction.index import BadLines, ResourceIndex
from deployments.sandbox.extraction.job import ExtractionJob, ExtractionJobStatus
from deployments.sandbox.extraction.kickoff import MAX_BODY, read_kickoff
from deployments.sandbox.extraction.openapi import capability_statement, description, page
from deployments.sandbox.extraction.query import QueryError, read_cohort
from deployments.sandbox.extraction.status import FHIR_JSON, JSON, json_response, manifest, root_url, unfinished
from deployments.sandbox.extraction.task import (
    UUID,
    etag,
    read_priority,
    read_version,
    search,
    searchset,
    task,
)
from deployments.sandbox.extraction.units import REPORTS, SUMMARY, UnitControl, Units

_THREADS = 8
_CONTROLS = ("pause", "resume", "cancel")


Seconds = Annotated[float, Field(ge=0, le=3600)]


def _now() -> datetime:
    return datetime.now(UTC)


def _root_url(text: str) -> str:
    """Return a URL without its trailing slash. Raises ``ValueError``."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise ValueError("expected an http or https URL")
    return text.rstrip("/")


@dataclass(frozen=True)
class ExtractionOptions:
    """Data and behaviour of an extraction server."""

    data: Path = DATA
    """Directory of FHIR NDJSON, plain or zstd; one resource per line, or Bundles."""
    state: Path | None = None
    """Directory for index, jobs and results; None: a temporary one, deleted at the end."""
    batchsize: Annotated[int, Field(ge=1)] = 500
    """Patients per batch (``extractor.batchsize``)."""
    maxconcurrency: Annotated[int, Field(ge=1)] = 4
    """Batches that run at the same time (``extractor.maxconcurrency``)."""
    batch_delay: Seconds = 0.0
    """Seconds added to each cohort query, batch and core pass, so that a person or test can watch."""
    retry_delay: Seconds = 5.0
    """Seconds before a unit that failed temporarily is retried."""
    availability_delay: Annotated[int, Field(ge=0)] = 0
    """Number of requests for each result file that are answered 404 first."""
    result_urls: UrlStyle = UrlStyle.ABSOLUTE
    """Form of the URLs of files in the manifest."""
    public_url: Annotated[str, AfterValidator(_root_url)] | None = None
    """Root URL for clients; None: the URL that clients, or a proxy's headers, use."""
    bad_lines: BadLines = BadLines.REFUSE
    """Treatment of lines that are not FHIR resources."""
    clock: Callable[[], datetime] = _now
    """Clock for ages, consents and the times of jobs."""
    wait: Callable[[UnitControl, float], None] = UnitControl.wait
    """Function that waits for the parts of ``batch_delay``; a test can hold a unit there."""


class ExtractionServer(ServiceBackend):
    """An extraction server over one data directory."""

    name = "extraction"
    elsewhere = "Unknown path. The endpoints are listed at /docs."
    kind = FHIR_JSON
    threads = _THREADS

    def __init__(self, options: ExtractionOptions, gate: RequiredCredentials) -> None:
        self._options = options
        self._gate = gate
        self._started = instant(options.clock())

    def open(self) -> None:
        """Index the data and continue the jobs. Raises ``SandboxStartError``."""
        options = self._options
        self._temporary = tempfile.mkdtemp(prefix="sluice-extraction-") if options.state is None else None
        state = options.state if options.state is not None else Path(self._temporary or "")
        try:
            self._store = JobStore(state)
        except BaseException:
            self._forget()
            raise
        try:
            self._index = ResourceIndex(options.data, state / "index", options.bad_lines)
            self._index.build()
        except BaseException:
            self._store.close()
            self._forget()
            raise
        self._units = Units(self._index, state / "results", options.clock, options.batch_delay, options.wait)
        self._files = ResultFileServer(self._units.results, options.availability_delay)
        settings = JobEngineSettings(options.batchsize, options.maxconcurrency, options.retry_delay)
        self._engine = JobEngine(self._store, self._units, settings)
        self._engine.start()
        super().open()
        self._previews = UnitControl()

    def close(self) -> None:
        """Interrupt running units; they run again at the next start."""
        self._previews.abort()
        self._engine.stop()
        super().close()
        self._store.close()
        self._forget()

    def _forget(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def routes(self) -> list[Route]:
        """Return routes for the operations on jobs, the result files, and the description of the API."""
        task = "/fhir/Task/{id}"
        return [
            self._in_thread("/fhir/$extract-data", self._kick_off, "POST"),
            self._in_thread("/fhir/$evaluate-cohort", self._preview, "POST"),
            self._in_thread("/fhir/__status/{id}", self._status, "GET"),
            self._in_thread("/fhir/Task", self._search, "GET"),
            self._in_thread(task, self._read, "GET"),
            self._in_thread(task, self._prioritize, "PUT"),
            self._in_thread(task, self._delete, "DELETE"),
            *(self._in_thread(f"{task}/${name}", partial(self._control, name), "POST") for name in _CONTROLS),
            self._in_thread("/fhir/metadata", self._metadata, "GET"),
            self._in_thread("/openapi.json", self._description, "GET"),
            self._in_thread("/docs", self._page, "GET"),
            self._in_thread(f"/{OUTPUT}/{{job}}/{{name:path}}", self._file, "GET"),
        ]

    def _in_thread(self, path: str, function: Callable[[FhirRequest], Response], method: str) -> Route:
        """Return a route whose work can wait for a lock or the disk."""

        async def handle(request: FhirRequest) -> Response:
            await request.read_content(MAX_BODY)
            return await self.work(partial(function, request))

        return self.route(path, handle, method)

    def _root(self, request: FhirRequest) -> str:
        return root_url(request, self._options.public_url)

    def _metadata(self, request: FhirRequest) -> Response:
        return answer(capability_statement(self._root(request), self._started), kind=FHIR_JSON)

    def _description(self, request: FhirRequest) -> Response:
        return json_response(description(self._root(request)), kind=JSON)

    def _page(self, _request: FhirRequest) -> Response:
        return answer(page(), kind="text/html; charset=utf-8")

    def _file(self, request: FhirRequest) -> Response:
        return self._files.answer(request)

    def _search(self, request: FhirRequest) -> Response:
        root = self._root(request)
        found = search(self._engine.jobs(), request)
        return json_response(searchset([self._task(job, root) for job in found], root, request.query))

    def _kick_off(self, request: FhirRequest) -> Response:
        wanted = read_kickoff(request.content)
        job = self._engine.submit(wanted.crtdl, wanted.patients)
        return answer(status=202, headers={"content-location": _status_url(self._root(request), job)})

    def _preview(self, request: FhirRequest) -> Response:
        try:
            cohort = read_cohort(request.content)
        except QueryError as error:
            raise FhirProblem(400, "invalid", *error.findings, severity="fatal") from None
        with self._index.reader() as reader:
            query = CohortQuery(reader, self._options.clock().date(), self._previews.check)
            patients = query.patients(cohort)
        found: dict[str, Any] = {"resourceType": "List", "status": "current", "mode": "working"}
        if patients:
            found["entry"] = [{"item": {"reference": f"Patient/{patient}"}} for patient in patients]
        return json_response(found)

    def _status(self, request: FhirRequest) -> Response:
        if not UUID.fullmatch(request.path_params["id"]):
            raise FhirProblem(400, "invalid", "A job id must be a UUID.")
        job = self._find(request)
        if job.status is not ExtractionJobStatus.COMPLETED:
            return unfinished(job)
        root = self._root(request)
        urls = ResultUrls(root, self._options.result_urls)
        try:
            crtdl = self._engine.crtdl(job.id)
            summary = (self._units.directory(job.id) / REPORTS / SUMMARY).read_bytes() if job.batches else None
        except (UnknownJobError, FileNotFoundError):
            # The job is being deleted at this moment.
            raise _unknown() from None
        return manifest(job, _status_url(root, job), urls, crtdl, summary, needs_token=not self._gate.is_open)

    def _read(self, request: FhirRequest) -> Response:
        return self._shown(self._find(request), request)

    def _prioritize(self, request: FhirRequest) -> Response:
        job = self._find(request)
        version = read_version(request)
        priority = read_priority(request.content)
        return self._changed(request, partial(self._engine.prioritize, job.id, version, priority))

    def _delete(self, request: FhirRequest) -> Response:
        try:
            self._engine.delete(self._find(request).id)
        except UnknownJobError:
            raise _unknown() from None
        except OSError:
            raise FhirProblem(500, "exception", "The result files could not be removed.") from None
        return answer(status=204)

    def _control(self, name: str, request: FhirRequest) -> Response:
        change: dict[str, Callable[[str], ExtractionJob]] = {
            "pause": self._engine.pause,
            "resume": self._engine.resume,
            "cancel": self._engine.cancel,
        }
        return self._changed(request, partial(change[name], self._find(request).id))

    def _changed(self, request: FhirRequest, change: Callable[[], ExtractionJob]) -> Response:
        try:
            return self._shown(change(), request)
        except UnknownJobError:
            raise _unknown() from None
        except (NotAllowedError, StaleVersionError) as error:
            raise FhirProblem(409, "conflict", str(error)) from None

    def _find(self, request: FhirRequest) -> ExtractionJob:
        try:
            return self._engine.get(request.path_params["id"].lower())
        except UnknownJobError:
            raise _unknown() from None

    def _shown(self, job: ExtractionJob, request: FhirRequest) -> Response:
        return json_response(self._task(job, self._root(request)), headers={"etag": etag(job)})

    def _task(self, job: ExtractionJob, root: str) -> dict[str, Any]:
        urls = ResultUrls(root)
        directory = self._units.directory(job.id)
        done = job.batches if job.status is ExtractionJobStatus.COMPLETED else ()
        names = [f"{batch.id}_consent.ndjson" for batch in done]
        audits = [urls.of(job.id, name) for name in names if (directory / name).is_file()]
        return task(job, self._engine.stages(job.id), audits)


def extraction_service(
    options: ExtractionOptions | None = None, gate: RequiredCredentials | None = None
) -> SandboxService:
    """Return the extraction server, ready for ``serve_in_thread`` or the host."""
    gate = gate or RequiredCredentials()
    return SandboxService(ExtractionServer(options or ExtractionOptions(), gate), gate)


def _status_url(root: str, job: ExtractionJob) -> str:
    return f"{root}/fhir/__status/{job.id}"


def _unknown() -> FhirProblem:
    return FhirProblem(404, "not-found", "There is no such job.")
