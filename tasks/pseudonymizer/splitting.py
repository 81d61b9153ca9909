"""Split lines into requests: a line, or a part of a Bundle that is too large, whose answers are joined to one line
(document 3 §4, "Split" and "Reassembly").

Only Bundles whose line is larger than the threshold are split, greedily and in the order of their entries. Every chunk
has the whole envelope of the Bundle and with it its ``id``: the service seeds date shifting with it. Nothing is parsed
and dumped: the entries are cut out as they stand, white space and spelling of numbers included.

What comes back are the entries in their order, in the envelope of the first answer; of a Bundle whose first chunks lost
all their entries to a ``remove`` rule, in that of the first answer that has some. ``total`` stays only where FHIR
allows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from tasks.pseudonymizer.residual_identifiers import PersonNumbers, numbers_in
from tasks.shared.fhir.envelope import Envelope, open_envelope
from tasks.shared.fhir.long_line import LongLine, lines_with_long
from tasks.shared.fhir.reading import LARGEST_RESOURCE

_COUNTED: Final = frozenset({"searchset", "history"})


@dataclass(frozen=True, slots=True)
class RequestChunk:
    """A resource to be sent: a whole line, or ``part`` (from 0) of a Bundle, up to the ``last`` one.

    ``first_entry`` is the index of its first entry in the Bundle of the line. ``size`` is that of the line with its
    line feed, in bytes, and 0 for all parts but the last one. ``alone`` says that it is larger than the threshold, and
    cannot be smaller. ``numbers`` are those of the persons in the whole Bundle when this is a part of it.
    """

    file: str
    line: int
    text: bytes = field(repr=False)
    size: int
    part: int = 0
    last: bool = True
    first_entry: int = 0
    alone: bool = False
    numbers: PersonNumbers | None = field(default=None, repr=False)

    @property
    def split(self) -> bool:
        """Return whether the chunk is only a part of the line."""
        return self.part > 0 or not self.last

    @property
    def place(self) -> str:
        """``file:line``, and which entries of a Bundle that was split."""
        return f"{self.file}:{self.line}" + (f" from entry {self.first_entry}" if self.split else "")


def chunks(
    path: Path, *, threshold: int, spool: Path, after: int = 0, largest: int = LARGEST_RESOURCE
) -> Iterator[RequestChunk]:
    """Yield the lines after line number ``after`` as chunks of at most ``threshold`` bytes.

    Larger are only a resource that is no Bundle, and a single entry. Memory: one chunk; a longer line is kept in a
    file in the directory ``spool``.

    Raises ``DataError`` with ``file:line`` for a long line that cannot be taken apart, and ``resource-too-large`` for a
    resource of more than ``largest`` bytes.
    """
    for number, line in lines_with_long(path, limit=threshold, spool=spool, largest=largest):
        if number <= after:
            continue
        if isinstance(line, bytes):
            yield RequestChunk(path.name, number, line, len(line) + 1)
            continue
        yield from _of_long(path.name, number, line, threshold)


def _of_long(file: str, number: int, line: LongLine, threshold: int) -> Iterator[RequestChunk]:
    if line.resource_type != "Bundle":
        yield RequestChunk(file, number, line.whole(), line.size + 1, alone=True)
        return
    envelope = line.envelope()
    numbers = numbers_in(line.entries())
    part = first = 0
    for group, last in _groups(line.entries(), envelope, threshold):
        count, size = len(group), line.size + 1 if last else 0
        text = envelope.close(group)
        group.clear()  # the entries are in memory once, not twice
        alone = count == 1 and len(text) > threshold
        yield RequestChunk(file, number, text, size, part, last, first, alone, numbers)
        del text
        part += 1
        first += count
    if not part:
        yield RequestChunk(file, number, line.whole(), line.size + 1, alone=True)


def _groups(pieces: Iterable[bytes], envelope: Envelope, threshold: int) -> Iterator[tuple[list[bytes], bool]]:
    """Entries that fit together, and whether they are the last ones."""
    around = len(envelope.before) + len(envelope.after)
    group: list[bytes] = []
    size = around - 1  # every entry counts with a comma, and the first one has none
    for piece in pieces:
        if group and size + len(piece) + 1 > threshold:
            yield group, False
            group, size = [], around - 1
        group.append(piece)
        size += len(piece) + 1
    if group:
        yield group, True


@dataclass(frozen=True, slots=True)
class BundlePiece:
    """A part of a Bundle as it came back: its envelope, and its entries as one text, with their number."""

    envelope: Envelope
    inside: memoryview = field(repr=False)
    entries: int


def piece_of(text: bytes, entries: int) -> BundlePiece:
    """Return a Bundle that was read before, and has so many entries, as a piece."""
    envelope, _ = open_envelope(text)
    return BundlePiece(envelope, memoryview(text)[len(envelope.before) : len(text) - len(envelope.after)], entries)


class SplitOutput(Protocol):
    """The destination of a joined line."""

    def write(self, data: bytes | memoryview) -> None:
        """Append a piece of a line."""


class Reassembly:
    """The pieces of one Bundle on their way to ``output``, as they come: memory is one piece."""

    def __init__(self, output: SplitOutput) -> None:
        self._output = output
        self._empty: BundlePiece | None = None
        self._after: bytes | None = None
        self._id: str | None = None
        self._begun = False
        self.ids_differ = False
        """Whether the pieces came back with different Bundle ids, so one input id with several pseudonyms."""

    def add(self, piece: BundlePiece) -> None:
        """Write the next piece."""
        if not self._begun:
            self._begun = True
            self._id = piece.envelope.id
        self.ids_differ |= piece.envelope.id != self._id
        if not piece.entries:
            self._empty = self._empty or piece
            return
        if self._after is None:
            before, self._after = _around(piece.envelope)
            self._output.write(before)
        else:
            self._output.write(b",")
        self._output.write(piece.inside)

    def end(self) -> None:
        """Close the Bundle after the last piece."""
        if self._after is not None:
            self._output.write(self._after)
        elif self._empty is not None:
            before, after = _around(self._empty.envelope)
            for part in (before, self._empty.inside, after):
                self._output.write(part)


def _around(envelope: Envelope) -> tuple[bytes, bytes]:
    """Return what is before and after the entries, without a ``total`` that this type of Bundle must not have."""
    return (envelope.before, envelope.after) if envelope.type in _COUNTED else envelope.without("total")
