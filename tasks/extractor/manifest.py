"""The result of an extraction: its files, what the server says about it, and what may be shown of that.

Document 1, procedure 5: two shapes are accepted, a Parameters resource and a manifest; of the manifest the import
reads the outputs only, which must be as document 3 §2 says. Its extensions (document 2, "Completion manifest") become
counts for a person. Keys in them that the server made up are not repeated: only stages, severities, and the names of
groups that the CRTDL has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tasks.extractor.failures import result_unreadable
from tasks.extractor.task import (
    OTHER,
    STAGES,
    JobStatus,
    extension_name,
    int_of,
    list_of,
    object_of,
    parse_answer,
    stage_of,
)
from tasks.extractor.urls import is_job_id, job_id_of, resolve
from tasks.shared.errors import InputError
from tasks.shared.fhir.crtdl import Crtdl
from tasks.shared.fhir.reading import TYPE
from tasks.shared.http.answer import ISSUE_CODES, Answer
from tasks.shared.http.call import parse_target

SEVERITIES = ("FATAL", "ERROR", "WARNING", "INFO", "SUCCESS")
REPORTS = frozenset({"job-diagnostics-summary", "resource-exclusions", "patient-exclusions"})
BUNDLES = "NDJSON Bundle"
"""What document 2 calls the type of every output."""

_PATIENT_STAGES = ("CONSENT", "DIRECT_LOAD", "CASCADING_DELETE")
_EXCLUSIONS = ("Must-Have", "Consent", "Reference-Not-Found", "Resource-Outside-Batch", "Cascading-Delete")
_QUERY = "Cohort-Query-Duration-Ms"
_KNOWN = frozenset({
    "Num-Cohort-Patients", "Num-Final-Patients", _QUERY, "Duration-Measurements", "Patient-Exclusions",
    "Resource-Exclusions", "Resource-Inclusions",
})  # fmt: skip
_MEDIAN = {"medianNanos": 1e-9, "medianMs": 1e-3}
"""How servers spell the median of a stage, and seconds in its unit."""


@dataclass(frozen=True)
class Output:
    """A file of a result: its absolute URL, and where the server says it, the type of all its resources and how many
    lines it has."""

    url: str
    kind: str | None = None
    lines: int | None = None


@dataclass(frozen=True)
class ExtractionResult:
    """The result of a complete job. ``listed_errors`` are its OperationOutcomes, or their URLs, as the server wrote
    them. ``deleted`` is the number of files of deleted resources."""

    outputs: tuple[Output, ...]
    listed_errors: tuple[Any, ...] = field(default=(), repr=False)
    deleted: int = 0
    requires_access_token: bool = False
    report_urls: tuple[str, ...] = ()
    extensions: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def final_patients(self) -> int | None:
        """The number of patients in the files, as counted by the server."""
        return int_of(_summary(self).get("Num-Final-Patients"))

    @property
    def issues(self) -> dict[str, int]:
        """Issues of the job by severity."""
        found = Counter(
            severity if severity in SEVERITIES else OTHER
            for issue in list_of(self.extensions.get("job-issues"))
            for severity in [object_of(issue).get("severity")]
        )
        return {severity: found[severity] for severity in (*SEVERITIES, OTHER) if found[severity]}


def parse_result(answer: Answer, status_url: str, base_url: str) -> ExtractionResult:
    """Return the result in the 200 of the status poll of a job; relative URLs are resolved against ``base_url``.

    Raises ``ServiceError``: ``result-unreadable`` for what is neither of the two shapes or not what they must hold, or
    the result of another job; ``result-url``.
    """
    try:
        return _result(answer, status_url, base_url)
    except _UnusableError as error:
        raise result_unreadable(status_url, str(error)) from None


class _UnusableError(Exception):
    """The reason why a document is not a result; its text quotes nothing of it."""


def _result(answer: Answer, status_url: str, base_url: str) -> ExtractionResult:
    if not answer.says_json:
        raise _UnusableError("a Content-Type that is not JSON")
    document = parse_answer(answer)
    if not isinstance(document, dict):
        raise _UnusableError("something that is no JSON object, or one with a key twice")
    if document.get("resourceType") == "Parameters":
        return _parameters(document, base_url)
    if "output" not in document and "error" not in document:
        raise _UnusableError("JSON that is no manifest")
    entries = document.get("output")
    if entries is not None and not isinstance(entries, list):
        raise _UnusableError("a manifest whose output is no list")
    if not isinstance(document.get("requiresAccessToken"), bool | None):
        raise _UnusableError("a manifest whose requiresAccessToken is neither true nor false")
    outputs = [_output(entry, base_url) for entry in map(object_of, entries or ())]
    extensions: dict[str, Any] = {}
    reports: list[str] = []
    for extension in map(object_of, list_of(document.get("extension"))):
        name = extension_name(extension.get("url"))
        extensions.setdefault(name, extension.get("valueObject"))
        value = extension.get("valueUrl")
        if name in REPORTS and isinstance(value, str) and value:
            reports.append(value)
    _check_job(object_of(extensions.get("job")), status_url)
    return ExtractionResult(
        outputs=_each_once(outputs),
        listed_errors=tuple(_error(entry) for entry in list_of(document.get("error"))),
        deleted=len(list_of(document.get("deleted"))),
        requires_access_token=document.get("requiresAccessToken") is True,
        report_urls=tuple(dict.fromkeys(reports)),
        extensions=extensions,
    )


def _parameters(document: dict[str, Any], base_url: str) -> ExtractionResult:
    outputs: list[Output] = []
    errors: list[Any] = []
    for parameter in map(object_of, list_of(document.get("parameter"))):
        parts = [part for part in map(object_of, list_of(parameter.get("part"))) if part.get("name") == "url"]
        urls = [value for part in parts for key, value in part.items() if key.startswith("value")]
        if parameter.get("name") == "error":
            errors.append(_error({"url": next(iter(urls), None)} | object_of(parameter.get("resource"))))
        if parameter.get("name") == "output":
            outputs += [_output({"url": url}, base_url) for url in urls or [None]]
    return ExtractionResult(outputs=_each_once(outputs), listed_errors=tuple(errors))


def _output(entry: dict[str, Any], base_url: str) -> Output:
    """Return an output, which must have a URL: otherwise a file would be missing unnoticed."""
    url, kind = entry.get("url"), entry.get("type")
    if not isinstance(url, str) or not url.strip():
        raise _UnusableError("an output that has no URL")
    if kind not in (None, BUNDLES) and not (isinstance(kind, str) and TYPE.fullmatch(kind)):
        raise _UnusableError(f"an output whose type is neither {BUNDLES} nor one of FHIR")
    count = entry.get("count")
    if count is not None and (type(count) is not int or count < 0):
        raise _UnusableError("an output whose count is not a number")
    return Output(resolve(url, base_url), "Bundle" if kind == BUNDLES else kind, count)


def _each_once(outputs: list[Output]) -> tuple[Output, ...]:
    """Return the outputs, each file only once: otherwise its resources would be imported twice."""
    try:
        files = {parse_target(output.url).url for output in outputs}
    except InputError:
        raise _UnusableError("an output whose URL cannot be used") from None
    if len(files) != len(outputs):
        raise _UnusableError("a manifest that lists a file twice")
    return tuple(outputs)


def _check_job(job: dict[str, Any], status_url: str) -> None:
    """Check the job that the result claims to belong to (document 2, ``extractor-job``)."""
    asked, told, status = job_id_of(status_url), job.get("id"), job.get("status")
    if "/__status/" in status_url and isinstance(told, str) and is_job_id(told) and told.lower() != asked.lower():
        raise _UnusableError("the result of another job")
    if isinstance(status, str) and status in set(JobStatus) - {JobStatus.COMPLETED}:
        raise _UnusableError(f"the result of a job that is {status}")


def _error(entry: Any) -> Any:
    """Return the OperationOutcome itself or the URL of some."""
    entry = object_of(entry)
    return entry if entry.get("resourceType") == "OperationOutcome" else entry.get("url")


def errors_among(issues: Iterable[Any]) -> Counter[str]:
    """Issues of a job or an OperationOutcome that are errors, by severity and code."""
    found: Counter[str] = Counter()
    for issue in map(object_of, issues):
        severity, code = str(issue.get("severity")).lower(), issue.get("code")
        if severity in ("fatal", "error"):
            found[f"{severity} ({code})" if isinstance(code, str) and code in ISSUE_CODES else severity] += 1
    return found


def details(result: ExtractionResult, crtdl: Crtdl | None) -> dict[str, Any]:
    """Counts for a person: cohort, exclusions, inclusions, issues, times of the stages. Absent where nothing is known.

    Attribute groups appear by the names and ids that ``crtdl`` has; all others are added up.
    """
    summary = _summary(result)
    names = {name for group in crtdl.groups for name in (group.id, group.name) if name} if crtdl else set()
    exclusions = _exclusions(object_of(summary.get("Resource-Exclusions")), names)
    found: dict[str, Any] = {
        "cohort_patients": int_of(summary.get("Num-Cohort-Patients")),
        "final_patients": result.final_patients,
        "patient_exclusions": dict(_patients(summary)),
        "resource_exclusions": exclusions,
        "resource_inclusions": dict(_inclusions(object_of(summary.get("Resource-Inclusions")), names)),
        "cohort_query_seconds": round(query / 1000, 3) if (query := int_of(summary.get(_QUERY))) is not None else None,
        "median_seconds": _medians(object_of(summary.get("Duration-Measurements"))),
        "other_diagnostics": len(summary.keys() - _KNOWN) or None,
        "issues": result.issues,
    }
    return {key: value for key, value in found.items() if value not in (None, {})}


def left_out(result: ExtractionResult) -> dict[str, int] | None:
    """Return the excluded patients and resources by reason, for the step's line."""
    summary = _summary(result)
    found = Counter({f"patients {reason}": n for reason, n in _patients(summary).items()})
    for reasons in object_of(summary.get("Resource-Exclusions")).values():
        found.update({f"resources {reason}": n for reason, n in _counted(reasons, _EXCLUSIONS).items()})
    return {what: n for what, n in found.items() if n > 0} or None


def _patients(summary: dict[str, Any]) -> Counter[str]:
    return _counted(summary.get("Patient-Exclusions"), _PATIENT_STAGES)


def _summary(result: ExtractionResult) -> dict[str, Any]:
    return object_of(result.extensions.get("job-diagnostics-summary"))


def _counted(by_reason: Any, reasons: Collection[str]) -> Counter[str]:
    """Counts by reason, whichever way a server spells it; all others are added up. An object is the sum of what it
    holds (``Must-Have`` has a count for each attribute).
    """
    found: Counter[str] = Counter()
    known = {_folded(reason): reason for reason in reasons}
    for name, value in object_of(by_reason).items():
        counts = [int_of(one) for one in object_of(value).values()] or [int_of(value)]
        if any(count is not None for count in counts):
            found[known.get(_folded(name), OTHER)] += sum(count or 0 for count in counts)
    return found


def _folded(reason: str) -> str:
    """``Must-Have`` and ``MUST_HAVE`` are one reason, and so are ``CONSENT`` and ``CONSENT_FETCH``."""
    return reason.upper().replace("-", "_").removesuffix("_FETCH")


def _medians(durations: dict[str, Any]) -> dict[str, float]:
    """Return the median of each stage in seconds, in order; unknown stages are summed up."""
    found: dict[str, float] = {}
    for name, measured in durations.items():
        numbers = object_of(measured)
        for spelling, unit in _MEDIAN.items():
            value = numbers.get(spelling)
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[stage_of(name)] = found.get(stage_of(name), 0.0) + value * unit
                break
    return {stage: round(found[stage], 3) for stage in (*STAGES, OTHER) if stage in found}


def _exclusions(groups: dict[str, Any], names: Collection[str]) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for group, reasons in groups.items():
        found.setdefault(group if group in names else OTHER, Counter()).update(_counted(reasons, _EXCLUSIONS))
    kept = {group: {reason: n for reason, n in counts.items() if n} for group, counts in found.items()}
    return {group: counts for group, counts in kept.items() if counts}


def _inclusions(groups: dict[str, Any], names: Collection[str]) -> Iterator[tuple[str, int]]:
    found: Counter[str] = Counter()
    for group, value in groups.items():
        found[group if group in names else OTHER] += int_of(value) or 0
    yield from found.items()
