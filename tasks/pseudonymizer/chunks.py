"""Chunks: a request has a line, or a part of a Bundle whose line is larger than the threshold (docs/services.md).

The parts are cut greedily, in the order of the entries. Each has all other members of the Bundle: the service needs its
``id`` as the seed of date shifting. Entries are not changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import Raw

from tasks.shared.fhir.bundles import Bundle, Members, close_bundle
from tasks.shared.fhir.persons import Identifying


@dataclass(frozen=True, slots=True)
class Chunk:
    """A resource to send: a whole line, or a part of a Bundle. ``last``: no part of the line follows.

    ``first`` is the index of its first entry in the Bundle of the line. ``alone``: larger than the threshold, and
    cannot be divided. ``values`` are the identifying values of the whole line if this is a part of it.
    """

    file: str
    line: int
    text: bytes = field(repr=False)
    first: int = 0
    last: bool = True
    alone: bool = False
    values: tuple[Identifying, ...] | None = field(default=None, repr=False)

    @property
    def is_part(self) -> bool:
        """Return whether the chunk is only a part of its line."""
        return self.first > 0 or not self.last

    @property
    def place(self) -> str:
        """Return ``file:line``, and the first entry of a part."""
        return f"{self.file}:{self.line}" + (f" from entry {self.first}" if self.is_part else "")


def parts_of(bundle: Bundle, threshold: int) -> Iterator[tuple[int, bytes, bool]]:
    """Yield (index of the first entry, text, whether it is the last part) of each part. A part has at most
    ``threshold`` bytes, or a single larger entry."""
    room = threshold - len(close_bundle(bundle.members, ()))
    start, size = 0, 0
    for index, entry in enumerate(bundle.entries):
        if size and size + len(entry) + 1 > room:
            yield start, close_bundle(bundle.members, bundle.entries[start:index]), False
            start, size = index, 0
        size += len(entry) + 1
    yield start, close_bundle(bundle.members, bundle.entries[start:]), True


def halves_of(bundle: Bundle) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
    """Return both halves of a Bundle of at least two entries, each with the index of its first entry."""
    middle = len(bundle.entries) // 2
    first, second = bundle.entries[:middle], bundle.entries[middle:]
    return (0, close_bundle(bundle.members, first)), (middle, close_bundle(bundle.members, second))


def joined(answers: list[Bundle], sent_type: Raw | None) -> bytes:
    """Return the line of a Bundle that came back in parts: the members of the first answer, the entries of all.

    ``total`` stays where FHIR allows it; a ``Bundle.type`` that the rules removed is put back as it was sent.
    """
    members: Members = dict(answers[0].members)
    if "type" not in members and sent_type is not None:
        members["type"] = sent_type
    if bytes(members.get("type", b"")) not in (b'"searchset"', b'"history"'):
        members.pop("total", None)
    return close_bundle(members, [entry for answer in answers for entry in answer.entries])
