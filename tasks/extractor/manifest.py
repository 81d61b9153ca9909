"""The result of an extraction (document 1, procedure 5): two shapes, of which the output URLs are read.

Other members may have any form. What the server tells a person beside the files (errors, issues, reports) is taken over
where it can be read, and never a reason to refuse a result.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from tasks.extractor.failures import errors_among, result_unreadable
from tasks.extractor.task import extension_name, int_of, list_of, object_of, parse_json
from tasks.extractor.urls import resolve
from tasks.shared.http.answer import Answer

_REPORTS: Final = frozenset({"job-diagnostics-summary", "resource-exclusions", "patient-exclusions"})
_SERIOUS: Final = ("FATAL", "ERROR", "WARNING")


@dataclass(frozen=True)
class ExtractionResult:
    """The result of a complete job: the absolute URL of each file, and how many lines the server says it has.

    ``errors`` are those that the server reports, by severity and code; ``summary`` is its diagnostics summary.
    """

    counts: dict[str, int | None]
    requires_access_token: bool = False
    errors: Counter[str] = field(default_factory=Counter)
    report_urls: tuple[str, ...] = ()
    summary: dict[str, Any] = field(default_factory=dict, repr=False)
    issues: Counter[str] = field(default_factory=Counter)

    @property
    def urls(self) -> list[str]:
        """Return the URLs of the files, in the order of the result, each once."""
        return [*self.counts]

    def details(self) -> dict[str, Any]:
        """Return counts for a person: patients in the cohort and in the files, issues by severity."""
        found = {
            "cohort_patients": int_of(self.summary.get("Num-Cohort-Patients")),
            "final_patients": int_of(self.summary.get("Num-Final-Patients")),
            "issues": dict(self.issues),
        }
        return {key: value for key, value in found.items() if value not in (None, {})}

    def left_out(self) -> dict[str, int] | None:
        """Return the patients that the server left out, by stage."""
        stages = object_of(self.summary.get("Patient-Exclusions"))
        counts = {f"patients {stage}": int_of(count) for stage, count in stages.items() if str(stage).isidentifier()}
        return {stage: count for stage, count in counts.items() if count} or None


def parse_result(answer: Answer, status_url: str, base_url: str) -> ExtractionResult:
    """Return the result in the 200 of a status poll. Raises ``ServiceError``: ``result-unreadable``, ``result-url``."""
    document = parse_json(answer.body) if answer.says_json else None
    if not isinstance(document, dict):
        raise result_unreadable(status_url, "something that is no JSON object")
    if document.get("resourceType") == "Parameters":
        return _parameters(document, status_url, base_url)
    if not isinstance(document.get("output"), list | None) or not {"output", "error"} & document.keys():
        raise result_unreadable(status_url, "JSON that is no manifest")
    counts: dict[str, int | None] = {}
    for entry in map(object_of, list_of(document.get("output"))):
        counts[_url(entry.get("url"), status_url, base_url)] = int_of(entry.get("count"))
    extensions = [(extension_name(one.get("url")), one) for one in map(object_of, list_of(document.get("extension")))]
    values = {name: one.get("valueObject") for name, one in extensions}
    urls = [one.get("valueUrl") for name, one in extensions if name in _REPORTS]
    issues = list_of(values.get("job-issues"))
    severities = Counter(str(object_of(issue).get("severity")).upper() for issue in issues)
    return ExtractionResult(
        counts=counts,
        requires_access_token=str(document.get("requiresAccessToken")).lower() == "true",
        errors=errors_among(issues) + _listed(document.get("error")),
        report_urls=tuple(url for url in urls if isinstance(url, str) and url),
        summary=object_of(values.get("job-diagnostics-summary")),
        issues=Counter({severity: severities[severity] for severity in _SERIOUS if severities[severity]}),
    )


def _parameters(document: dict[str, Any], status_url: str, base_url: str) -> ExtractionResult:
    counts: dict[str, int | None] = {}
    errors: Counter[str] = Counter()
    for parameter in map(object_of, list_of(document.get("parameter"))):
        parts = [part for part in map(object_of, list_of(parameter.get("part"))) if part.get("name") == "url"]
        urls = [value for part in parts for key, value in part.items() if key.startswith("value")]
        if parameter.get("name") == "output":
            counts |= {_url(url, status_url, base_url): None for url in urls or [None]}
        elif parameter.get("name") == "error":
            errors += _listed([parameter.get("resource")])
    return ExtractionResult(counts=counts, errors=errors)


def _url(url: Any, status_url: str, base_url: str) -> str:
    if not isinstance(url, str) or not url.strip():
        raise result_unreadable(status_url, "an output that has no URL")  # a file would be missing unnoticed
    return resolve(url, base_url)


def _listed(errors: Any) -> Counter[str]:
    """Return the errors that a result lists beside its files, as outcomes or as files of them."""
    found: Counter[str] = Counter()
    for error in map(object_of, list_of(errors)):
        found += errors_among(list_of(error.get("issue"))) or Counter({"in a file of its own": 1})
    return found
