"""The result of an extraction: its files, what the server says about it, and what may be shown of that.

Document 1, procedure 5: two shapes are accepted, a Parameters resource and a manifest; of the manifest the import
reads the output URLs only. Its extensions (document 2, "Completion manifest") become counts for a person. Keys in them
that the server made up are not repeated: only stages, severities, and the names of groups that the CRTDL has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from tasks.extractor.failures import result_unreadable
from tasks.extractor.json_values import int_of, list_of, object_of, parse_json
from tasks.extractor.task import STAGES, extension_name
from tasks.shared.fhir.crtdl import Crtdl
from tasks.shared.http.answer import Answer

SEVERITIES = ("FATAL", "ERROR", "WARNING", "INFO", "SUCCESS")
REPORTS = frozenset({"job-diagnostics-summary", "resource-exclusions", "patient-exclusions"})
OTHER = "(other)"

_PATIENT_STAGES = ("CONSENT", "DIRECT_LOAD", "CASCADING_DELETE")
_EXCLUSIONS = ("Consent", "Reference-Not-Found", "Resource-Outside-Batch", "Cascading-Delete")


@dataclass(frozen=True)
class ExtractionResult:
    """What a complete job has produced; URLs as the server wrote them. ``listed_errors`` are those beside the files."""

    urls: tuple[str, ...]
    listed_errors: int = 0
    requires_access_token: bool = False
    report_urls: tuple[str, ...] = ()
    extensions: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def final_patients(self) -> int | None:
        """How many patients the files hold, as the server counts them."""
        return int_of(_summary(self).get("Num-Final-Patients"))

    @property
    def errors(self) -> int:
        """How many errors the server reports: listed beside the files, or as issues of the job."""
        return self.listed_errors + sum(self.issues.get(severity, 0) for severity in ("FATAL", "ERROR"))

    @property
    def issues(self) -> dict[str, int]:
        """Issues of the job by severity."""
        found = Counter(
            severity if severity in SEVERITIES else OTHER
            for issue in list_of(self.extensions.get("job-issues"))
            for severity in [object_of(issue).get("severity")]
        )
        return {severity: found[severity] for severity in (*SEVERITIES, OTHER) if found[severity]}


def parse_result(answer: Answer, status_url: str) -> ExtractionResult:
    """The result in the 200 of a status poll. ``status_url`` stands in errors.

    Raises ``ServiceError`` (``result-unreadable``) for a body that is neither of the two shapes.
    """
    document = parse_json(answer.body)
    if not isinstance(document, dict):
        raise result_unreadable(status_url, "something that is no JSON object")
    if document.get("resourceType") == "Parameters":
        return _parameters(document, status_url)
    if "output" not in document and "error" not in document:
        raise result_unreadable(status_url, "JSON that is no manifest")
    outputs = document.get("output")
    if outputs is not None and not isinstance(outputs, list):
        raise result_unreadable(status_url, "a manifest whose output is no list")
    urls = [_url(object_of(entry).get("url"), status_url) for entry in outputs or ()]
    extensions: dict[str, Any] = {}
    reports: list[str] = []
    for extension in map(object_of, list_of(document.get("extension"))):
        name = extension_name(extension.get("url"))
        extensions.setdefault(name, extension.get("valueObject"))
        value = extension.get("valueUrl")
        if name in REPORTS and isinstance(value, str) and value:
            reports.append(value)
    return ExtractionResult(
        urls=tuple(urls),
        listed_errors=len(list_of(document.get("error"))),
        requires_access_token=document.get("requiresAccessToken") is True,
        report_urls=tuple(dict.fromkeys(reports)),
        extensions=extensions,
    )


def _parameters(document: dict[str, Any], status_url: str) -> ExtractionResult:
    urls: list[str] = []
    errors = 0
    for parameter in map(object_of, list_of(document.get("parameter"))):
        if parameter.get("name") == "error":
            errors += 1
        if parameter.get("name") == "output":
            parts = [part for part in map(object_of, list_of(parameter.get("part"))) if part.get("name") == "url"]
            values = [value for part in parts for key, value in part.items() if key.startswith("value")]
            urls += [_url(value, status_url) for value in values or [None]]
    return ExtractionResult(urls=tuple(urls), listed_errors=errors)


def _url(value: Any, status_url: str) -> str:
    """An output without a URL would be a file that is missing in silence."""
    if not isinstance(value, str) or not value.strip():
        raise result_unreadable(status_url, "an output that has no URL")
    return value


def details(result: ExtractionResult, crtdl: Crtdl | None) -> dict[str, Any]:
    """Counts for a person: cohort, exclusions, inclusions, issues, times of the stages. Absent where nothing is known.

    Attribute groups appear by the names and ids that ``crtdl`` has; all others are added up.
    """
    summary = _summary(result)
    names = {name for group in crtdl.groups for name in (group.id, group.name) if name} if crtdl else set()
    patients = object_of(summary.get("Patient-Exclusions"))
    durations = object_of(summary.get("Duration-Measurements"))
    found: dict[str, Any] = {
        "cohort_patients": int_of(summary.get("Num-Cohort-Patients")),
        "final_patients": result.final_patients,
        "patient_exclusions": {stage: n for stage in _PATIENT_STAGES if (n := int_of(patients.get(stage))) is not None},
        "resource_exclusions": _exclusions(object_of(summary.get("Resource-Exclusions")), names),
        "resource_inclusions": dict(_inclusions(object_of(summary.get("Resource-Inclusions")), names)),
        "median_seconds": {
            stage: round(nanos / 1e9, 3)
            for stage in STAGES
            if (nanos := int_of(object_of(durations.get(stage)).get("medianNanos"))) is not None
        },
        "issues": result.issues,
    }
    return {key: value for key, value in found.items() if value not in (None, {})}


def _summary(result: ExtractionResult) -> dict[str, Any]:
    return object_of(result.extensions.get("job-diagnostics-summary"))


def _exclusions(groups: dict[str, Any], names: Collection[str]) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for group, value in groups.items():
        counts = found.setdefault(group if group in names else OTHER, Counter())
        reasons = object_of(value)
        counts["Must-Have"] += sum(int_of(n) or 0 for n in object_of(reasons.get("Must-Have")).values())
        for reason in _EXCLUSIONS:
            counts[reason] += int_of(reasons.get(reason)) or 0
    kept = {group: {reason: n for reason, n in counts.items() if n} for group, counts in found.items()}
    return {group: counts for group, counts in kept.items() if counts}


def _inclusions(groups: dict[str, Any], names: Collection[str]) -> Iterator[tuple[str, int]]:
    found: Counter[str] = Counter()
    for group, value in groups.items():
        found[group if group in names else OTHER] += int_of(value) or 0
    yield from found.items()
