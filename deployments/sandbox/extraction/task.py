"""Jobs as FHIR Tasks: the resource, the search, and the change of priority (document 2, "Task resource mapping")."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from deployments.sandbox.common.request import FhirProblem, FhirRequest
from deployments.sandbox.extraction.dates import instant
from deployments.sandbox.extraction.diagnostics import Stage
from deployments.sandbox.extraction.job import ExtractionJob, ExtractionJobStatus, JobPriority
from deployments.sandbox.extraction.query import quoted

EXTENSION_BASE = "https://sandbox.example/fhir"
"""``{extension_base}`` in document 2."""
STATUS_SYSTEM = f"{EXTENSION_BASE}/CodeSystem/job-status"
"""``{job_status_system}`` in document 2."""
PROGRESS = f"{EXTENSION_BASE}/extractor-job-progress"

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_ETAG = re.compile(r'(?:W/)?"(\d{1,18})"')
_TASK_STATUS = {
    ExtractionJobStatus.PENDING: "requested",
    ExtractionJobStatus.RUNNING_GET_COHORT: "in-progress",
    ExtractionJobStatus.RUNNING_PROCESS_BATCH: "in-progress",
    ExtractionJobStatus.RUNNING_PROCESS_CORE: "in-progress",
    ExtractionJobStatus.PAUSED: "on-hold",
    ExtractionJobStatus.TEMP_FAILED: "on-hold",
    ExtractionJobStatus.COMPLETED: "completed",
    ExtractionJobStatus.FAILED: "failed",
    ExtractionJobStatus.CANCELLED: "cancelled",
}
_PRIORITIES = {
    None: JobPriority.NORMAL,
    "routine": JobPriority.NORMAL,
    "urgent": JobPriority.HIGH,
    "asap": JobPriority.HIGH,
    "stat": JobPriority.HIGH,
}
_HARMLESS = ("_format", "_pretty")


def etag(job: ExtractionJob) -> str:
    """Return the version as a weak ETag."""
    return f'W/"{job.version}"'


def task(job: ExtractionJob, stages: Mapping[str, Stage], consent_urls: Sequence[str]) -> dict[str, Any]:
    """Return the Task of a job. ``consent_urls``: URLs of the existing consent audit files."""
    changed = instant(job.updated or job.created)
    resource: dict[str, Any] = {
        "resourceType": "Task",
        "id": job.id,
        "meta": {"versionId": str(job.version), "lastUpdated": changed},
    }
    if job.cohort_size is not None:
        resource["extension"] = [_progress(job, job.cohort_size, stages)]
    resource |= {
        "status": _TASK_STATUS[job.status],
        "businessStatus": {"coding": [{"system": STATUS_SYSTEM, "code": job.status.value}]},
        "intent": "order",
        "priority": "asap" if job.priority is JobPriority.HIGH else "routine",
        "authoredOn": instant(job.created),
        "lastModified": changed,
    }
    if job.started is not None:
        end = {"end": instant(job.finished)} if job.finished is not None else {}
        resource["executionPeriod"] = {"start": instant(job.started)} | end
    if consent_urls and job.status is ExtractionJobStatus.COMPLETED:
        kind = {"text": "Consent audit NDJSON"}
        resource["output"] = [{"type": kind, "valueUrl": url} for url in consent_urls]
    return resource


def _progress(job: ExtractionJob, cohort_size: int, stages: Mapping[str, Stage]) -> dict[str, Any]:
    numbers = {
        "cohortSize": cohort_size,
        "batchSize": job.batch_size,
        "batchesTotal": len(job.batches),
        "batchesCompleted": job.completed_batches,
    }
    parts: list[dict[str, Any]] = [{"url": name, "valueInteger": value} for name, value in numbers.items()]
    for batch in job.batches:
        # A batch that still runs after its job is cancelled is not reported as progress.
        if batch.id in stages and not batch.state.is_done and not job.status.is_final:
            fields = {"batchId": batch.id, "stage": stages[batch.id].value}
            inner = [{"url": name, "valueString": value} for name, value in fields.items()]
            parts.append({"url": "activeBatch", "extension": inner})
    return {"url": PROGRESS, "extension": parts}


def search(jobs: Iterable[ExtractionJob], request: FhirRequest) -> list[ExtractionJob]:
    """Return the jobs that match a search. Raises ``FhirProblem`` 400 in strict mode, with every problem."""
    problems: list[str] = []
    wanted: list[tuple[str, set[str]]] = []
    for name, value in parse_qsl(request.query, keep_blank_values=True):
        parts = [part for part in value.split(",") if part] or [""]
        if name == "_id":
            good = {part.lower() for part in parts if UUID.fullmatch(part)}
            bad = [part for part in parts if not UUID.fullmatch(part)]
            problems += [f"_id: {quoted(part)} is not a UUID" for part in bad]
        elif name == "status":
            good = {part for part in parts if part in ExtractionJobStatus.__members__}
            bad = [part for part in parts if part not in ExtractionJobStatus.__members__]
            problems += [f"status: {quoted(part)} is not one of {', '.join(ExtractionJobStatus)}" for part in bad]
        elif name in _HARMLESS:
            continue
        else:
            problems.append(f"{quoted(name)}: this search parameter is not supported")
            continue
        if good:
            wanted.append((name, good))
    if problems and request.is_strict:
        raise FhirProblem(400, "invalid", *problems)
    return [
        job for job in jobs if all((job.id if name == "_id" else job.status.value) in good for name, good in wanted)
    ]


def searchset(tasks: Sequence[dict[str, Any]], root: str, query: str) -> dict[str, Any]:
    """Return the Bundle of a search."""
    url = f"{root}/fhir/Task"
    bundle: dict[str, Any] = {
        "resourceType": "Bundle",
        "type": "searchset",
        "total": len(tasks),
        "link": [{"relation": "self", "url": url + (f"?{query}" if query else "")}],
    }
    if tasks:
        bundle["entry"] = [
            {"fullUrl": f"{url}/{found['id']}", "resource": found, "search": {"mode": "match"}} for found in tasks
        ]
    return bundle


def read_version(request: FhirRequest) -> int:
    """Return the version in ``If-Match``. Raises ``FhirProblem`` 428."""
    match = _ETAG.fullmatch(request.headers.get("if-match", "").strip())
    if match is None:
        raise FhirProblem(428, "required", 'If-Match with the version of the Task is required, for example W/"3"')
    return int(match[1])


def read_priority(body: bytes) -> JobPriority:
    """Return the priority in a Task and ignore its other elements. Raises ``FhirProblem`` 400."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise FhirProblem(400, "structure", "the body is not JSON") from None
    if not isinstance(document, dict) or document.get("resourceType") != "Task":
        raise FhirProblem(400, "structure", "the body is not a Task")
    priority = document.get("priority")
    if priority is not None and (not isinstance(priority, str) or priority not in _PRIORITIES):
        known = ", ".join(name for name in _PRIORITIES if name)
        raise FhirProblem(400, "value", f"the priority is not one of {known}")
    return _PRIORITIES[priority]
