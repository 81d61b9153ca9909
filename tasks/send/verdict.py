"""Interpret the answer of a FHIR server to a transaction (document 3 §7).

Statuses and issue codes decide where they can. They cannot tell a missing reference target from other
refusals, nor a lock conflict from other conflicts: HAPI answers both with the code ``processing``, Blaze a
missing target with the code ``conflict``. There the text of the issues is looked at, here and nowhere else,
and never shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

import msgspec

from tasks.shared.errors import ServiceError
from tasks.shared.fhir.reading import UNREADABLE
from tasks.shared.http_old.answer import Answer, RefusedError, issue_codes

REFUSALS: Final = frozenset({400, 409, 412, 413, 422})
"""Statuses that say something about the content of a transaction. All others are about the endpoint."""

# HAPI: "HAPI-1094: Resource Patient/x not found, specified in path: Observation.subject" (1096: "… is deleted, …");
# Blaze: "Referential integrity violated. Resource `Patient/x` doesn't exist."
_MISSING: Final = re.compile(
    r"HAPI-109[46]\b|(?:not found|is deleted), specified in path|referential integrity", re.IGNORECASE
)
# HAPI-0823, -0825, -0826, -0827: "… has failed with a version constraint failure", "… client-assigned ID
# constraint failure"; HAPI-0550 and -0974: version conflicts. Not HAPI-0824: a unique index refuses the same
# content for ever.
_CONFLICT: Final = re.compile(r"version|(?<!unique index )constraint failure|lock", re.IGNORECASE)
_CONFLICT_CODES: Final = frozenset({"conflict", "lock-error", "transient", "timeout", "throttled"})


_STORED: Final = re.compile("2[0-9][0-9](?: .*)?", re.DOTALL)
"""Three digits and a blank or the end (document 3 §7)."""


class Fate(Enum):
    """The reason of a refused transaction."""

    MISSING_TARGET = auto()
    CONFLICT = auto()
    TOO_LARGE = auto()
    REFUSED = auto()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The fate, and what of the answer is kept with a failed entry. ``body`` may quote the data."""

    fate: Fate
    status: int
    codes: tuple[str, ...] = ()
    body: bytes = field(default=b"", repr=False)


class _ResponseIssue(msgspec.Struct):
    diagnostics: Any = None
    details: Any = None


class _ResponseOutcome(msgspec.Struct):
    issue: list[_ResponseIssue] = []


class _Response(msgspec.Struct, gc=False):
    status: str = ""
    location: str | None = None


class _ResponseEntry(msgspec.Struct, gc=False):
    response: _Response


class _Transaction(msgspec.Struct, rename="camel", gc=False):
    resource_type: str = ""
    type: str = ""
    entry: list[_ResponseEntry] = []


_transaction = msgspec.json.Decoder(_Transaction)
_outcome = msgspec.json.Decoder(_ResponseOutcome)


def judge(status: int, body: bytes) -> Verdict:
    """Return the verdict on a transaction that was refused with this ``status``."""
    codes = issue_codes(body)
    verdict = Fate.REFUSED
    if status == 413:
        verdict = Fate.TOO_LARGE
    else:
        text = _text(body)
        if _MISSING.search(text) or "not-found" in codes:
            verdict = Fate.MISSING_TARGET
        elif status in {409, 412} and (_CONFLICT.search(text) or not _CONFLICT_CODES.isdisjoint(codes)):
            verdict = Fate.CONFLICT
    return Verdict(verdict, status, codes, body)


def check_results(answer: Answer, keys: Sequence[str]) -> None:
    """Check the answer to an accepted transaction; ``keys`` are the ``Type/id`` that were put.

    Raises ``ServiceError`` ``send-answer`` when the answer is not the result of this transaction: then nobody can say
    what was stored.
    """
    if answer.status != 200:  # 202 is a promise
        raise _unexpected(answer, "no result")
    if not answer.says_json:
        raise _unexpected(answer, "a Content-Type that is not JSON")
    try:
        response = _transaction.decode(answer.body)
    except UNREADABLE:
        raise _unexpected(answer, "something that is not a Bundle of results") from None
    if response.resource_type != "Bundle" or response.type != "transaction-response":
        raise _unexpected(answer, "something that is no transaction-response")
    results = [entry.response for entry in response.entry]
    if len(results) != len(keys):
        raise _unexpected(answer, f"{len(results):,} results for {len(keys):,} resources")
    if not all(map(_STORED.fullmatch, {result.status for result in results})):
        raise _unexpected(answer, "a result whose status is not 2xx")
    for result, key in zip(results, keys, strict=True):
        if result.location is not None and not _names(result.location, key):
            raise _unexpected(answer, "the location of another resource than the one that was sent")


def _names(location: str, key: str) -> bool:
    """Return whether a location, relative or absolute, with or without a version, is that of ``Type/id``."""
    place = location.partition("/_history/")[0]
    return place == key or place.endswith(f"/{key}")


def _unexpected(answer: Answer, what: str) -> ServiceError:
    return RefusedError(
        "send-answer",
        f"send: a transaction was answered {answer.status} with {what}",
        hint="is services.send.url the root of a FHIR server? Nothing of this transaction counts as sent",
        operation="send transaction",
        status=answer.status,
    ).made_from(answer)


def _text(body: bytes) -> str:
    """Return the free text of an OperationOutcome's issues, to be searched and dropped."""
    try:
        outcome = _outcome.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    texts: list[str] = []
    for issue in outcome.issue:
        details = issue.details.get("text") if isinstance(issue.details, dict) else None
        texts += (text for text in (issue.diagnostics, details) if isinstance(text, str))
    return "\n".join(texts)
