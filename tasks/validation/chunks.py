"""Chunks: the ``collection`` Bundles that are sent, and where everything in them came from (document 3 §6).

A chunk has at most ``bundle_chunk_size_mb`` (MiB) of text, unless a single resource is larger: that one travels alone.
Lines are not torn apart, since a patient's resources refer to each other, unless a line alone is too large. A line
that brings a ``fullUrl`` which the chunk already has begins the next one: two lines may well hold the same resource,
and a Bundle must not (invariant bdl-7), so together they would get a finding that is not in the data.

Lines are split into items, the resources to validate. Bundles that are envelopes (collection, searchset, transaction,
batch) are taken apart; any other Bundle, such as a document or a history, is one resource, which the service checks. A
resource's bytes are never changed. Its entry's own ``fullUrl`` is kept, so that references inside the Bundle still
resolve; the entry's ``request`` is not sent.
"""

from __future__ import annotations

import uuid
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple, Self

import msgspec

from tasks.shared.fhir.bundle import UNWRAPPED
from tasks.shared.fhir.entries import RawEntry, read_bundle, read_entry
from tasks.shared.fhir.long_line import LongLine
from tasks.shared.fhir.reading import ID, TYPE, USUAL, UnusableError, read_head
from tasks.shared.files.data_directory import base_name

BASE: Final = "https://sluice.invalid/fhir"
"""Where a resource without a ``fullUrl`` of its own seems to be. Nothing is there, nor ever will be (RFC 2606)."""

_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "urn:sluice:validated-resource-without-id")
_AROUND_URL: Final = len(b'{"fullUrl":') + len(b',"resource":')


class Item(msgspec.Struct, frozen=True, gc=False):
    """One resource to be validated: where it stood, and its entry as it is sent.

    ``line`` counts from 1, ``index`` is that of the entry in the line's Bundle, ``None`` for a plain line. ``url`` is
    the ``fullUrl`` as JSON text; the resource begins at ``resource`` in ``text`` and ends before its last byte.
    ``size`` is what the entry adds to a Bundle, in bytes, the comma included.
    """

    line: int
    index: int | None
    url: bytes
    text: bytes
    resource: int
    size: int


@dataclass(slots=True)
class ValidationFacts:
    """Counts of a file that was read. ``bytes`` is the size of its content, ``skipped`` the number of Bundle entries
    without a resource, such as a DELETE or the outcome of a search."""

    lines: int = 0
    bytes: int = 0
    resources: int = 0
    skipped: int = 0


class ItemReader:
    """Cuts the lines of one file into items and counts them in ``facts``."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._base = base_name(file)
        self.facts = ValidationFacts()

    def groups(self, lines: Iterable[tuple[int, bytes | LongLine]]) -> Iterator[list[Item]]:
        """Yield the items of every line, in order, as one list per line; a long line, which never fits in memory, gives
        lists of one item. Raises ``DataError`` with ``file:line`` for what is no resource."""
        facts = self.facts
        for number, line in lines:
            facts.lines += 1
            if isinstance(line, LongLine):
                facts.bytes += line.size + 1
                for item in self._long(line, number):
                    facts.resources += 1
                    yield [item]
            else:
                facts.bytes += len(line) + 1
                items = self._line(line, number)
                facts.resources += len(items)
                yield items

    def _line(self, line: bytes, number: int) -> list[Item]:
        try:
            bundle = read_bundle(line)
        except UnusableError as problem:
            raise problem.error(f"{self._file}:{number}") from None
        if bundle is None or bundle.type not in UNWRAPPED:
            return [self._item(line, number, None)]
        return [*self._entries(bundle.entries, number)]

    def _long(self, line: LongLine, number: int) -> Iterator[Item]:
        if line.resource_type == "Bundle" and line.envelope().type in UNWRAPPED:
            yield from self._entries(map(read_entry, line.entries()), number)
        else:
            yield self._item(line.whole(), number, None)

    def _entries(self, entries: Iterable[RawEntry], number: int) -> Iterator[Item]:
        for index, entry in enumerate(entries):
            if entry.carries_nothing:
                self.facts.skipped += 1
            else:
                yield self._item(entry.resource, number, index, entry.full_url)

    def _item(self, raw: bytes | msgspec.Raw, number: int, index: int | None, full_url: str | None = None) -> Item:
        try:
            kind, identifier = type_and_id(raw)
        except UnusableError as problem:
            entry = "" if index is None else f" entry {index}"
            raise problem.error(f"{self._file}:{number}{entry}") from None
        url = msgspec.json.encode(full_url) if full_url else self._url(kind, identifier, number, index)
        text = b'{"fullUrl":%b,"resource":%b}' % (url, raw)
        return Item(number, index, url, text, len(url) + _AROUND_URL, len(text) + 1)

    def _url(self, kind: str, identifier: str | None, number: int, index: int | None) -> bytes:
        if identifier is not None:
            return f'"{BASE}/{kind}/{identifier}"'.encode()
        position = f"{self._base}\n{number}\n{'' if index is None else index}"
        return f'"urn:uuid:{uuid.uuid5(_NAMESPACE, position)}"'.encode()


def key_of(raw: bytes | memoryview) -> tuple[str, str]:
    """Type of a resource, and its ``Type/id`` (the type alone when it has no usable id); for private files only."""
    kind, identifier = type_and_id(raw)
    return kind, f"{kind}/{identifier}" if identifier else kind


def type_and_id(raw: bytes | memoryview | msgspec.Raw) -> tuple[str, str | None]:
    """Type and id of a resource; ``None`` for an id that is missing or could not stand in a URL."""
    usual = USUAL.match(raw)
    if usual is not None:
        return usual[1].decode(), usual[2].decode()
    read = read_head(raw)
    kind, identifier = read.resource_type, read.id
    if TYPE.fullmatch(kind) is None:
        raise UnusableError("invalid-resource-type")
    # An id that is no string is for the service to complain about.
    return kind, identifier if isinstance(identifier, str) and ID.fullmatch(identifier) else None


HEAD: Final = b'{"resourceType":"Bundle","type":"collection","entry":['
TAIL: Final = b"]}"
ENVELOPE: Final = len(HEAD) + len(TAIL)


class ResourcePlace(NamedTuple):
    """The place of a resource: line from 1, index in the line's Bundle if any, type, and ``Type/id``.

    ``key`` may identify a person: for private files, never for logs.
    """

    line: int
    entry: int | None
    type: str
    key: str


@dataclass(frozen=True, slots=True)
class ValidationChunk:
    """Neighbouring resources of one file. ``first`` is the ordinal of the first one in the file, from 0.

    ``body`` is the Bundle. Of its entries only positions are kept: for a thousand small resources they would otherwise
    weigh as much as the text.
    """

    file: str
    first: int
    body: bytes
    lines: array[int]
    indexes: array[int]
    starts: array[int]
    resources: array[int]
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
        return ResourcePlace(self.lines[entry], None if index < 0 else index, kind, key)

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
        self._urls: set[bytes] = set()
        self._size = ENVELOPE
        self.first = first

    @property
    def count(self) -> int:
        return len(self._items)

    def add(self, items: list[Item], size: int, limit: int) -> bool:
        """Take these items in, if there is room for all of them and nothing of the same name."""
        urls = {item.url for item in items}
        if self._items and (self._size + size > limit or not urls.isdisjoint(self._urls)):
            return False
        self._items += items
        self._size += size
        self._urls |= urls
        return True

    def chunk(self, read: int) -> ValidationChunk:
        entries = self._items
        starts = list(accumulate([entry.size for entry in entries], initial=len(HEAD)))[: len(entries)]
        return ValidationChunk(
            self._file,
            self.first,
            _body([entry.text for entry in entries]),
            array("Q", [entry.line for entry in entries]),
            array("q", [-1 if entry.index is None else entry.index for entry in entries]),
            array("Q", starts),
            array("Q", [start + entry.resource for start, entry in zip(starts, entries, strict=True)]),
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
    # Head and tail as parts of an entry: the large join is then the only copy.
    texts[0] = HEAD + texts[0]
    texts[-1] += TAIL
    return b",".join(texts)
