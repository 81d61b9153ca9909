"""The extraction server over HTTP: operations at ``/fhir`` (docs/services.md), result files below ``/output``."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec
from starlette.responses import FileResponse, Response

from deployments.sandbox.child import SandboxStartError
from deployments.sandbox.extraction.cohort import CohortQuery
from deployments.sandbox.extraction.data import load
from deployments.sandbox.extraction.engine import ExtractionOptions, JobEngine
from deployments.sandbox.extraction.events import SUMMARY
from deployments.sandbox.extraction.extract import UnitRunner
from deployments.sandbox.extraction.jobs import Job, JobStatus, JobStore
from deployments.sandbox.extraction.query import read_cohort, read_query, refused
from deployments.sandbox.extraction.status import manifest, unfinished
from deployments.sandbox.extraction.task import UUID, etag, read_priority, read_version, search, searchset, task
from deployments.sandbox.r4 import ID
from deployments.sandbox.service import (
    Call,
    Endpoint,
    FhirProblem,
    Json,
    SandboxService,
    json_answer,
    operations,
)

MAX_BODY: Final = 2 * 1024 * 1024
_FILE: Final = re.compile(
    rf"(?:{UUID.pattern}(?:_consent)?|core)\.ndjson"
    r"|reports/(?:job-summary\.json|resource-exclusions\.csv|patient-exclusions\.csv)"
)
_TYPES: Final = {".ndjson": "application/fhir+ndjson", ".csv": "text/csv", ".json": "application/json"}


class _Parameter(msgspec.Struct, rename="camel"):
    name: Literal["crtdl", "patient"]
    value_base64_binary: bytes | None = None
    value_string: str | None = None


class _Parameters(msgspec.Struct, rename="camel"):
    resource_type: Literal["Parameters"]
    parameter: tuple[_Parameter, ...] = ()


class _ExtractionServer:
    def __init__(self, options: ExtractionOptions) -> None:
        self._options = options
        self._asked: Counter[str] = Counter()
        one = "/fhir/Task/{id}"
        endpoints: list[Endpoint] = [
            ("POST", "/fhir/$extract-data", self._kick_off), ("POST", "/fhir/$evaluate-cohort", self._preview),
            ("GET", "/fhir/__status/{id}", self._status), ("GET", "/fhir/Task", self._search), ("GET", one, self._read),
            ("PUT", one, self._prioritize), ("DELETE", one, self._delete),
            *(("POST", f"{one}/${name}", partial(self._control, name)) for name in ("pause", "resume", "cancel")),
            ("GET", "/output/{job}/{name:path}", self._file),
        ]  # fmt: skip
        interactions = [{"code": code} for code in ("read", "update", "delete", "search-type")]
        rest = {
            "resource": [{"type": "Task", "interaction": interactions}],
            "operation": operations("extract-data", "evaluate-cohort"),
        }
        self.service = SandboxService("extraction", endpoints, opened=self._opened, max_body=MAX_BODY, rest=rest)

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Read the data and continue the jobs. Raises ``SandboxStartError``."""
        options = self._options
        with ExitStack() as opened:
            state = options.state
            if state is None:
                state = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="sluice-extraction-")))
            self._data = load(options.data)
            self._store = JobStore(state)
            self._engine = JobEngine(self._store, UnitRunner(self._data, self._store, options), options)
            try:
                opened.enter_context(self._engine.working())
            except OSError as error:
                raise SandboxStartError(f"the state directory {state} cannot be used: {error.strerror}") from None
            yield

    # Kick-off and preview

    def _kick_off(self, call: Call) -> Response:
        crtdl, patients = _read_kickoff(call)
        job = self._engine.submit(crtdl, patients)
        return Response(status_code=202, headers={"content-location": _status_url(call, job)})

    def _preview(self, call: Call) -> Response:
        cohort = read_cohort(call.body)
        found: Json = {"resourceType": "List", "status": "current", "mode": "working"}
        patients = CohortQuery(self._data, self._options.clock().date()).patients(cohort)
        if patients:
            found["entry"] = [{"item": {"reference": f"Patient/{patient}"}} for patient in patients]
        return json_answer(found)

    # Status and files

    def _status(self, call: Call) -> Response:
        if not UUID.fullmatch(call.request.path_params["id"]):
            raise FhirProblem(400, "invalid", "A job id must be a UUID.")
        job = self._find(call)
        if job.status is not JobStatus.COMPLETED:
            return unfinished(job)
        summary = (self._store.results(job.id) / SUMMARY).read_bytes() if job.batches else None
        url_of = partial(self._file_url, call.root, job.id)
        return manifest(job, _status_url(call, job), url_of, summary)

    def _file_url(self, root: str, job: str, name: str) -> str:
        url = f"{root}/output/{job}/{name}"
        match self._options.result_urls:
            case "path":
                return urlsplit(url).path
            case "host":
                return url.partition("://")[2]
        return url

    def _file(self, call: Call) -> Response:
        job, name = call.request.path_params["job"], call.request.path_params["name"]
        path = self._store.results(job) / name
        if not UUID.fullmatch(job) or not _FILE.fullmatch(name) or not path.is_file():
            raise FhirProblem(404, "not-found", "There is no such file.")
        if self._asked[str(path)] < self._options.availability_delay:
            self._asked[str(path)] += 1
            raise FhirProblem(404, "not-found", "The file is not available yet.")
        return FileResponse(path, media_type=_TYPES[path.suffix])

    # Tasks

    def _search(self, call: Call) -> Response:
        found = [self._task(job, call) for job in search(self._engine.jobs(), call)]
        return json_answer(searchset(found, call.root, call.request.url.query))

    def _read(self, call: Call) -> Response:
        return self._shown(self._find(call), call)

    def _prioritize(self, call: Call) -> Response:
        job, version = self._find(call), read_version(call)
        priority = read_priority(call.document())
        return self._shown(self._engine.prioritize(job.id, version, priority), call)

    def _delete(self, call: Call) -> Response:
        try:
            self._engine.delete(self._find(call).id)
        except OSError:
            raise FhirProblem(500, "exception", "The result files could not be removed.") from None
        return Response(status_code=204)

    def _control(self, name: Literal["pause", "resume", "cancel"], call: Call) -> Response:
        operation = {"pause": self._engine.pause, "resume": self._engine.resume, "cancel": self._engine.cancel}[name]
        return self._shown(operation(self._find(call).id), call)

    def _find(self, call: Call) -> Job:
        return self._engine.get(call.request.path_params["id"].lower())

    def _shown(self, job: Job, call: Call) -> Response:
        return json_answer(self._task(job, call), headers={"etag": etag(job)})

    def _task(self, job: Job, call: Call) -> Json:
        audits = [batch.id for batch in job.batches if batch.audited]
        urls = [f"{call.root}/output/{job.id}/{name}_consent.ndjson" for name in audits]
        return task(job, self._engine.stages(job.id), urls)


def _read_kickoff(call: Call) -> tuple[bytes, tuple[str, ...]]:
    """Return the CRTDL and the listed patients. Raises ``FhirProblem`` 400."""
    try:
        given = msgspec.json.decode(call.body, type=_Parameters).parameter
    except (ValueError, RecursionError) as error:
        raise refused(f"the body is not a Parameters resource: {error}") from None
    queries = [each.value_base64_binary for each in given if each.name == "crtdl"]
    patients = {each.value_string or "" for each in given if each.name == "patient"}
    if len(queries) != 1 or queries[0] is None:
        raise refused(f"exactly one crtdl parameter with a valueBase64Binary is required, {len(queries)} found")
    if not all(ID.fullmatch(patient) for patient in patients):
        raise refused("a patient parameter needs a valueString with the id of a Patient")
    read_query(queries[0])
    return queries[0], tuple(sorted(patients))


def _status_url(call: Call, job: Job) -> str:
    return f"{call.root}/fhir/__status/{job.id}"


def extraction_service(options: ExtractionOptions | None = None) -> SandboxService:
    """Return the extraction server."""
    return _ExtractionServer(options or ExtractionOptions()).service
