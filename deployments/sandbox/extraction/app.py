"""The sandbox extraction server as an ASGI application: it routes; the work is done by ``Engine``.

Base path ``/fhir``; result files below ``/output``; ``/openapi.json`` and ``/docs`` describe the API. The event loop
only moves bytes: whatever may wait for a lock or the disk runs in threads.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from deployments.sandbox.common.answering import Answer, Answering, Call, FhirProblem, read_limited
from deployments.sandbox.common.exchange import Receive, Scope, Send
from deployments.sandbox.common.gate import Gate
from deployments.sandbox.common.service import SandboxService
from deployments.sandbox.data import DATA
from deployments.sandbox.extraction.answers import FHIR_JSON, JSON, read_call, said
from deployments.sandbox.extraction.capability import capability_statement
from deployments.sandbox.extraction.cohort import CohortQuery
from deployments.sandbox.extraction.crtdl import read_cohort
from deployments.sandbox.extraction.dates import instant
from deployments.sandbox.extraction.engine import (
    Engine,
    NotAllowedError,
    Settings,
    StaleVersionError,
    UnknownJobError,
)
from deployments.sandbox.extraction.files import OUTPUT, ResultFiles, ResultUrls, UrlStyle
from deployments.sandbox.extraction.findings import QueryError
from deployments.sandbox.extraction.index import BadLines, Index
from deployments.sandbox.extraction.job import Job, JobStatus
from deployments.sandbox.extraction.kickoff import MAX_BODY, read_kickoff
from deployments.sandbox.extraction.openapi import description, page
from deployments.sandbox.extraction.status import manifest, unfinished
from deployments.sandbox.extraction.store import JobStore
from deployments.sandbox.extraction.task import (
    UUID,
    etag,
    read_priority,
    read_version,
    search,
    searchset,
    task,
)
from deployments.sandbox.extraction.units import REPORTS, SUMMARY, Control, Units

_THREADS = 8


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class ExtractionOptions:
    """What an extraction server serves and how it behaves."""

    data: Path = DATA
    """Directory of FHIR NDJSON, plain or zstd; one resource per line, or Bundles."""
    state: Path | None = None
    """Where index, jobs and results are kept; None: nowhere, all is gone at the end."""
    batchsize: int = 500
    """Patients per batch (``extractor.batchsize``)."""
    maxconcurrency: int = 4
    """Batches at once (``extractor.maxconcurrency``)."""
    batch_delay: float = 0.0
    """Seconds that each cohort query, batch and core pass takes longer, so that one can watch."""
    retry_delay: float = 5.0
    """Seconds until a unit that failed for now is tried again."""
    availability_delay: int = 0
    """How many requests for each result file are answered 404 first."""
    result_urls: UrlStyle = UrlStyle.ABSOLUTE
    """How the manifest writes the URLs of files."""
    public_url: str | None = None
    """Root URL under which clients reach the server; None: the one that they, or a proxy's headers, name."""
    bad_lines: BadLines = BadLines.REFUSE
    """What becomes of lines of the data that are no FHIR resource."""
    clock: Callable[[], datetime] = _now
    """Today, for ages and consents; times of jobs."""
    wait: Callable[[Control, float], None] = Control.wait
    """How the parts of ``batch_delay`` are waited for; a test can hold a unit there for as long as it looks."""


class ExtractionServer(Answering):
    """An extraction server over one data directory."""

    name = "extraction"
    kind = FHIR_JSON
    threads = _THREADS

    def __init__(self, options: ExtractionOptions, gate: Gate) -> None:
        self._options = options
        self._gate = gate
        self._started = instant(options.clock())

    def open(self) -> None:
        """Index the data, take up the jobs. Raises ``SandboxStartError``."""
        options = self._options
        self._temporary = tempfile.mkdtemp(prefix="sluice-extraction-") if options.state is None else None
        state = options.state if options.state is not None else Path(self._temporary or "")
        try:
            self._store = JobStore(state)
        except BaseException:
            self._forget()
            raise
        try:
            self._index = Index(options.data, state / "index", options.bad_lines)
            self._index.build()
        except BaseException:
            self._store.close()
            self._forget()
            raise
        self._units = Units(self._index, state / "results", options.clock, options.batch_delay, options.wait)
        self._files = ResultFiles(self._units.results, options.availability_delay)
        settings = Settings(options.batchsize, options.maxconcurrency, options.retry_delay)
        self._engine = Engine(self._store, self._units, settings)
        self._engine.start()
        super().open()
        self._previews = Control()

    def close(self) -> None:
        """Give up what is running; it runs again at the next start."""
        self._previews.abort()
        self._engine.stop()
        super().close()
        self._store.close()
        self._forget()

    def _forget(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        """The answer of the engine, or of the result files."""
        call = read_call(scope, self._options.public_url)
        if call.segments[:1] == [OUTPUT]:
            await self._files.serve(call, send)
            return None
        call = dataclasses.replace(call, body=await read_limited(receive, MAX_BODY))
        return await self.work(partial(self._answer, call))

    def _answer(self, call: Call) -> Answer:
        match call.method, list(call.segments):
            case "POST", ["fhir", "$extract-data"]:
                return self._kick_off(call)
            case "POST", ["fhir", "$evaluate-cohort"]:
                return self._preview(call)
            case "GET" | "HEAD", ["fhir", "__status", identity]:
                return self._status(call, identity)
            case "GET" | "HEAD", ["fhir", "Task"]:
                found = search(self._engine.jobs(), call)
                return said(searchset([self._task(job, call) for job in found], call))
            case _, ["fhir", "Task", identity]:
                return self._of_task(call, identity)
            case "POST", ["fhir", "Task", identity, "$pause" | "$resume" | "$cancel" as operation]:
                return self._control(call, identity, operation)
            case "GET" | "HEAD", ["fhir", "metadata"]:
                return Answer(200, capability_statement(call.base, self._started), kind=FHIR_JSON)
            case "GET" | "HEAD", ["openapi.json"]:
                return said(description(call.base), kind=JSON)
            case "GET" | "HEAD", ["docs"]:
                return Answer(200, page(), kind="text/html; charset=utf-8")
        if _is_known(list(call.segments)):
            raise FhirProblem(405, "not-supported", "This method is not available here.")
        raise FhirProblem(404, "not-found", "The extraction server has no such endpoint; /docs lists them.")

    def _kick_off(self, call: Call) -> Answer:
        wanted = read_kickoff(call.body)
        job = self._engine.submit(wanted.crtdl, wanted.patients)
        return Answer(202, headers={"content-location": _status_url(call, job)})

    def _preview(self, call: Call) -> Answer:
        try:
            cohort = read_cohort(call.body)
        except QueryError as error:
            raise FhirProblem(400, "invalid", *error.findings, severity="fatal") from None
        with self._index.reader() as reader:
            query = CohortQuery(reader, self._options.clock().date(), self._previews.check)
            patients = query.patients(cohort)
        found: dict[str, Any] = {"resourceType": "List", "status": "current", "mode": "working"}
        if patients:
            found["entry"] = [{"item": {"reference": f"Patient/{patient}"}} for patient in patients]
        return said(found)

    def _status(self, call: Call, identity: str) -> Answer:
        if not UUID.fullmatch(identity):
            raise FhirProblem(400, "invalid", "The id of a job is a UUID.")
        job = self._find(identity)
        if job.status is not JobStatus.COMPLETED:
            return unfinished(job)
        urls = ResultUrls(call.base, self._options.result_urls)
        try:
            crtdl = self._engine.crtdl(job.id)
            summary = (self._units.directory(job.id) / REPORTS / SUMMARY).read_bytes() if job.batches else None
        except (UnknownJobError, FileNotFoundError):
            # Somebody deletes the job at this moment.
            raise _unknown() from None
        return manifest(job, _status_url(call, job), urls, crtdl, summary, needs_token=not self._gate.is_open)

    def _of_task(self, call: Call, identity: str) -> Answer:
        job = self._find(identity)
        match call.method:
            case "GET" | "HEAD":
                return self._shown(job, call)
            case "PUT":
                version = read_version(call)
                priority = read_priority(call.body)
                return self._changed(call, partial(self._engine.prioritize, job.id, version, priority))
            case "DELETE":
                try:
                    self._engine.delete(job.id)
                except UnknownJobError:
                    raise _unknown() from None
                except OSError:
                    raise FhirProblem(500, "exception", "The result files could not be removed.") from None
                return Answer(204)
        raise FhirProblem(405, "not-supported", "A Task is read, changed by PUT, and deleted.")

    def _control(self, call: Call, identity: str, operation: str) -> Answer:
        job = self._find(identity)
        change = {"$pause": self._engine.pause, "$resume": self._engine.resume, "$cancel": self._engine.cancel}
        return self._changed(call, partial(change[operation], job.id))

    def _changed(self, call: Call, change: Callable[[], Job]) -> Answer:
        try:
            return self._shown(change(), call)
        except UnknownJobError:
            raise _unknown() from None
        except (NotAllowedError, StaleVersionError) as error:
            raise FhirProblem(409, "conflict", str(error)) from None

    def _find(self, identity: str) -> Job:
        try:
            return self._engine.get(identity.lower())
        except UnknownJobError:
            raise _unknown() from None

    def _shown(self, job: Job, call: Call) -> Answer:
        return said(self._task(job, call), headers={"etag": etag(job)})

    def _task(self, job: Job, call: Call) -> dict[str, Any]:
        urls = ResultUrls(call.base)
        directory = self._units.directory(job.id)
        done = job.batches if job.status is JobStatus.COMPLETED else ()
        names = [f"{batch.id}_consent.ndjson" for batch in done]
        audits = [urls.of(job.id, name) for name in names if (directory / name).is_file()]
        return task(job, self._engine.stages(job.id), audits)


def extraction_service(options: ExtractionOptions | None = None, gate: Gate | None = None) -> SandboxService:
    """The extraction server in its frame, ready for ``serve_in_thread`` or the host."""
    gate = gate or Gate()
    return SandboxService(ExtractionServer(options or ExtractionOptions(), gate), gate)


def _status_url(call: Call, job: Job) -> str:
    return f"{call.base}/fhir/__status/{job.id}"


def _unknown() -> FhirProblem:
    return FhirProblem(404, "not-found", "There is no such job.")


def _is_known(segments: list[str]) -> bool:
    match segments:
        case ["fhir", "$extract-data" | "$evaluate-cohort" | "Task" | "metadata"] | ["openapi.json"] | ["docs"]:
            return True
        case ["fhir", "__status", _] | ["fhir", "Task", _, "$pause" | "$resume" | "$cancel"]:
            return True
    return False
