"""Read the result of an extraction: a manifest, or a Parameters resource (docs/services.md).

The output URLs must be valid; other members may have any form. Listed errors explain a result without files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tasks.extractor.server import HINT, json_of, poll_request
from tasks.extractor.task import extensions_of
from tasks.extractor.urls import resolve
from tasks.shared.errors import ServiceError
from tasks.shared.fhir.resource import list_of, object_of
from tasks.shared.http.answer import ISSUE_CODES, Answer
from tasks.shared.http.errors import wrong_answer

_REPORTS: Final = frozenset({"job-diagnostics-summary", "resource-exclusions", "patient-exclusions"})


@dataclass(frozen=True)
class ExtractionResult:
    """The result of a complete job. ``counts`` is absolute URL of a file → lines in it, ``None`` if not reported.

    ``errors`` tells how many errors the server lists, empty for none. ``report_urls`` may be relative.
    """

    counts: dict[str, int | None]
    requires_access_token: bool
    errors: str
    report_urls: tuple[str, ...]


def parse_result(answer: Answer, status_url: str, base_url: str) -> ExtractionResult:
    """Return the result in the 200 of a status poll. Raises ``ServiceError``: ``result-unreadable``, ``result-url``."""
    document = object_of(json_of(answer))
    if document.get("resourceType") == "Parameters":
        parameters = [*map(object_of, list_of(document.get("parameter")))]
        outputs = [_of_parts(one) for one in parameters if one.get("name") == "output"]
        errors = [object_of(one.get("resource")) for one in parameters if one.get("name") == "error"]
    elif isinstance(document.get("output"), list | None) and {"output", "error"} & document.keys():
        outputs = [*map(object_of, list_of(document.get("output")))]
        errors = [*map(object_of, list_of(document.get("error")))]
    else:
        raise _unreadable(answer, status_url, "with something that is not a manifest")
    counts: dict[str, int | None] = {}
    for output in outputs:
        url, count = output.get("url"), output.get("count")
        if not isinstance(url, str) or not url.strip():
            raise _unreadable(answer, status_url, "with an output that has no URL")  # its file would be missing
        counts[resolve(url, base_url)] = count if type(count) is int else None
    reports = [extension.get("valueUrl") for name, extension in extensions_of(document) if name in _REPORTS]
    return ExtractionResult(
        counts,
        requires_access_token=str(document.get("requiresAccessToken")).lower() == "true",
        errors=_listed(errors),
        report_urls=tuple(url for url in reports if isinstance(url, str) and url),
    )


def count_errors(issues: Iterable[Any]) -> str:
    """Return how many errors of each severity and code are among issues, on one line; empty if there is none."""
    found: Counter[str] = Counter()
    for issue in map(object_of, issues):
        severity, code = str(issue.get("severity")).lower(), str(issue.get("code"))
        if severity in ("fatal", "error"):
            found[f"{severity} ({code})" if code in ISSUE_CODES else severity] += 1
    return ", ".join(f"{number} {kind}" for kind, number in found.most_common(10))


def _of_parts(parameter: dict[str, Any]) -> dict[str, Any]:
    """Return an output parameter in the form of a manifest's output: only the URL."""
    parts = [part for part in map(object_of, list_of(parameter.get("part"))) if part.get("name") == "url"]
    return {"url": next((value for part in parts for key, value in part.items() if key.startswith("value")), None)}


def _listed(errors: list[dict[str, Any]]) -> str:
    """Count the errors that a result lists. Each is an OperationOutcome, or the URL of a file with some."""
    inside = count_errors(issue for error in errors for issue in list_of(error.get("issue")))
    beside = sum("issue" not in error for error in errors)
    return ", ".join(filter(None, [inside, f"{beside} in files of their own" if beside else ""]))


def _unreadable(answer: Answer, status_url: str, what: str) -> ServiceError:
    return wrong_answer(answer, poll_request(status_url), what, reference="result-unreadable", hint=HINT)
