"""Chunks: the ``collection`` Bundles that are sent, with the place of each resource in its file (docs/services.md).

A chunk has at most ``bundle_chunk_size_mb`` (MiB) of text; a single larger resource is sent alone. A line stays in one
chunk, because a patient's resources refer to each other, unless the line alone is too large. A line whose ``fullUrl``
is already in the chunk begins the next one: two lines may hold the same resource, but a Bundle must not (invariant
bdl-7), so the service would find an error that is not in the data.

Bundles that are envelopes are taken apart; any other Bundle is one resource. A resource's bytes are never changed. The
``fullUrl`` of its entry is kept, so that references inside the Bundle still resolve.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tasks.shared.errors import DataError
from tasks.shared.fhir.bundles import UNWRAPPED, open_bundle, read_entry
from tasks.shared.fhir.resource import ID, head_of

BASE: Final = "https://sluice.invalid/fhir"
"""Base of the ``fullUrl`` that a resource without one gets. This host will never exist (RFC 2606)."""

_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "urn:sluice:validated-resource-without-id")
_HEAD: Final = b'{"resourceType":"Bundle","type":"collection","entry":['
_TAIL: Final = b"]}"
ENVELOPE: Final = len(_HEAD) + len(_TAIL)


class ResourcePlace(msgspec.Struct, frozen=True, gc=False):
    """The place of a resource: line from 1, index in the line's Bundle if any, type, and ``Type/id``.

    ``key`` may identify a person: for private files, never for logs.
    """

    line: int
    entry: int | None
    type: str
    key: str


class Item(msgspec.Struct, frozen=True, gc=False):
    """One resource to be validated: its place, and its entry as it is sent; ``url`` is the ``fullUrl`` as JSON."""

    place: ResourcePlace
    url: bytes
    text: bytes


@dataclass(frozen=True, slots=True, repr=False)
class ValidationChunk:
    """Neighbouring resources of one file."""

    file: str
    items: list[Item]

    def __len__(self) -> int:
        """Return the number of entries of the Bundle."""
        return len(self.items)

    @property
    def size(self) -> int:
        """Return the bytes of the body."""
        return ENVELOPE + sum(len(item.text) + 1 for item in self.items)

    def body(self) -> bytes:
        """Return the Bundle that is sent."""
        return b"".join((_HEAD, b",".join([item.text for item in self.items]), _TAIL))

    def place(self, entry: int) -> ResourcePlace | None:
        """Return the place of an entry of the Bundle; ``None`` if there is no such entry."""
        return self.items[entry].place if 0 <= entry < len(self.items) else None

    @property
    def span(self) -> tuple[int, int]:
        """Return the first and the last line with a resource in the Bundle."""
        return self.items[0].place.line, self.items[-1].place.line

    @property
    def where(self) -> str:
        """Return the file and its lines, for an error; also entry and type when it is about a single resource."""
        first, last = self.span
        text = f"{self.file}:{first}" if first == last else f"{self.file}:{first}-{last}"
        if len(self) > 1:
            return text
        place = self.items[0].place
        return f"{text}{'' if place.entry is None else f' entry {place.entry}'} {place.type}"

    def halves(self) -> tuple[ValidationChunk, ValidationChunk]:
        """Return two chunks, cut between two lines if there are several."""
        middle = len(self.items) // 2
        lines = [item.place.line for item in self.items]
        between = [n for n in range(1, len(lines)) if lines[n] != lines[n - 1]]
        at = min(between, key=lambda n: abs(n - middle), default=middle)
        return ValidationChunk(self.file, self.items[:at]), ValidationChunk(self.file, self.items[at:])


@dataclass
class FileItems:
    """Reads the items of one file, and counts. ``read`` is the bytes of its lines."""

    file: str
    base: str
    lines: int = 0
    resources: int = 0
    skipped: int = 0
    """Bundle entries with nothing to validate: no resource, a DELETE, the outcome of a search."""
    patients: int = 0
    read: int = field(default=0)

    def groups(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[list[Item]]:
        """Yield the items of every line. Raises ``DataError`` with ``file:line`` for what is no resource."""
        for number, line in lines:
            try:
                items = [*self._items(line, number)]
            except DataError as error:
                error.context = f"{self.file}:{number}"
                raise
            self.lines += 1
            self.read += len(line) + 1
            self.resources += len(items)
            self.patients += sum(item.place.type == "Patient" for item in items)
            yield items

    def _items(self, line: bytes, number: int) -> Iterator[Item]:
        bundle = open_bundle(line)
        if bundle is None or bundle.type not in UNWRAPPED:
            yield self._item(line, number, None, None)
            return
        for index, raw in enumerate(bundle.entries):
            entry = read_entry(raw)
            if entry.holds_data:
                yield self._item(entry.resource, number, index, entry.full_url)
            else:
                self.skipped += 1

    def _item(self, raw: bytes | msgspec.Raw, number: int, index: int | None, full_url: object) -> Item:
        kind, identifier = head_of(raw)
        usable = identifier if identifier is not None and ID.fullmatch(identifier) else None
        if isinstance(full_url, str) and full_url:
            url = full_url
        elif usable is not None:
            url = f"{BASE}/{kind}/{usable}"
        else:
            position = f"{self.base}\n{number}\n{'' if index is None else index}"
            url = f"urn:uuid:{uuid.uuid5(_NAMESPACE, position)}"
        spelled = msgspec.json.encode(url)
        place = ResourcePlace(number, index, kind, f"{kind}/{usable}" if usable else kind)
        return Item(place, spelled, b'{"fullUrl":%b,"resource":%b}' % (spelled, raw))


def pack(groups: Iterable[list[Item]], *, file: str, limit: int) -> Iterator[ValidationChunk]:
    """Yield chunks of at most ``limit`` bytes. Each of the ``groups`` has the items of one line."""
    items: list[Item] = []
    urls: set[bytes] = set()
    size = ENVELOPE
    for group in groups:
        whole = sum(len(item.text) + 1 for item in group)
        for part in [group] if ENVELOPE + whole <= limit else [[item] for item in group]:
            added, new = sum(len(item.text) + 1 for item in part), {item.url for item in part}
            if items and (size + added > limit or not urls.isdisjoint(new)):
                yield ValidationChunk(file, items)
                items, urls, size = [], set(), ENVELOPE
            items += part
            urls |= new
            size += added
    if items:
        yield ValidationChunk(file, items)
