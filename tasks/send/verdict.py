"""Interpret the answer of a FHIR server to a transaction for each of its resources (document 3 §7).

Statuses and issue codes decide where they can. They cannot tell a missing reference target from other
refusals, nor a lock conflict from other conflicts: HAPI answers both with the code ``processing``, Blaze a
missing target with the code ``conflict``. There the text of the issues is looked at, here and nowhere else,
and never shown.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw

from tasks.shared.errors import ServiceError
from tasks.shared.fhir.reading import UNREADABLE, RepeatedKeyError, check_utf8, unique_members
from tasks.shared.http.answer import Answer, RefusedError, issue_codes
from tasks.shared.http.proxies import is_loopback

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

_SERIOUS: Final = ("error", "fatal")
_ELSEWHERE: Final = "a location on another host"
_NULL: Final = Raw(b"null")


class Fate(Enum):
    """The outcome of a transaction or of one of its entries."""

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


class _ResponseIssue(msgspec.Struct):
    diagnostics: Any = None
    details: Any = None


class _ResponseOutcome(msgspec.Struct):
    issue: list[_ResponseIssue] = []


class _Written(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """A part of an answer, every element that FHIR knows in it: written again it is as long as the text without white
    space, unless a key stands twice or is unknown."""

    id: Raw = Raw()
    extension: Raw = Raw()


class _Remark(_Written, gc=False):
    severity: str | None = None
    code: Raw = Raw()
    details: Raw = Raw()
    diagnostics: Raw = Raw()
    location: Raw = Raw()
    expression: Raw = Raw()


class _Remarks(_Written, gc=False):
    resource_type: Raw = Raw()
    meta: Raw = Raw()
    text: Raw = Raw()
    issue: list[_Remark] | None = None


class _Response(_Written, gc=False):
    status: str = ""
    location: str | None = None
    etag: Raw = Raw()
    last_modified: Raw = Raw()
    outcome: _Remarks | None = None

    @property
    def is_serious(self) -> bool:
        """Return whether the outcome has an issue with an error."""
        return any(issue.severity in _SERIOUS for issue in (self.outcome and self.outcome.issue) or ())


class _Stored(msgspec.Struct, rename="camel", gc=False):
    resource_type: Any = None
    id: Any = None


class _ResponseEntry(_Written, kw_only=True, gc=False):
    full_url: Raw = Raw()
    link: Raw = Raw()
    response: _Response
    resource: _Stored | None = None


class _Transaction(_Written, gc=False):
    resource_type: str = ""
    type: str = ""
    meta: Raw = Raw()
    identifier: Raw = Raw()
    timestamp: Raw = Raw()
    total: Raw = Raw()
    link: Raw = Raw()
    entry: list[_ResponseEntry] = []


_transaction = msgspec.json.Decoder(_Transaction)
_encode = msgspec.json.Encoder().encode
_outcome = msgspec.json.Decoder(_ResponseOutcome)
_entries = msgspec.json.Decoder(list[Raw] | None)
_NO_ENTRIES: Final = Raw(b"[]")


def judge(status: int, body: bytes, *, refused: bool = False) -> Verdict:
    """Return the verdict on a transaction or entry with this ``status``; ``refused`` means that its outcome has an
    error, which counts even with a 2xx."""
    if 200 <= status < 300 and not refused:
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


def judge_entries(answer: Answer, keys: Sequence[str], url: str) -> list[Verdict] | None:
    """Return the verdicts on the entries of an accepted transaction; ``None`` if all were stored. ``keys`` are the
    ``Type/id`` that were put, ``url`` is the server's. An entry whose outcome has an error was not stored, whatever its
    status.

    Raises ``ServiceError`` ``send-answer`` when the answer is not the result of this transaction: then nobody can say
    what was stored.
    """
    if answer.status != 200:  # 202 is a promise
        raise _unexpected(answer, "no result")
    if not answer.says_json:
        raise _unexpected(answer, "a Content-Type that is not JSON")
    try:
        check_utf8(answer.body)
        response = _transaction.decode(answer.body)
        repeated = _repeats(answer.body, response)
    except UNREADABLE:
        raise _unexpected(answer, "something that is not a Bundle of results") from None
    if repeated:
        raise _unexpected(answer, "a repeated key")
    if response.resource_type != "Bundle" or response.type != "transaction-response":
        raise _unexpected(answer, "something that is no transaction-response")
    results = [entry.response for entry in response.entry]
    if len(results) != len(keys):
        raise _unexpected(answer, f"{len(results):,} results for {len(keys):,} resources")
    texts = {result.status for result in results}
    known = {text: match[1] for text in texts if (match := _STATUS.fullmatch(text))}
    if len(known) != len(texts):
        raise _unexpected(answer, "results without a status")
    for entry, key in zip(response.entry, keys, strict=True):
        if what := _of_another(entry, key, url):
            raise _unexpected(answer, what)
    if all(status[0] == "2" for status in known.values()) and not any(
        one.outcome and one.is_serious for one in results
    ):
        return None
    # Rare, and the only case in which the outcomes are looked at.
    entries = _entries.decode(unique_members(answer.body)["entry"]) or ()
    outcomes = [_members(unique_members(entry), "response").get("outcome", b"") for entry in entries]
    return [
        judge(int(known[result.status]), bytes(why), refused=result.is_serious)
        for result, why in zip(results, outcomes, strict=True)
    ]


def _repeats(body: bytes, read: _Transaction) -> bool:
    """Return whether the Bundle or an entry repeats a key that counts. ``read`` is the parsed Bundle."""
    size = len(_encode(read))
    if size == len(body) or size == len(msgspec.json.format(body, indent=-1)):
        return False
    # Keys that FHIR does not know, or strings with escapes that need not be: the entries have to be taken apart.
    try:
        members = unique_members(body)
        for raw in _entries.decode(members.get("entry", _NO_ENTRIES)) or ():
            entry = unique_members(raw)
            _members(entry, "resource")
            outcome = _members(_members(entry, "response"), "outcome")
            for issue in _entries.decode(outcome.get("issue", _NO_ENTRIES)) or ():
                unique_members(issue)
    except RepeatedKeyError:
        return True
    return False


def _members(parent: Mapping[str, Raw], key: str) -> Mapping[str, Raw]:
    raw = parent.get(key, _NULL)
    return {} if raw == _NULL else unique_members(raw)


def _of_another(entry: _ResponseEntry, key: str, url: str) -> str | None:
    """Return the part of an entry that does not belong to the resource put as ``key`` on the server at ``url``."""
    location, stored = entry.response.location, entry.resource
    if location is not None and location.partition("/_history/")[0] != key:  # as a rule it is relative
        if not _names(location, key):
            return "the location of another resource than the one that was sent"
        if not _is_at(location, url):
            return _ELSEWHERE
    if stored is not None and f"{stored.resource_type}/{stored.id}" != key:
        return "another resource than the one that was sent"
    return None


def _names(location: str, key: str) -> bool:
    """Return whether a location, relative or absolute, with or without a version, is that of ``Type/id``."""
    place = location.partition("/_history/")[0]
    return place == key or place.endswith(f"/{key}")


def _is_at(location: str, url: str) -> bool:
    """Return whether a location is relative or on the host of ``url``."""
    _, slashes, rest = location.partition("//")
    return not slashes or _is_own_host(rest.partition("/")[0], url)


@functools.lru_cache(maxsize=64)
def _is_own_host(place: str, url: str) -> bool:
    """Return whether a host with its port is that of ``url``. ``localhost`` counts as its own host, because servers in
    containers often use it."""
    try:
        host = urlsplit(f"//{place}").hostname or ""
        return host == urlsplit(url).hostname or is_loopback(host)
    except ValueError:
        return False


def _unexpected(answer: Answer, what: str) -> ServiceError:
    hint = "is services.send.url the root of a FHIR server?"
    if what == _ELSEWHERE:
        hint = "does a proxy lead to another server? If not, its base URL must have the host of services.send.url."
    return RefusedError(
        "send-answer",
        f"send: a transaction was answered {answer.status} with {what}",
        hint=f"{hint} Nothing of this transaction counts as sent",
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
