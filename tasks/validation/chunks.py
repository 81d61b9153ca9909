"""Chunks: the ``collection`` Bundles that are sent, and where everything in them came from (document 3 §6).

A chunk has at most ``bundle_chunk_size_mb`` (MiB) of text, unless a single resource is larger: that one travels alone.
Lines are not torn apart, since a patient's resources refer to each other, unless a line alone is too large. A line
that brings a ``fullUrl`` which the chunk already has begins the next one: two lines may well hold the same resource,
and a Bundle must not (invariant bdl-7), so together they would get a finding that is not in the data.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple, Self

from tasks.validation.items import Item, ItemEntry, UnusableItem, key_of

HEAD: Final = b'{"resourceType":"Bundle","type":"collection","entry":['
TAIL: Final = b"]}"
ENVELOPE: Final = len(HEAD) + len(TAIL)


class ResourcePlace(NamedTuple):
    """The place of a resource: line from 1, index in the line's Bundle if any, type, and ``Type/id``.

    ``key`` may identify a person: for private files, never for logs. ``raw`` is the resource, blank where it could not
    be read.
    """

    line: int
    entry: int | None
    type: str
    key: str
    raw: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class ValidationChunk:
    """Neighbouring resources of one file. ``first`` and ``count`` are ordinals of the file's items, from 0.

    ``body`` is the Bundle, empty when everything here is unusable. Of its entries only positions are kept: for a
    thousand small resources they would otherwise weigh as much as the text.
    """

    file: str
    first: int
    count: int
    body: bytes
    lines: array[int]
    indexes: array[int]
    starts: array[int]
    resources: array[int]
    unusable: tuple[UnusableItem, ...] = ()
    read: int = 0
    """Bytes of the file's content up to the end of this chunk."""

    def __len__(self) -> int:
        """Return the number of entries of the Bundle."""
        return len(self.lines)

    def place(self, entry: int) -> ResourcePlace | None:
        """Return the place of an entry of the Bundle; ``None`` if there is no such entry."""
        if not 0 <= entry < len(self):
            return None
        raw = memoryview(self.body)[self.resources[entry] : self._end(entry) - 1]
        kind, key = key_of(raw)
        index = self.indexes[entry]
        return ResourcePlace(self.lines[entry], None if index < 0 else index, kind, key, raw)

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last line that the Bundle has something of."""
        return self.lines[0], self.lines[-1]

    @property
    def where(self) -> str:
        """For an error: the file and its lines, also entry and type when it is about a single resource."""
        first, last = self.span
        text = f"{self.file}:{first}" if first == last else f"{self.file}:{first}-{last}"
        if len(self) > 1 or (place := self.place(0)) is None:
            return text
        entry = "" if place.entry is None else f" entry {place.entry}"
        return f"{text}{entry} {place.type}".rstrip()

    def halves(self) -> tuple[Self, Self]:
        """Two chunks with about half of the text each, cut between two lines where there are two."""
        middle = bisect_left(self.starts, len(self.body) // 2, 1, len(self) - 1)
        between = [n for n in range(1, len(self)) if self.lines[n] != self.lines[n - 1]]
        if between:
            middle = min(between, key=lambda n: abs(n - middle))
        return self._part(0, middle), self._part(middle, len(self))

    def _part(self, start: int, stop: int) -> Self:
        begin = self.starts[start]
        shift = begin - len(HEAD)
        return type(self)(
            self.file,
            self.first,
            0,
            b"".join((HEAD, memoryview(self.body)[begin : self._end(stop - 1)], TAIL)),
            self.lines[start:stop],
            self.indexes[start:stop],
            array("Q", [at - shift for at in self.starts[start:stop]]),
            array("Q", [at - shift for at in self.resources[start:stop]]),
        )

    def _end(self, entry: int) -> int:
        """Behind the closing brace of an entry."""
        return self.starts[entry + 1] - 1 if entry + 1 < len(self) else len(self.body) - len(TAIL)


class _Building:
    """A chunk in the making: ``size`` is that of its body if nothing more comes."""

    def __init__(self, file: str, first: int) -> None:
        self._file = file
        self._items: list[Item] = []
        self._urls: set[bytes | None] = set()
        self._size = ENVELOPE
        self.first = first

    @property
    def count(self) -> int:
        return len(self._items)

    def add(self, items: list[Item], size: int, limit: int) -> bool:
        """Take these items in, if there is room for all of them and nothing of the same name."""
        urls = {item.url for item in items}
        urls.discard(None)
        if self._items and (self._size + size > limit or not urls.isdisjoint(self._urls)):
            return False
        self._items += items
        self._size += size
        self._urls |= urls
        return True

    def chunk(self, read: int) -> ValidationChunk:
        entries = [item for item in self._items if isinstance(item, ItemEntry)]
        starts = list(accumulate([entry.size for entry in entries], initial=len(HEAD)))[: len(entries)]
        return ValidationChunk(
            self._file,
            self.first,
            self.count,
            _body([entry.text for entry in entries]),
            array("Q", [entry.line for entry in entries]),
            array("q", [-1 if entry.index is None else entry.index for entry in entries]),
            array("Q", starts),
            array("Q", [start + entry.resource for start, entry in zip(starts, entries, strict=True)]),
            tuple([item for item in self._items if isinstance(item, UnusableItem)]),
            read,
        )


def pack(
    groups: Iterable[tuple[list[Item], int]], *, file: str, limit: int, skip: int = 0
) -> Iterator[ValidationChunk]:
    """Chunks of at most ``limit`` bytes from groups of items that belong together.

    With each group comes how many bytes of the content were read up to its end. The first ``skip`` items of the file
    are left out: an earlier run validated them. The same items and limit give the same chunks, also when the earlier
    run ended behind any chunk of them.
    """
    building = _Building(file, skip)
    at = before = 0
    for group, read in groups:
        items = group if at >= skip else group[skip - at :]
        at += len(group)
        size = sum([item.size for item in items])
        together = [(items, size)] if ENVELOPE + size <= limit else [([item], item.size) for item in items]
        for part, part_size in together:
            if not building.add(part, part_size, limit):
                yield building.chunk(before)
                building = _Building(file, building.first + building.count)
                building.add(part, part_size, limit)
        before = read
    if building.count:
        yield building.chunk(before)


def _body(texts: list[bytes]) -> bytes:
    if not texts:
        return b""
    # Head and tail as parts of an entry: the large join is then the only copy.
    texts[0] = HEAD + texts[0]
    texts[-1] += TAIL
    return b",".join(texts)
