"""What a FHIR server's answer to a transaction means for the resources in it (document 3 §7).

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
from tasks.shared.fhir.reading import UNREADABLE, RepeatedKeyError, check_utf8, unique_members
from tasks.shared.http.answer import Answer, RefusedError, issue_codes

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


_STATUS: Final = re.compile("([1-5][0-9][0-9])(?: .*)?", re.DOTALL)
"""Three digits and a blank or the end (document 3 §7)."""

_RESPONSE, _STATUS_KEY, _LOCATION = b'"response"', b'"status"', b'"location"'


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
    location: str | None = None


class _Entry(msgspec.Struct, gc=False):
    response: _Response


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
_entries = msgspec.json.Decoder(list[msgspec.Raw])
_NO_ENTRIES: Final = msgspec.Raw(b"[]")


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


def judge_entries(answer: Answer, keys: Sequence[str]) -> list[Verdict] | None:
    """The verdicts over the entries of an accepted transaction; ``None`` when all of them got in. ``keys`` are the
    ``Type/id`` that were put.

    Raises ``ServiceError`` ``send-answer`` when the answer is not the result of this transaction: then nobody can say
    what was stored.
    """
    if answer.status != 200:  # 202 is a promise
        raise _unexpected(answer, "no result")
    if not answer.says_json:
        raise _unexpected(answer, "something that is no JSON by its Content-Type")
    try:
        check_utf8(answer.body)
        response = _transaction.decode(answer.body)
        repeated = _repeated(answer.body, len(response.entry))
    except UNREADABLE:
        raise _unexpected(answer, "something that is no Bundle of results") from None
    if repeated:
        raise _unexpected(answer, "a key that stands twice")
    if response.resource_type != "Bundle" or response.type != "transaction-response":
        raise _unexpected(answer, "something that is no transaction-response")
    results = [entry.response for entry in response.entry]
    if len(results) != len(keys):
        raise _unexpected(answer, f"{len(results):,} results for {len(keys):,} resources")
    texts = {result.status for result in results}
    known = {text: match[1] for text in texts if (match := _STATUS.fullmatch(text))}
    if len(known) != len(texts):
        raise _unexpected(answer, "results without a status")
    for result, key in zip(results, keys, strict=True):
        if result.location is not None and not _names(result.location, key):
            raise _unexpected(answer, "the location of another resource than the one that was put")
    if all(status[0] == "2" for status in known.values()):
        return None
    statuses = [known[result.status] for result in results]
    # Rare, and the only case in which the outcomes are looked at.
    outcomes = [entry.response.outcome if entry.response else b"" for entry in _explained.decode(answer.body).entry]
    return [judge(int(status), bytes(why)) for status, why in zip(statuses, outcomes, strict=True)]


def _repeated(body: bytes, count: int) -> bool:
    """Whether a key stands twice in the Bundle, or one that counts in an entry.

    An entry has each of these keys once: as long as there are no more of them than that, and none is spelled with
    escapes, the entries need not be taken apart.
    """
    try:
        members = unique_members(body)
        if (
            body.count(_RESPONSE) > count
            or body.count(_STATUS_KEY) > count
            or body.count(_LOCATION) > count
            or (b"\\u" in body)
        ):
            for raw in _entries.decode(members.get("entry", _NO_ENTRIES)):
                unique_members(unique_members(raw)["response"])
    except RepeatedKeyError:
        return True
    return False


def _names(location: str, key: str) -> bool:
    """Whether a location, relative or absolute, with a version or without, is that of ``Type/id``."""
    place = location.partition("/_history/")[0]
    return place == key or place.endswith(f"/{key}")


def _unexpected(answer: Answer, what: str) -> ServiceError:
    return RefusedError(
        "send-answer",
        f"send: a transaction was answered {answer.status} with {what}",
        hint="is services.send.url the root of a FHIR server? nothing of this transaction was taken as sent",
        operation="send transaction",
        status=answer.status,
    ).made_from(answer)


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
