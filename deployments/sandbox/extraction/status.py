"""The status endpoint: answers to a poll, and the completion manifest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from starlette.responses import Response

from deployments.sandbox.extraction.events import PATIENT_EXCLUSIONS, RESOURCE_EXCLUSIONS, SUMMARY
from deployments.sandbox.extraction.jobs import Job, JobStatus, UnitState, instant
from deployments.sandbox.extraction.task import EXTENSION_BASE
from deployments.sandbox.service import JSON, Json, json_answer

_STATUSES: Final = {JobStatus.CANCELLED: 410, JobStatus.FAILED: 500, JobStatus.TEMP_FAILED: 503}
_DEFINITIONS: Final = f"{EXTENSION_BASE}/StructureDefinition"


def unfinished(job: Job) -> Response:
    """Return the answer for a job without a result: its issues, and four lines of progress."""
    size = "not known yet" if job.cohort_size is None else f"{job.cohort_size}"
    lines = (
        f"Job: {job.id}", f"Status: {job.status}", f"Batch progress: {job.percent}%", f"Cohort size: {size}",
    )  # fmt: skip
    issues = [
        (each.severity.lower(), "processing", ": ".join(filter(None, (each.msg, each.diagnostics))))
        for each in job.issues
    ]
    issues.append(("information", "informational", "\n".join(lines)))
    document = {
        "resourceType": "OperationOutcome",
        "issue": [{"severity": severity, "code": code, "diagnostics": text} for severity, code, text in issues],
    }
    status = _STATUSES.get(job.status, 202)
    return json_answer(document, status, {"x-progress": _progress(job)} if status == 202 else {})


def _progress(job: Job) -> str:
    """Return the short text for ``X-Progress``."""
    texts = {
        JobStatus.RUNNING_GET_COHORT: "Getting cohort", JobStatus.RUNNING_PROCESS_CORE: "Processing core resources",
        JobStatus.RUNNING_PROCESS_BATCH: f"Processing batches ({job.percent}%)",
    }  # fmt: skip
    return texts.get(job.status, job.status.value.capitalize())


def manifest(job: Job, status_url: str, url_of: Callable[[str], str], summary: bytes | None) -> Response:
    """Return the completion manifest. ``summary``: the diagnostics summary, if available; ``url_of``: of a file."""
    files = [f"{batch.id}.ndjson" for batch in job.batches if batch.state is UnitState.FINISHED]
    files += ["core.ndjson"] if job.core.written else []
    extensions: list[Json] = [{"url": f"{_DEFINITIONS}/extractor-job", "valueObject": job}]
    if summary is not None:
        for name, file in (
            ("extractor-job-diagnostics-summary", SUMMARY), ("extractor-resource-exclusions", RESOURCE_EXCLUSIONS),
            ("extractor-patient-exclusions", PATIENT_EXCLUSIONS),
        ):  # fmt: skip
            extensions.append({"url": f"{_DEFINITIONS}/{name}", "valueUrl": url_of(file)})
        extensions[1]["valueObject"] = msgspec.Raw(summary)
    if job.issues:
        extensions.append({"url": f"{_DEFINITIONS}/extractor-job-issues", "valueObject": job.issues})
    document = {
        "transactionTime": instant(job.finished_at or job.created_at),
        "request": status_url,
        "requiresAccessToken": False,
        "output": [{"type": "NDJSON Bundle", "url": url_of(name)} for name in files],
        "error": [],
        "extension": extensions,
    }
    return json_answer(document, kind=JSON)
