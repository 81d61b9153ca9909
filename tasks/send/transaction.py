"""Transactions: pack resources, send them, and judge the answers (docs/services.md).

Every entry is ``PUT Type/id`` with a new ``fullUrl``; those of the input's Bundles are not sent. An answer is judged by
its status and by whether it has an OperationOutcome, never by its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tasks.send import HEADERS
from tasks.shared.errors import ServiceError, SluiceError
from tasks.shared.fhir.resource import UNREADABLE
from tasks.shared.http.answer import Answer, issues
from tasks.shared.http.client import Call, ServiceClient
from tasks.shared.http.errors import DEFAULT_TRANSIENT

OPERATION: Final = "send transaction"
MAX_BODY: Final = 5 << 20
"""Bytes of one transaction, unless it holds a single larger resource."""

_CONFLICTS: Final = frozenset({409, 412})
_ENDS: Final = frozenset({401, 403, 407})
_MOST_FAILED: Final = 12
"""Answers 500 in a row after which the server counts as broken: halving 1,000 resources needs ten."""

_HEAD: Final = b'{"resourceType":"Bundle","type":"transaction","entry":['
_RESOURCE: Final = b'","resource":'
_REQUEST: Final = b',"request":{"method":"PUT","url":"'
_END: Final = b'"}}'
_OVERHEAD: Final = len(_RESOURCE) + len(_REQUEST) + len(_END) + len(b',{"fullUrl":"/')


class Item(msgspec.Struct, frozen=True, gc=False):
    """A resource to be sent. ``key`` is ``Type/id``, which may identify a person: it is for requests and private files,
    never for logs. Resources of one ``group`` belong together. ``row`` is that of ``pending.db``."""

    key: str
    raw: bytes | msgspec.Raw
    file: str
    line: int
    entry: int | None = None
    group: int | str = 0
    row: int = 0

    @property
    def named(self) -> str:
        """Return its place and type, as logs may show it."""
        return f"{self.file}:{self.line} {self.key.partition('/')[0]}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a transaction that a server did not take because of its content; status and issue codes."""

    answer: Answer
    error: SluiceError
    reason: str


@dataclass(slots=True)
class Sent:
    """What became of a transaction: resources that are on the server, those that are not, and the bytes sent."""

    taken: list[Item] = field(default_factory=list)
    refused: list[tuple[list[Item], Refusal]] = field(default_factory=list)
    bytes: int = 0


class Transactions:
    """Sends transactions to the FHIR server at ``url``; thread-safe. ``works``: it has accepted one before."""

    def __init__(self, client: ServiceClient, url: str, batch_size: int, *, works: bool = False) -> None:
        self.works = works
        self._client = client
        self._url = url
        self._batch_size = batch_size
        self._max_body = MAX_BODY
        self._overhead = len(url) + _OVERHEAD
        self._first = b'{"fullUrl":' + json.dumps(url).encode()[:-1] + b"/"
        self._conflicts = _CONFLICTS
        self._failed = 0

    def pack(self, items: Iterable[Item], replaced: list[Item]) -> Iterator[list[Item]]:
        """Yield the resources of one transaction after the other. A group is divided only if it does not fit into one.

        Of the same ``Type/id`` in a transaction the last one wins; the others are added to ``replaced``.
        """
        opened: dict[str, Item] = {}
        size = len(_HEAD)
        for item in items:
            weight = self._size(item)
            while opened and (len(opened) >= self._batch_size or size + weight > self._max_body):
                whole, rest = _cut(list(opened.values()), item)
                yield whole
                opened = {one.key: one for one in rest}
                size = len(_HEAD) + sum(map(self._size, rest))
            other = opened.pop(item.key, None)
            size += weight
            if other is not None:
                loser, item = (item, other) if other.row > item.row else (other, item)
                replaced.append(loser)
                size -= self._size(loser)
            opened[item.key] = item
        if opened:
            yield list(opened.values())

    def send(self, items: list[Item], *, halving: bool) -> Sent:
        """Send resources in one transaction; halve it if it is too large (413) or, with ``halving``, if it is refused.

        Raises ``ServiceError`` and ``TransientError`` for other failures, with the place of the resources.
        """
        sent, stack = Sent(), [items]
        while stack:
            part = stack.pop()
            refusal = self._attempt(part, sent)
            if refusal is None:
                sent.taken.extend(part)
            elif len(part) > 1 and (halving or refusal.answer.status == 413):
                stack += reversed(_halves(part))
            else:
                sent.refused.append((part, refusal))
        return sent

    def body(self, items: Sequence[Item]) -> bytes:
        """Return the transaction with these resources (at least one), unchanged and in this order."""
        parts: list[bytes | msgspec.Raw] = [_HEAD]
        for item in items:
            key = item.key.encode()
            parts += (self._first, key, _RESOURCE, item.raw, _REQUEST, key, _END, b",")
        parts[-1] = b"]}"
        return b"".join(parts)  # join takes views, too: this is the only copy of a resource

    def _size(self, item: Item) -> int:
        return self._overhead + 2 * len(item.key) + len(item.raw)

    def _attempt(self, items: list[Item], sent: Sent) -> Refusal | None:
        body = self.body(items)
        sent.bytes += len(body)
        try:
            transient = DEFAULT_TRANSIENT | self._conflicts
            answer = self._client.send(Call("POST", self._url, OPERATION, body, HEADERS, transient=transient))
            check_results(answer, [item.key for item in items])
        except SluiceError as error:
            if (refusal := self._refusal(error)) is not None:
                if error.answered == 413 and len(items) > 1:
                    self._max_body = min(self._max_body, len(body) // 2)
                return refusal
            span = items[0].named + (f" and {len(items) - 1} more" if len(items) > 1 else "")
            error.context = f"{span}, {error.context}" if error.context else span
            raise
        self.works, self._failed = True, 0
        return None

    def _refusal(self, error: SluiceError) -> Refusal | None:
        """Return the refusal of the content; ``None`` for an error of another kind."""
        answer = error.answer
        if answer is None or not self._is_about_content(answer, error):
            return None
        codes = ", ".join(answer.issue_codes())
        return Refusal(answer, error, f"{answer.status} ({codes})" if codes else str(answer.status))

    def _is_about_content(self, answer: Answer, error: SluiceError) -> bool:
        status, explained = answer.status, bool(issues(answer.body))
        if status < 400 or status in _ENDS or error.answered is None:
            return False
        if status in _CONFLICTS:
            if explained:
                # All attempts failed, so waiting does not help: Blaze answers 409 for a missing target. Refused
                # resources are tried again later anyway.
                self._conflicts = frozenset()
            return explained
        if status == 500:
            self._failed += 1
            return explained and self._failed <= _MOST_FAILED
        # Without an OperationOutcome another server may answer, unless this one has accepted a transaction.
        return status == 413 or (status < 500 and status not in DEFAULT_TRANSIENT and (explained or self.works))


def _cut(batch: list[Item], following: Item) -> tuple[list[Item], list[Item]]:
    """Divide a full transaction so that the group of the following resource stays whole: it goes into the next one.

    A group that fills the transaction alone is divided by its size.
    """
    begin = len(batch)
    while begin and batch[begin - 1].group == following.group:
        begin -= 1
    return (batch[:begin], batch[begin:]) if begin else (batch, [])


def _halves(items: list[Item]) -> tuple[list[Item], list[Item]]:
    """Divide a refused transaction near its middle, between two groups if there are several."""
    middle = len(items) // 2
    borders = [at for at in range(1, len(items)) if items[at].group != items[at - 1].group]
    middle = min(borders, key=lambda at: abs(at - middle), default=middle)
    return items[:middle], items[middle:]


class _Response(msgspec.Struct, gc=False):
    status: str = ""
    location: str | None = None


class _ResponseEntry(msgspec.Struct, gc=False):
    response: _Response


class _TransactionResponse(msgspec.Struct, gc=False):
    type: str = ""
    entry: list[_ResponseEntry] = []


_response = msgspec.json.Decoder(_TransactionResponse)
_STORED: Final = re.compile("2[0-9][0-9](?: .*)?", re.DOTALL)


def check_results(answer: Answer, keys: Sequence[str]) -> None:
    """Raise ``ServiceError`` (``send-answer``) if the answer is not the result of putting these ``Type/id``."""
    try:
        response = _response.decode(answer.body)
    except UNREADABLE:
        response = _TransactionResponse()
    # a 202 has no results yet
    if answer.status != 200 or not answer.says_json or response.type != "transaction-response":
        raise _unexpected(answer, "something that is not a transaction-response")
    results = [entry.response for entry in response.entry]
    if len(results) != len(keys):
        raise _unexpected(answer, f"{len(results):,} results for {len(keys):,} resources")
    if not all(map(_STORED.fullmatch, {result.status for result in results})):
        raise _unexpected(answer, "a result whose status is not 2xx")
    for result, key in zip(results, keys, strict=True):
        if result.location is not None and not _names(result.location, key):
            raise _unexpected(answer, "the location of a resource other than the one that was sent")


def _names(location: str, key: str) -> bool:
    """Return whether a location, relative or absolute, with or without a version, is that of ``Type/id``."""
    place = location.partition("/_history/")[0]
    return place == key or place.endswith(f"/{key}")


def _unexpected(answer: Answer, what: str) -> ServiceError:
    return ServiceError(
        "send-answer",
        f"send: a transaction was answered {answer.status} with {what}",
        hint="is services.send.url the root of a FHIR server? Nothing of this transaction counts as sent",
        operation=OPERATION,
        status=answer.status,
    ).made_from(answer)
