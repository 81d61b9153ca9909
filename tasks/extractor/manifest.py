"""Read the result of an extraction: a manifest, or a Parameters resource (docs/services.md).

The output URLs must be valid; other members may have any form. Listed errors explain a result without files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from tasks.extractor.server import poll_request
from tasks.extractor.task import extensions_of
from tasks.extractor.urls import resolve
from tasks.shared.errors import ServiceError
from tasks.shared.fhir.resource import list_of, object_of, parse_json
from tasks.shared.http.answer import ISSUE_CODES, Answer

_REPORTS: Final = frozenset({"job-diagnostics-summary", "resource-exclusions", "patient-exclusions"})


@dataclass(frozen=True)
class ExtractionResult:
    """The result of a complete job. ``counts`` is absolute URL of a file → lines in it, ``None`` if not reported.

    ``errors`` counts the errors that the server lists, by severity and code. ``report_urls`` may be relative.
    """

    counts: dict[str, int | None]
    requires_access_token: bool = False
    errors: Counter[str] = field(default_factory=Counter)
    report_urls: tuple[str, ...] = ()


def parse_result(answer: Answer, status_url: str, base_url: str) -> ExtractionResult:
    """Return the result in the 200 of a status poll. Raises ``ServiceError``: ``result-unreadable``, ``result-url``."""
    document = object_of(parse_json(answer.body) if answer.says_json else None)
    errors: list[Any] = []
    reports: list[Any] = []
    if document.get("resourceType") == "Parameters":
        parameters = [*map(object_of, list_of(document.get("parameter")))]
        outputs = [_of_parts(one) for one in parameters if one.get("name") == "output"]
        errors = [one.get("resource") for one in parameters if one.get("name") == "error"]
    elif isinstance(document.get("output"), list | None) and {"output", "error"} & document.keys():
        outputs = [*map(object_of, list_of(document.get("output")))]
        errors = list_of(document.get("error"))
        reports = [extension.get("valueUrl") for name, extension in extensions_of(document) if name in _REPORTS]
    else:
        raise _unreadable(status_url, "something that is not a manifest")
    counts: dict[str, int | None] = {}
    for output in outputs:
        url, count = output.get("url"), output.get("count")
        if not isinstance(url, str) or not url.strip():
            raise _unreadable(status_url, "an output that has no URL")  # a missing file would stay unnoticed
        counts[resolve(url, base_url)] = count if type(count) is int else None
    return ExtractionResult(
        counts,
        str(document.get("requiresAccessToken")).lower() == "true",
        _listed(errors),
        tuple(url for url in reports if isinstance(url, str) and url),
    )


def errors_among(issues: Iterable[Any]) -> Counter[str]:
    """Count the errors among the issues of a job or an OperationOutcome, by severity and code."""
    found: Counter[str] = Counter()
    for issue in map(object_of, issues):
        severity, code = str(issue.get("severity")).lower(), issue.get("code")
        if severity in ("fatal", "error"):
            found[f"{severity} ({code})" if isinstance(code, str) and code in ISSUE_CODES else severity] += 1
    return found


def counted(errors: Counter[str]) -> str:
    """Return the numbers of the ten most frequent errors, on one line."""
    return ", ".join(f"{number} {kind}" for kind, number in errors.most_common(10))


def _of_parts(parameter: dict[str, Any]) -> dict[str, Any]:
    """Return an output parameter in the form of a manifest's output: only the URL."""
    parts = [part for part in map(object_of, list_of(parameter.get("part"))) if part.get("name") == "url"]
    return {"url": next((value for part in parts for key, value in part.items() if key.startswith("value")), None)}


def _listed(errors: Iterable[Any]) -> Counter[str]:
    """Count the errors that a result lists. Each is an OperationOutcome, or the URL of a file with some."""
    found: Counter[str] = Counter()
    for error in map(object_of, errors):
        found += errors_among(list_of(error.get("issue"))) or Counter({"in a file of its own": 1})
    return found


def _unreadable(status_url: str, what: str) -> ServiceError:
    hint = "is services.extractor.base_url the right server, or is a login or maintenance page in front of it?"
    return poll_request(status_url).error(
        ServiceError, "result-unreadable", f"was answered 200 with {what}", hint=hint, status=200
    )
