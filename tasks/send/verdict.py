"""What a FHIR server's answer to a transaction means for the resources in it (document 3 §7).

Statuses and issue codes decide where they can. They cannot tell a missing reference target from other
refusals, nor a lock conflict from other conflicts: HAPI answers both with the code ``processing``, Blaze a
missing target with the code ``conflict``. There the text of the issues is looked at, here and nowhere else,
and never shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

import msgspec

from tasks.shared.errors import ServiceError
from tasks.shared.http.answer import Answer, issue_codes

REFUSALS: Final = frozenset({400, 409, 412, 413, 422})
"""Statuses that say something about the content of a transaction. All others are about the endpoint."""

_BUSY: Final = frozenset({408, 429, 500, 502, 503, 504})

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


_STATUS: Final = re.compile("[1-5][0-9][0-9]")


class Fate(Enum):
    """What becomes of a transaction, or of one of its entries."""

    SENT = auto()
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


class _Text(msgspec.Struct):
    text: Any = None


class _Issue(msgspec.Struct):
    diagnostics: Any = None
    details: Any = None


class _Outcome(msgspec.Struct):
    issue: list[_Issue] = []


class _Response(msgspec.Struct, gc=False):
    status: str = ""


class _Entry(msgspec.Struct, gc=False):
    response: _Response | None = None


class _Transaction(msgspec.Struct, rename="camel"):
    resource_type: str = ""
    type: str = ""
    entry: list[_Entry] = []


class _Explained(msgspec.Struct):
    outcome: msgspec.Raw = msgspec.Raw()


class _ExplainedEntry(msgspec.Struct):
    response: _Explained | None = None


class _ExplainedTransaction(msgspec.Struct):
    entry: list[_ExplainedEntry] = []


_transaction = msgspec.json.Decoder(_Transaction)
_explained = msgspec.json.Decoder(_ExplainedTransaction)
_outcome = msgspec.json.Decoder(_Outcome)


def judge(status: int, body: bytes) -> Verdict:
    """The verdict over a transaction, or an entry, that was answered ``status``."""
    if 200 <= status < 300:
        return Verdict(Fate.SENT, status)
    codes = issue_codes(body)
    verdict = Fate.REFUSED
    if status == 413:
        verdict = Fate.TOO_LARGE
    elif status in REFUSALS or status == 404:
        text = _text(body)
        if _MISSING.search(text) or "not-found" in codes:
            verdict = Fate.MISSING_TARGET
        elif status in {409, 412} and (_CONFLICT.search(text) or not _CONFLICT_CODES.isdisjoint(codes)):
            verdict = Fate.CONFLICT
    elif status in _BUSY:
        verdict = Fate.CONFLICT
    return Verdict(verdict, status, codes, body)


def judge_entries(answer: Answer, count: int) -> list[Verdict] | None:
    """The verdicts over the entries of an accepted transaction; ``None`` when all ``count`` of them got in.

    Raises ``ServiceError`` ``send-answer`` when the answer is no ``transaction-response`` or does not answer
    every entry: then nobody can say what was stored.
    """
    try:
        response = _transaction.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _unexpected(answer, "something that is no Bundle") from None
    if response.resource_type != "Bundle" or response.type not in {"transaction-response", "batch-response"}:
        raise _unexpected(answer, "something that is no transaction-response")
    if len(response.entry) != count:
        raise _unexpected(answer, f"{len(response.entry)} results for {count} resources")
    statuses = [entry.response.status[:3] if entry.response is not None else "" for entry in response.entry]
    if not all(map(_STATUS.fullmatch, set(statuses))):
        raise _unexpected(answer, "results without a status")
    if all(status[0] == "2" for status in set(statuses)):
        return None
    # Rare, and the only case in which the outcomes are looked at.
    outcomes = [entry.response.outcome if entry.response else b"" for entry in _explained.decode(answer.body).entry]
    return [judge(int(status), bytes(why)) for status, why in zip(statuses, outcomes, strict=True)]


def _unexpected(answer: Answer, what: str) -> ServiceError:
    return ServiceError(
        "send-answer",
        f"send: a transaction was answered {answer.status} with {what}",
        hint="is services.send.url the root of a FHIR server? nothing of this transaction was taken as sent",
        operation="send transaction",
        status=answer.status,
    )


def _text(body: bytes) -> str:
    """The free text of an OperationOutcome's issues, to be searched and dropped."""
    try:
        outcome = _outcome.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    texts: list[str] = []
    for issue in outcome.issue:
        details = issue.details.get("text") if isinstance(issue.details, dict) else None
        texts += (text for text in (issue.diagnostics, details) if isinstance(text, str))
    return "\n".join(texts)
