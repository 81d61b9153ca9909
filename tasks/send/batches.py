"""Cut the lines of the input into resources, and pack these into transactions as full as the limits allow.

Every entry is ``PUT Type/id`` with a ``fullUrl`` of its own; what the input's Bundles said there is never sent on.

The rules of document 3 §7: at most ``batch_size`` resources, also when one line holds thousands, and at most
5 MiB unless a single resource is larger. The same ``Type/id`` twice in one transaction: the last wins.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import Final

import msgspec

from tasks.shared.fhir.bundle import CutLine, Resource, cut
from tasks.shared.fhir.long_line import LongLine, lines_with_long

MAX_BODY: Final = 5 * 1024 * 1024
"""Bytes of one transaction, unless it holds a single larger resource."""

MIN_BODY: Final = 64 * 1024
"""A server that says "too large" lowers the limit, but not below this: it may have meant something else."""

HEADERS: Final = {
    "Content-Type": "application/fhir+json",
    "Accept": "application/fhir+json",
    "Prefer": "return=minimal",
}

_HEAD: Final = b'{"resourceType":"Bundle","type":"transaction","entry":['
_TAIL: Final = b"]}"
_RESOURCE: Final = b'","resource":'
_REQUEST: Final = b',"request":{"method":"PUT","url":"'
_END: Final = b'"}}'


class Transactions:
    """Writes transactions for the FHIR server at the URL ``url``, which ends with ``/fhir``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._first = b'{"fullUrl":' + json.dumps(self.url).encode()[:-1] + b"/"
        self._next = b"," + self._first
        # Without "Type/id", which stands in an entry twice.
        self._overhead = len(self._next) + len(_RESOURCE) + len(_REQUEST) + len(_END)

    def sizes(self, resources: Iterable[Resource]) -> list[int]:
        """Return the bytes that each resource adds to a body."""
        overhead = self._overhead
        return [overhead + 2 * len(resource.key) + len(resource.raw) for resource in resources]

    @property
    def most_overhead(self) -> int:
        """Bytes that a resource adds to a body beside its own, at most: ids have 64 characters, types as well."""
        return self._overhead + 2 * (64 + 1 + 64)

    @property
    def envelope(self) -> int:
        """Bytes of a body without entries."""
        return len(_HEAD) + len(_TAIL)

    def body(self, resources: Iterable[Resource]) -> bytes:
        """Return the transaction with these resources (at least one), unchanged and in this order."""
        parts: list[bytes | msgspec.Raw] = []
        opening = self._next
        for resource in resources:
            key = resource.key.encode()
            parts += (opening, key, _RESOURCE, resource.raw, _REQUEST, key, _END)
        parts[:1] = (_HEAD, self._first)
        parts.append(_TAIL)
        # join takes views as well: this is the only copy that is made of a resource
        return b"".join(parts)


class TransactionLimits:
    """The limits of one transaction: resources, and bytes of its body. Any thread may lower the bytes."""

    def __init__(self, batch_size: int, max_bytes: int = MAX_BODY) -> None:
        self.batch_size = batch_size
        self._max_bytes = max_bytes
        self.lowered = False
        self._lock = threading.Lock()

    @property
    def max_bytes(self) -> int:
        """Bytes of a body, for now."""
        return self._max_bytes

    def too_large(self, refused: int) -> None:
        """Lower the limit below ``refused`` bytes after a 413."""
        with self._lock:
            self._max_bytes = min(self._max_bytes, max(MIN_BODY, refused // 2))
            self.lowered = True


class Resolve(Enum):
    """The ways to handle a transaction that was refused because the target of a reference is missing."""

    LATER = auto()
    """All of it waits until everything else is sent."""
    ISOLATE = auto()
    """It is halved: the resources whose targets are there get in, the others wait."""
    NEVER = auto()
    """Nothing more will come: the refusal is final."""


@dataclass(frozen=True, slots=True)
class SendUnit:
    """Resources that stay in one transaction when they fit into one: a line, or a circle of references.

    ``lanes`` name what must be sent in sequence: batches with a lane in common are never under way together.
    ``bytes`` is what the resources have together at most, where that is known without looking at each of them.
    """

    resources: Sequence[Resource]
    lanes: frozenset[str]
    bytes: int | None = None


@dataclass(slots=True, eq=False)
class UnitPart:
    """Resources of one transaction. ``groups`` are the positions where groups begin that should not be divided.

    ``None`` means that every resource may be parted from every other.
    """

    resources: Sequence[Resource]
    groups: Sequence[int] | None = None

    def divisible(self) -> bool:
        """Return whether there is more than one group."""
        return len(self.resources if self.groups is None else self.groups) > 1

    def halves(self) -> tuple[UnitPart, UnitPart]:
        """Two parts that hold the same, in order. A single group of several resources is divided after all."""
        if self.groups is None or len(self.groups) == 1:
            middle = len(self.resources) // 2
            return UnitPart(self.resources[:middle]), UnitPart(self.resources[middle:])
        at = len(self.groups) // 2
        middle = self.groups[at]
        return (
            UnitPart(self.resources[:middle], self.groups[:at]),
            UnitPart(self.resources[middle:], [start - middle for start in self.groups[at:]]),
        )


@dataclass(slots=True, eq=False)
class Batch:
    """The content of one transaction; ``collapsed`` are resources that a later one with the same id replaced."""

    content: UnitPart
    lanes: frozenset[str] = frozenset()
    collapsed: Sequence[Resource] = ()
    resolve: Resolve = Resolve.LATER


class _Open:
    """The transaction that is being filled."""

    def __init__(self, limits: TransactionLimits, transactions: Transactions) -> None:
        self._limits = limits
        self._transactions = transactions
        self._content: dict[str, Resource] = {}
        self._lanes: set[str] = set()
        self._collapsed: list[Resource] = []
        self._starts: list[int] = []
        self._bytes = transactions.envelope

    def __len__(self) -> int:
        return len(self._content)

    def fits(self, count: int, size: int) -> bool:
        return len(self._content) + count <= self._limits.batch_size and self._bytes + size <= self._limits.max_bytes

    def how_many_fit(self, sizes: Sequence[int], at: int) -> int:
        """Return how many resources of these sizes, from ``at`` on, fit. One always fits in an empty transaction."""
        free = self._limits.max_bytes - self._bytes
        count = 0
        for size in sizes[at : at + self._limits.batch_size - len(self._content)]:
            free -= size
            if free < 0:
                break
            count += 1
        return count or (not self._content)

    def put(self, resources: Sequence[Resource], size: int, lanes: frozenset[str]) -> None:
        self._lanes |= lanes
        self._bytes += size
        self._starts.append(len(self._content))
        added = {resource.key: resource for resource in resources}
        if len(added) == len(resources) and self._content.keys().isdisjoint(added):
            self._content |= added
            return
        for resource in resources:
            earlier = self._content.pop(resource.key, None)
            if earlier is not None:
                self._collapsed.append(earlier)
                self._bytes -= self._transactions.sizes([earlier])[0]
            self._content[resource.key] = resource

    def close(self, resolve: Resolve, *, groups: bool) -> Batch:
        content = UnitPart(list(self._content.values()), self._starts if groups else None)
        batch = Batch(content, frozenset(self._lanes), self._collapsed, resolve)
        self._content, self._lanes, self._collapsed, self._starts = {}, set(), [], []
        self._bytes = self._transactions.envelope
        return batch


def pack(
    units: Iterable[SendUnit],
    limits: TransactionLimits,
    transactions: Transactions,
    *,
    resolve: Resolve = Resolve.LATER,
    groups: bool = False,
) -> Iterator[Batch]:
    """Pack units into batches, in order.

    A unit that fits into one transaction is not divided; one that does not begins a new transaction. With ``groups``
    every unit stays a group, which the halving of a refused transaction respects: one that is larger than the limits
    travels alone. Then ``Type/id`` must be unique.
    """
    opened = _Open(limits, transactions)
    for unit in units:
        count = len(unit.resources)
        if unit.bytes is not None and opened.fits(count, most := unit.bytes + count * transactions.most_overhead):
            opened.put(unit.resources, most, unit.lanes)
            continue
        sizes = transactions.sizes(unit.resources)
        total = sum(sizes)
        if len(opened) and not opened.fits(count, total):
            yield opened.close(resolve, groups=groups)
        if groups or opened.fits(count, total):
            opened.put(unit.resources, total, unit.lanes)
            continue
        at = 0
        while at < count:
            take = opened.how_many_fit(sizes, at)
            if take:
                opened.put(unit.resources[at : at + take], sum(sizes[at : at + take]), unit.lanes)
                at += take
            else:
                yield opened.close(resolve, groups=groups)
    if len(opened):
        yield opened.close(resolve, groups=groups)


_LINE: Final = 8 << 20
"""Bytes of a line that is read as a whole."""
_PART: Final = 1 << 20
"""Bytes of a longer one that are read at once."""


def cut_file(
    path: Path, *, spool: Path, largest: int, check: Callable[[], None]
) -> Iterator[tuple[CutLine, int, int | None]]:
    """Yield the lines of a file, cut into resources, each with the size of its text twice.

    A line that does not fit in memory comes in parts, each with the patients of the whole line and the size of its own
    text; the second size is that of the line for the first part, and ``None`` for the others. ``spool`` is a directory
    for such a line, ``largest`` the limit of a resource in it in bytes. ``check`` raises if the step must stop. Raises
    what ``lines_with_long`` raises.
    """
    first = 0
    for number, line in lines_with_long(path, limit=_LINE, spool=spool, largest=largest):
        check()
        if isinstance(line, LongLine):
            for part, size, of_line in _cut_long(line, path.name, first, check):
                first += part.count
                yield part, size, of_line
        else:
            part = cut(line, file=path.name, number=number, first=first)
            first += part.count
            yield part, len(line), len(line)


def _cut_long(
    line: LongLine, file: str, first: int, check: Callable[[], None]
) -> Iterator[tuple[CutLine, int, int | None]]:
    """Yield the parts of a line. A first pass finds its patients and placeholders."""
    entries = 0
    patients: set[str] = set()
    placeholders: dict[bytes, bytes] = {}
    for text in line.bundles(_PART):
        check()
        part = cut(text, file=file, number=line.number, entry=entries)
        entries += part.count + part.skipped
        patients |= part.patients
        placeholders |= part.placeholders
    entries = 0
    of_line: int | None = line.size
    for text in line.bundles(_PART):
        check()
        part = cut(text, file=file, number=line.number, first=first, entry=entries, placeholders=placeholders)
        first += part.count
        entries += part.count + part.skipped
        yield replace(part, patients=frozenset(patients)), len(text), of_line
        of_line = None
