"""Read the issues of an OperationOutcome with their places, and count them (docs/services.md).

An issue of severity ``error`` or ``fatal`` is a finding. Issues are counted by severity, resource type and codes only:
their texts quote data, and go into private files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tasks.shared.fhir.resource import UNREADABLE
from tasks.shared.http.answer import ISSUE_CODES, Answer
from tasks.validation.chunks import ResourcePlace

FINDINGS: Final = frozenset({"fatal", "error"})
SEVERITIES: Final = ("fatal", "error", "warning", "information", "success")
OTHER: Final = "other"
UNPLACED: Final = "unplaced"
"""The type of findings that concern a chunk as a whole."""

_MESSAGE_ID: Final = "operationoutcome-message-id"
# A message id is a short code. The HL7 validator also writes the URL of a profile, "#" and the key of an invariant, or
# "Rule key: 'text' failed". Then only the key is taken.
_CODE: Final = re.compile(r"(?:https?://[^\s#]*#|Rule )?([A-Za-z0-9][A-Za-z0-9_.\-]{0,79})(?:: .*)?", re.DOTALL)
# An entry as FHIRPath (from 0) and, in the older ``location``, as XPath (from 1).
_ENTRY: Final = re.compile(r"Bundle(?:\.entry\[([0-9]{1,18})\]|/f:entry\[([0-9]{1,18})\])")
# The text between the entry and the element, in the two spellings of the HL7 validator and in XPath.
_INSIDE: Final = re.compile(
    r"(?:\.resource(?:\.ofType\([A-Za-z]+\)|/\*[^*]*\*/)?(?=[.\[]|$)|/f:resource(?:/f:[A-Z]\w*)?(?=/|$))"
)


class NotAnOutcomeError(Exception):
    """The answer is no usable OperationOutcome. Its text says what it is instead, and quotes nothing."""


@dataclass(frozen=True, slots=True)
class ValidationIssue:
    """One issue. ``entries`` is index of an entry that the issue names → element in it. ``elsewhere`` has the other
    locations. ``text`` may quote data."""

    severity: str
    code: str
    message_id: str
    entries: dict[int, str]
    elsewhere: str = field(repr=False)
    text: str = field(repr=False)

    @property
    def is_finding(self) -> bool:
        """Return whether the issue counts for the gate."""
        return self.severity in FINDINGS

    @property
    def message_code(self) -> str:
        """Return the issue code, and the message id if there is one."""
        return f"{self.code} {self.message_id}".rstrip()


class _Coding(msgspec.Struct):
    code: Any = None


class _Details(msgspec.Struct):
    coding: list[_Coding] | None = None
    text: str | None = None


class _Extension(msgspec.Struct, rename="camel"):
    url: Any = None
    value_code: Any = None
    value_string: Any = None


class _OutcomeIssue(msgspec.Struct):
    severity: str
    code: str | None = None
    details: _Details | None = None
    diagnostics: str | None = None
    expression: list[str | None] | None = None
    location: list[str | None] | None = None
    extension: list[_Extension] | None = None


class _OperationOutcome(msgspec.Struct):
    resource_type: Any = msgspec.field(default=None, name="resourceType")
    issue: list[_OutcomeIssue] | None = None


_outcome = msgspec.json.Decoder(_OperationOutcome)


def read_outcome(body: bytes) -> list[ValidationIssue]:
    """Return the issues of an OperationOutcome. Raises ``NotAnOutcomeError``."""
    try:
        outcome = _outcome.decode(body)
    except msgspec.ValidationError:
        raise NotAnOutcomeError("JSON that is not an OperationOutcome, or issues that are not valid in FHIR") from None
    except UNREADABLE:
        raise NotAnOutcomeError("something that is not JSON") from None
    if outcome.resource_type != "OperationOutcome":
        raise NotAnOutcomeError("something that is not an OperationOutcome")
    return [_read(issue) for issue in outcome.issue or ()]


def wrong_with(answer: Answer, entries: int) -> str | None:
    """Return why an answer is no result for a Bundle of ``entries`` entries; ``None`` if it is one."""
    if answer.status not in (200, 412, 422):  # a 202 with an outcome is no result
        return "no result"
    if not answer.says_json:
        return "a Content-Type that is not JSON"
    try:
        issues = read_outcome(answer.body)
    except NotAnOutcomeError as problem:
        return str(problem)
    if not issues:
        return "an OperationOutcome without an issue"
    if any(entry >= entries for issue in issues for entry in issue.entries):
        return f"an issue about an entry beyond the {entries:,} that were sent"
    return None


def _read(issue: _OutcomeIssue) -> ValidationIssue:
    severity = issue.severity.lower()
    if severity not in SEVERITIES:
        raise NotAnOutcomeError("an issue without a severity that FHIR defines")
    entries: dict[int, str] = {}
    elsewhere: dict[str, None] = {}
    for place in _places(issue):
        match = _ENTRY.search(place)
        if match:
            entries.setdefault(_number(match), _INSIDE.sub("", place[match.end() :], count=1))
        else:
            elsewhere[place] = None
    details = issue.details or _Details()
    texts = dict.fromkeys(text for text in (issue.diagnostics, details.text) if text)
    code = issue.code if issue.code in ISSUE_CODES else OTHER
    return ValidationIssue(severity, code, _message_id(issue, details), entries, "; ".join(elsewhere), "\n".join(texts))


def _number(match: re.Match[str]) -> int:
    """Return the index of the entry, from 0."""
    return int(match[1]) if match[1] is not None else int(match[2]) - 1


def _places(issue: _OutcomeIssue) -> Iterable[str]:
    """Return the expressions of an issue; the older ``location`` if there are none, or only it names an entry."""
    expressions = [place for place in issue.expression or () if place]
    locations = [place for place in issue.location or () if place]
    if any(map(_ENTRY.search, expressions)) or not locations:
        return expressions
    return locations if any(map(_ENTRY.search, locations)) else expressions or locations


def _message_id(issue: _OutcomeIssue, details: _Details) -> str:
    candidates = [coding.code for coding in details.coding or ()]
    for extension in issue.extension or ():
        if isinstance(extension.url, str) and extension.url.rpartition("/")[2] == _MESSAGE_ID:
            candidates += (extension.value_code, extension.value_string)
    for candidate in candidates:
        if isinstance(candidate, str) and (match := _CODE.fullmatch(candidate)):
            return match[1]
    return ""


@dataclass(slots=True)
class Tally:
    """Counts of issues. ``types`` and ``codes`` count findings only; ``resources`` counts resources with findings."""

    issues: int = 0
    findings: int = 0
    resources: int = 0
    severities: Counter[str] = field(default_factory=Counter)
    types: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)

    def add(self, issues: Iterable[ValidationIssue], place: Callable[[int], ResourcePlace | None]) -> None:
        """Count the issues of one answer; ``place(entry)`` returns the place of an entry."""
        hit: set[int] = set()
        for issue in issues:
            self.issues += 1
            self.severities[issue.severity] += 1
            if not issue.is_finding:
                continue
            self.findings += 1
            self.codes[issue.message_code] += 1
            known = {entry: where.type for entry in issue.entries if (where := place(entry)) is not None}
            hit |= known.keys()
            self.types.update(set(known.values()) or {UNPLACED})
        self.resources += len(hit)
