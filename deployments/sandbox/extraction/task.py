"""Jobs as FHIR Tasks: the resource, the search, and the change of priority (docs/services.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import parse_qsl

from deployments.sandbox.extraction.events import Stage
from deployments.sandbox.extraction.jobs import Job, JobPriority, JobStatus, instant
from deployments.sandbox.service import Call, FhirProblem, Json, quoted

EXTENSION_BASE: Final = "https://sandbox.example/fhir"
"""The base of the URLs of the extensions of a Task."""
STATUS_SYSTEM: Final = f"{EXTENSION_BASE}/CodeSystem/job-status"
"""The code system of the states of a job."""
UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_ETAG: Final = re.compile(r'(?:W/)?"(\d{1,18})"')
_STATUS: Final = {
    JobStatus.PENDING: "requested", JobStatus.RUNNING_GET_COHORT: "in-progress",
    JobStatus.RUNNING_PROCESS_BATCH: "in-progress", JobStatus.RUNNING_PROCESS_CORE: "in-progress",
    JobStatus.PAUSED: "on-hold", JobStatus.TEMP_FAILED: "on-hold", JobStatus.COMPLETED: "completed",
    JobStatus.FAILED: "failed", JobStatus.CANCELLED: "cancelled",
}  # fmt: skip
_PRIORITIES: Final = {"routine": JobPriority.NORMAL} | dict.fromkeys(("urgent", "asap", "stat"), JobPriority.HIGH)


def etag(job: Job) -> str:
    """Return the version as a weak ETag."""
    return f'W/"{job.version}"'


def task(job: Job, stages: Mapping[str, Stage], consent_urls: Sequence[str]) -> Json:
    """Return the Task of a job. ``consent_urls``: URLs of the consent audit files of its batches."""
    changed = instant(job.updated_at or job.created_at)
    resource: Json = {
        "resourceType": "Task", "id": job.id, "meta": {"versionId": str(job.version), "lastUpdated": changed},
    }  # fmt: skip
    if job.cohort_size is not None:
        resource["extension"] = [_progress(job, job.cohort_size, stages)]
    resource |= {
        "status": _STATUS[job.status],
        "businessStatus": {"coding": [{"system": STATUS_SYSTEM, "code": job.status.value}]},
        "intent": "order",
        "priority": "asap" if job.priority is JobPriority.HIGH else "routine",
        "authoredOn": instant(job.created_at),
        "lastModified": changed,
    }
    if job.started_at is not None:
        end = {"end": instant(job.finished_at)} if job.finished_at is not None else {}
        resource["executionPeriod"] = {"start": instant(job.started_at)} | end
    if consent_urls and job.status is JobStatus.COMPLETED:
        resource["output"] = [{"type": {"text": "Consent audit NDJSON"}, "valueUrl": url} for url in consent_urls]
    return resource


def _progress(job: Job, cohort_size: int, stages: Mapping[str, Stage]) -> Json:
    numbers = {
        "cohortSize": cohort_size, "batchSize": job.parameters.batch_size, "batchesTotal": len(job.batches),
        "batchesCompleted": job.completed_batches,
    }  # fmt: skip
    parts: list[Json] = [{"url": name, "valueInteger": value} for name, value in numbers.items()]
    for batch in job.batches:
        if batch.id in stages and not batch.state.is_done and not job.status.is_final:
            fields = {"batchId": batch.id, "stage": stages[batch.id].value}
            inner = [{"url": name, "valueString": value} for name, value in fields.items()]
            parts.append({"url": "activeBatch", "extension": inner})
    return {"url": f"{EXTENSION_BASE}/extractor-job-progress", "extension": parts}


def search(jobs: Iterable[Job], call: Call) -> list[Job]:
    """Return the jobs that match a search. Raises ``FhirProblem`` 400 in strict mode, with every problem.

    Otherwise wrong values are ignored, and a parameter of which nothing is left does not filter.
    """
    problems: list[str] = []
    wanted: list[tuple[str, set[str]]] = []
    for name, value in parse_qsl(call.request.url.query, keep_blank_values=True):
        parts = [part for part in value.split(",") if part] or [""]
        if name == "_id":
            good = {part.lower() for part in parts if UUID.fullmatch(part)}
            problems += [f"_id: {quoted(part)} is not a UUID" for part in parts if not UUID.fullmatch(part)]
        elif name == "status":
            good = {part for part in parts if part in JobStatus.__members__}
            known = ", ".join(JobStatus)
            problems += [f"status: {quoted(part)} is not one of {known}" for part in parts if part not in good]
        elif name in ("_format", "_pretty"):
            continue
        else:
            problems.append(f"{quoted(name)}: this search parameter is not supported")
            continue
        if good:
            wanted.append((name, good))
    if problems and "handling=strict" in call.request.headers.get("prefer", "").lower().replace(" ", ""):
        raise FhirProblem(400, "invalid", *problems)
    return [
        job for job in jobs if all((job.id if name == "_id" else job.status.value) in good for name, good in wanted)
    ]


def searchset(tasks: Sequence[Json], root: str, query: str) -> Json:
    """Return the Bundle of a search."""
    url = f"{root}/fhir/Task"
    link = [{"relation": "self", "url": url + (f"?{query}" if query else "")}]
    bundle: Json = {"resourceType": "Bundle", "type": "searchset", "total": len(tasks), "link": link}
    entries = [{"fullUrl": f"{url}/{each['id']}", "resource": each, "search": {"mode": "match"}} for each in tasks]
    return bundle | ({"entry": entries} if entries else {})


def read_version(call: Call) -> int:
    """Return the version in ``If-Match``. Raises ``FhirProblem`` 428."""
    match = _ETAG.fullmatch(call.request.headers.get("if-match", "").strip())
    if match is None:
        raise FhirProblem(428, "required", 'If-Match with the version of the Task is required, for example W/"3"')
    return int(match[1])


def read_priority(document: object) -> JobPriority:
    """Return the priority in a Task and ignore its other elements. Raises ``FhirProblem`` 400."""
    if not isinstance(document, dict) or document.get("resourceType") != "Task":
        raise FhirProblem(400, "structure", "the body is not a Task")
    priority = document.get("priority", "routine")
    if not isinstance(priority, str) or priority not in _PRIORITIES:
        raise FhirProblem(400, "value", f"the priority is not one of {', '.join(_PRIORITIES)}")
    return _PRIORITIES[priority]
