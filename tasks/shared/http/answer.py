"""Answers of services, and which parts of them may be shown (docs/services.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import httpx

from tasks.shared.fhir.resource import list_of, object_of, parse_json

# http://hl7.org/fhir/ValueSet/issue-type, R4 and R5. A code outside this list is text of the service.
# fmt: off
ISSUE_CODES: Final = frozenset({
    "business-rule", "code-invalid", "conflict", "deleted", "duplicate", "exception", "expired",
    "extension", "forbidden", "incomplete", "informational", "invalid", "invariant", "limited-filter",
    "lock-error", "login", "multiple-matches", "no-store", "not-found", "not-supported", "processing",
    "required", "security", "structure", "success", "suppressed", "throttled", "timeout", "too-costly",
    "too-long", "transient", "unknown", "value",
})
# fmt: on
_JSON: Final = re.compile(r"(application|text)/([a-z0-9.-]+\+)?json")
_LONGEST_TEXT: Final = 600


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer. ``repr`` shows the status alone: headers and body may hold anything."""

    status: int
    headers: httpx.Headers = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def media_type(self) -> str:
        """Return the media type without parameters, in lower case; empty without one."""
        return str(self.headers.get("content-type", "")).partition(";")[0].strip().lower()

    @property
    def says_json(self) -> bool:
        """Return whether the ``Content-Type`` is JSON."""
        return _JSON.fullmatch(self.media_type) is not None

    def issue_codes(self) -> tuple[str, ...]:
        """Return the issue codes of an OperationOutcome, each once, in order; empty for any other body."""
        return tuple(dict.fromkeys(code for _, code in issues(self.body)))


def issues(body: bytes) -> list[tuple[str, str]]:
    """Return (severity, code) of each issue of an OperationOutcome whose code FHIR defines."""
    outcome = object_of(parse_json(body))
    if outcome.get("resourceType") != "OperationOutcome":
        return []
    found = ((str(issue.get("severity")), issue.get("code")) for issue in map(object_of, list_of(outcome.get("issue"))))
    return [(severity, code) for severity, code in found if isinstance(code, str) and code in ISSUE_CODES]


def issue_texts(body: bytes) -> str:
    """Return a colon and the texts of an OperationOutcome on one line; empty for any other body. Call it only if the
    texts cannot hold data of a person, as in an answer to a synthetic request."""
    outcomes = map(object_of, list_of(object_of(parse_json(body)).get("issue")))
    texts = [one.get("diagnostics") or object_of(one.get("details")).get("text") for one in outcomes]
    shown = " ".join(" ".join(text for text in texts if isinstance(text, str)).split())
    return f": {shown[:_LONGEST_TEXT]}" if shown else ""


def place(url: str) -> str:
    """Return a URL for error messages: without user, query and fragment."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        host = f"[{host}]" if ":" in host else host
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an unreadable URL"
    return f"{parts.scheme}://{host}{port}{parts.path}"
