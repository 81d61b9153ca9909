"""The status endpoint: answers to a poll, and the completion manifest (document 2; document 3 §2)."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from deployments.sandbox.common.json_text import encode
from deployments.sandbox.common.request import FhirRequest, answer
from deployments.sandbox.extraction.dates import instant
from deployments.sandbox.extraction.files import ResultUrls
from deployments.sandbox.extraction.job import ExtractionJob, ExtractionJobStatus, Severity, UnitState
from deployments.sandbox.extraction.task import EXTENSION_BASE
from deployments.sandbox.extraction.units import PATIENT_EXCLUSIONS, REPORTS, RESOURCE_EXCLUSIONS, SUMMARY

FHIR_JSON = "application/fhir+json"
JSON = "application/json"


def json_response(
    document: object, status: int = 200, headers: dict[str, str] | None = None, kind: str = FHIR_JSON
) -> Response:
    """Return a response with a JSON document."""
    return answer(encode(document), status, headers, kind)


def issue(severity: str, code: str, diagnostics: str) -> dict[str, Any]:
    """Return one issue of an OperationOutcome."""
    return {"severity": severity, "code": code, "diagnostics": diagnostics}


def outcome(issues: Any) -> dict[str, Any]:
    """Return an OperationOutcome."""
    return {"resourceType": "OperationOutcome", "issue": list(issues)}


def root_url(request: FhirRequest, public_url: str | None) -> str:
    """Return the URL that the client used, or that a proxy forwards in ``X-Forwarded-…``, as for real servers.

    ``public_url``: root URL to return instead.
    """
    if public_url:
        return public_url

    def forwarded(what: str) -> str:
        return request.headers.get(f"x-forwarded-{what}", "").partition(",")[0].strip()

    prefix = "".join(f"/{part}" for part in forwarded("prefix").split("/") if part)
    here = request.base_url
    return f"{forwarded('proto') or here.scheme}://{forwarded('host') or here.netloc}{prefix}"


_SEVERITIES = {
    Severity.FATAL: "fatal",
    Severity.ERROR: "error",
    Severity.WARNING: "warning",
    Severity.INFO: "information",
    Severity.SUCCESS: "information",
}
_STATUSES = {ExtractionJobStatus.CANCELLED: 410, ExtractionJobStatus.FAILED: 500, ExtractionJobStatus.TEMP_FAILED: 503}
_DEFINITIONS = f"{EXTENSION_BASE}/StructureDefinition"


def progress(job: ExtractionJob) -> str:
    """Return the short text for ``X-Progress``."""
    match job.status:
        case ExtractionJobStatus.RUNNING_GET_COHORT:
            return "Getting cohort"
        case ExtractionJobStatus.RUNNING_PROCESS_BATCH:
            return f"Processing batches ({job.percent}%)"
        case ExtractionJobStatus.RUNNING_PROCESS_CORE:
            return "Processing core resources"
    return job.status.value.capitalize()


def unfinished(job: ExtractionJob) -> Response:
    """Return the answer for an unfinished job: its issues, and four lines of progress."""
    issues = [
        issue(_SEVERITIES[found.severity], "processing", ": ".join(filter(None, (found.msg, found.diagnostics))))
        for found in job.issues
    ]
    size = "not known yet" if job.cohort_size is None else f"{job.cohort_size}"
    lines = (
        f"Job: {job.id}",
        f"Status: {job.status}",
        f"Batch progress: {job.percent}%",
        f"Cohort size: {size}",
    )
    issues.append(issue("information", "informational", "\n".join(lines)))
    status = _STATUSES.get(job.status, 202)
    return json_response(outcome(issues), status, {"x-progress": progress(job)} if status == 202 else {})


def manifest(
    job: ExtractionJob, status_url: str, urls: ResultUrls, crtdl: bytes, summary: bytes | None, *, needs_token: bool
) -> Response:
    """Return the completion manifest. ``summary``: the diagnostics summary, if available."""
    files = [f"{batch.id}.ndjson" for batch in job.batches if batch.state is UnitState.FINISHED]
    files += ["core.ndjson"] if job.core.written else []
    extensions: list[dict[str, Any]] = [{"url": f"{_DEFINITIONS}/extractor-job", "valueObject": job.describe(crtdl)}]
    if summary is not None:
        extensions += [
            {
                "url": f"{_DEFINITIONS}/extractor-job-diagnostics-summary",
                "valueUrl": urls.of(job.id, f"{REPORTS}/{SUMMARY}"),
                "valueObject": msgspec.Raw(summary),
            },
            {
                "url": f"{_DEFINITIONS}/extractor-resource-exclusions",
                "valueUrl": urls.of(job.id, f"{REPORTS}/{RESOURCE_EXCLUSIONS}"),
            },
            {
                "url": f"{_DEFINITIONS}/extractor-patient-exclusions",
                "valueUrl": urls.of(job.id, f"{REPORTS}/{PATIENT_EXCLUSIONS}"),
            },
        ]
    if job.issues:
        extensions.append({"url": f"{_DEFINITIONS}/extractor-job-issues", "valueObject": job.described_issues()})
    document = {
        "transactionTime": instant(job.finished or job.created),
        "request": status_url,
        "requiresAccessToken": needs_token,
        "output": [{"type": "NDJSON Bundle", "url": urls.of(job.id, name)} for name in files],
        "error": [],
        "extension": extensions,
    }
    return json_response(document, kind=JSON)
