"""Lines too long to hold: put on disk, and read from there entry by entry.

A patient with a long stay is one Bundle on one line, hundreds of megabytes at times, and memory must not grow with it
(``architecture.md`` rule 5). Such a line goes into a nameless temporary file, and one walk over its text finds its
entries: strings are passed over, brackets counted. msgspec checks the entries that were found, so what comes out is as
good as what ``open_bundle`` gives for a line that fits.
"""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Self

from tasks.shared.errors import DataError
from tasks.shared.fhir.bundle import UNWRAPPED
from tasks.shared.fhir.envelope import Envelope, check_entries, envelope_around, open_bundle
from tasks.shared.fhir.reading import LARGEST_RESOURCE, too_large
from tasks.shared.fhir.walk import ARRAY, ARRAY_END, NOTHING, QUOTE, Walk
from tasks.shared.files.lines import Tee, open_content, texts
from tasks.shared.files.spool import Spool, spooled

_PIECE: Final = 1 << 18
"""Bytes per piece of a line on disk."""
_BATCH: Final = 1 << 13
"""Ends of entries kept in memory at once."""
_WIDTH: Final = array("Q").itemsize


def lines_with_long(
    path: Path,
    *,
    limit: int,
    spool: Path,
    largest: int = LARGEST_RESOURCE,
    stored: Tee | None = None,
    inside: Tee | None = None,
) -> Generator[tuple[int, bytes | LongLine], None, None]:
    """Like ``numbered_lines``, but a line of more than ``limit`` bytes comes as a ``LongLine``.

    ``stored`` sees the file's bytes as they pass, ``inside`` those of its content (``open_content``).

    That one is kept in a nameless temporary file in the directory ``spool``, which is made if need be, and is valid
    until the next line is asked for. ``largest`` is the limit of a resource in it, in bytes. Memory: one piece, and a
    line of ``limit`` bytes.

    Raises what ``numbered_lines`` raises, and ``StorageError`` (``disk-full`` …) when a line cannot be put there.
    """
    limit = min(limit, largest)
    most = limit + len(codecs.BOM_UTF8) + len(b"\r")  # one longer than this is too long whatever is taken off
    with open_content(path, stored=stored, content=inside) as content:
        for number, text in enumerate(texts(content, most, spool), 1):
            if isinstance(text, bytes):
                line = text.removeprefix(codecs.BOM_UTF8) if number == 1 else text
                if line.endswith(b"\r"):
                    line = line[:-1]
                if len(line) <= limit:
                    if line and not line.isspace():
                        yield number, line
                    continue
            with spooled(text, spool) as kept:
                long = LongLine(kept, path.name, number, largest=largest)
                if not long.blank:
                    yield number, long


class LongLine:
    """A line that is on disk instead of in memory. Leaving its context removes it.

    ``file`` and ``number``, from 1, are what errors name; ``piece`` is how many bytes are looked at at once. A resource
    of more than ``largest`` bytes is never read into memory: ``DataError`` ``resource-too-large``.
    """

    def __init__(
        self, spool: Spool, file: str, number: int, *, piece: int = _PIECE, largest: int = LARGEST_RESOURCE
    ) -> None:
        self.number = number
        self._spool = spool
        self._piece = piece
        self._largest = largest
        self._start = len(codecs.BOM_UTF8) if number == 1 and spool.read(0, 3) == codecs.BOM_UTF8 else 0
        self._end = spool.size - (spool.read(spool.size - 1, spool.size) == b"\r")
        self.size = self._end - self._start
        """Bytes of the line, without its line end."""
        self._where = f"{file}:{number}"

    @property
    def blank(self) -> bool:
        """Whether there is nothing but white space."""
        return self._walk().peek() == NOTHING

    @cached_property
    def resource_type(self) -> str | None:
        """Its ``resourceType``; ``None`` when it has none, or when the text breaks off or is no JSON before it."""
        walk = self._walk()
        try:
            for key in walk.members():
                if key == "resourceType":
                    return (walk.name() or None) if walk.peek() == QUOTE else None
                walk.value()
        except DataError:
            return None
        return None

    def envelope(self) -> Envelope:
        """The Bundle without its entries.

        The whole line is looked at: afterwards ``entries`` finds nothing wrong. Raises the errors of ``open_bundle``,
        with ``file:line``.
        """
        return self._cut.envelope

    def entries(self) -> Iterator[bytes]:
        """The Bundle's entries, one at a time, cut as ``open_bundle`` cuts them. Raises its errors, at the start."""
        start = self._cut.start
        for end in self._ends():
            yield self._spool.read(start, end)
            start = end + 1

    def parts(self, most: int) -> Iterator[bytes]:
        """The same entries, as JSON lists of at most ``most`` bytes, or of one entry that is larger."""
        start = self._cut.start
        last = start - 1
        for end in self._ends():
            if end - start > most and last > start:
                yield b"[%b]" % self._spool.read(start, last)
                start = last + 1
            last = end
        if last > start:
            yield b"[%b]" % self._spool.read(start, last)

    def bundles(self, most: int) -> Iterator[bytes]:
        """The line as small Bundles of about ``most`` bytes, if it is one whose entries are resources of their own;
        else the line as it is."""
        if self.resource_type != "Bundle" or self.envelope().type not in UNWRAPPED:
            yield self.whole()
            return
        for part in self.parts(most):
            yield b'{"resourceType":"Bundle","type":"transaction","entry":%b}' % part

    def whole(self) -> bytes:
        """The line as it is, in memory: for what is no Bundle and must be taken as a whole.

        Raises ``DataError`` ``resource-too-large``.
        """
        self._limit(self.size)
        return self._spool.read(self._start, self._end)

    def close(self) -> None:
        """Remove it. Safe to call twice."""
        self._spool.close()

    def _ends(self) -> Iterator[int]:
        """Where each entry ends; the next one begins behind the comma."""
        cut = self._cut
        for first in range(0, cut.count, _BATCH):
            at = cut.ends_at + first * _WIDTH
            yield from array("Q", self._spool.read(at, at + min(_BATCH, cut.count - first) * _WIDTH))

    @cached_property
    def _cut(self) -> _Cut:
        walk = self._walk()
        for key in walk.members():
            if key == "entry" and walk.peek() == ARRAY:
                return self._cut_here(walk)
            walk.value()
        envelope, _ = open_bundle(self.whole(), where=self._where)  # a rare thing: long, and not for its entries
        return _Cut(envelope, 0, 0, 0)

    def _cut_here(self, walk: Walk) -> _Cut:
        walk.take(b"[")
        start = end = first = begin = walk.position
        ends_at = self._spool.size
        ends = array("Q")
        count = 0
        more = walk.peek() != ARRAY_END
        while more:
            try:
                walk.expect_object()
                walk.brackets()
                more = walk.take(b",]") != ARRAY_END
            except DataError:
                self._check(first, ends, count)  # what is wrong before comes first
                raise
            end = walk.position - 1
            self._limit(end - begin)
            begin = end + 1
            ends.append(end)
            count += 1
            if end - first >= self._piece or len(ends) == _BATCH or not more:
                self._check(first, ends, count)
                self._spool.write(memoryview(ends).cast("B"))
                ends = array("Q")
                first = end + 1
        self._limit(start - self._start + self._end - end)
        before, after = self._spool.read(self._start, start), self._spool.read(end, self._end)
        return _Cut(envelope_around(before, after, where=self._where), start, ends_at, count)

    def _limit(self, size: int) -> None:
        """Raise when so many bytes cannot be one resource, or the envelope of a Bundle."""
        if size > self._largest:
            raise too_large(self._where, self._largest)

    def _check(self, start: int, ends: array[int], count: int) -> None:
        """Raise unless the entries from ``start`` on are JSON objects, the ``count``-th of the Bundle the last one."""
        if not ends:
            return
        try:
            check_entries(self._spool.read(start, ends[-1]), where=self._where)
        except DataError:
            for number, end in enumerate(ends, count - len(ends)):
                check_entries(self._spool.read(start, end), where=f"{self._where} entry {number}")
                start = end + 1
            raise

    def _walk(self) -> Walk:
        return Walk(self._spool, self._start, self._end, self._where, self._piece)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where the entries are: the first begins at ``start``; where each ends stands in the spool, at ``ends_at``."""

    envelope: Envelope
    start: int
    ends_at: int
    count: int
