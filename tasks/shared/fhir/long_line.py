"""Lines too long to hold: put on disk, and read from there entry by entry.

A patient with a long stay is one Bundle on one line, hundreds of megabytes at times, and memory must not grow with it
(``architecture.md`` rule 5). Such a line goes into a nameless temporary file, and ``cutter.py`` finds the parts of its
entries. msgspec checks each part, so what comes out is as good as what ``open_bundle`` gives for a line that fits.
"""

from __future__ import annotations

import codecs
import json
import re
from array import array
from collections.abc import Generator, Iterator
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple, Self

from tasks.shared.errors import DataError
from tasks.shared.fhir.bundle import UNWRAPPED
from tasks.shared.fhir.cutter import Cutter
from tasks.shared.fhir.envelope import Envelope, check_entries, open_bundle, pieces_of
from tasks.shared.fhir.reading import LARGEST_RESOURCE, TYPE, UNREADABLE, UnusableError, kind_of, too_large, why
from tasks.shared.files.lines import Tee, open_content, texts
from tasks.shared.files.out_file import Spool, spooled

_PIECE: Final = 1 << 18
"""Bytes per piece of a line on disk."""
_AHEAD: Final = 256
_SEARCHED: Final = 1 << 24
"""Bytes in which a bad entry is looked for, to name it."""
_COMMA: Final = re.compile(r"\s*[\[,]\s*+(?!\])")
_parse: Final = json.JSONDecoder().raw_decode
_BEGINS: Final = re.compile(rb'\s*\{\s*"resourceType"\s*:\s*"([A-Z][A-Za-z]{1,63})"')


def lines_with_long(
    path: Path,
    *,
    limit: int,
    spool: Path,
    largest: int = LARGEST_RESOURCE,
    stored: Tee | None = None,
    inside: Tee | None = None,
) -> Generator[tuple[int, bytes | LongLine], None, None]:
    """Yield the lines of an NDJSON file, plain or zstd, without their line ends, with their numbers, from 1.

    Blank lines are counted and skipped, a byte order mark at the start is dropped, the last line needs no line feed.
    Nothing is parsed: an import checked the lines when they came in. ``stored`` sees the file's bytes as they pass,
    ``inside`` those of its content (``open_content``).

    A line of more than ``limit`` bytes comes as a ``LongLine``. That one is kept in a nameless temporary file in the
    directory ``spool``, which is made if need be, and is valid until the next line is asked for. ``largest`` is the
    limit of a resource in it, in bytes. Memory: one piece, and a line of ``limit`` bytes.

    Raises ``DataError`` ``zst-truncated`` or ``zst-corrupt``, and ``StorageError`` (``disk-full`` … when a line cannot
    be put there).
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


class _Cut(NamedTuple):
    """Result of one pass over a line: its type, the Bundle without its entries, and where the parts of the entries
    begin and end, one after the other. Without an ``entry`` that is a list, there is neither a Bundle nor a part."""

    type: str | None
    bundle: bytes | None
    parts: array[int]


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
        """Return whether the line is only white space."""
        return all(map(bytes.isspace, self._pieces(self._start)))

    @cached_property
    def resource_type(self) -> str | None:
        """Return the ``resourceType``; ``None`` if there is none, or if the text is incomplete or not JSON."""
        begins = _BEGINS.match(self._spool.read(self._start, min(self._start + _AHEAD, self._end)))
        if begins is not None:
            return begins[1].decode()
        try:
            return self._cut.type
        except DataError:
            return None

    def envelope(self) -> Envelope:
        """Return the Bundle without its entries.

        The whole line is looked at: afterwards ``entries`` finds nothing wrong. Raises the errors of ``open_bundle``,
        with ``file:line``.
        """
        return self._opened()[0]

    def entries(self) -> Iterator[bytes]:
        """Yield the Bundle's entries, one at a time, cut as ``open_bundle`` cuts them. Raises its errors, at the
        start."""
        yield from self._opened()[1]
        parts = self._cut.parts
        for start, end in zip(parts[::2], parts[1::2], strict=True):
            yield from pieces_of(b"[%b]" % self._spool.read(start, end))

    def parts(self, most: int) -> Iterator[bytes]:
        """Yield the same entries, as JSON lists of at most ``most`` bytes, or of one entry that is larger."""
        part: list[bytes] = []
        size = 0
        for entry in self.entries():
            if part and size + len(entry) > most:
                yield b"[%b]" % b",".join(part)
                part, size = [], 0
            part.append(entry)
            size += len(entry) + 1
        if part:
            yield b"[%b]" % b",".join(part)

    def bundles(self, most: int) -> Iterator[bytes]:
        """Yield the line as small Bundles of about ``most`` bytes, if it is one whose entries are resources of their
        own; else the line as it is."""
        if self.resource_type != "Bundle" or self.envelope().type not in UNWRAPPED:
            yield self.whole()
            return
        for part in self.parts(most):
            yield b'{"resourceType":"Bundle","type":"transaction","entry":%b}' % part

    def whole(self) -> bytes:
        """Return the line unchanged, in memory: for lines that are not Bundles.

        Raises ``DataError`` ``resource-too-large``.
        """
        if self.size > self._largest:
            raise too_large(self._where, self._largest)
        return self._spool.read(self._start, self._end)

    def close(self) -> None:
        """Remove it. Safe to call twice."""
        self._spool.close()

    def _opened(self) -> tuple[Envelope, list[bytes]]:
        bundle = self._cut.bundle  # a rare thing: long, and not for entries that were found
        return open_bundle(self.whole() if bundle is None else bundle, where=self._where)

    def _pieces(self, start: int) -> Iterator[bytes]:
        for at in range(start, self._end, self._piece):
            yield self._spool.read(at, min(at + self._piece, self._end))

    @cached_property
    def _cut(self) -> _Cut:
        parts = array("Q")
        entries = 0

        def check(part: memoryview) -> int:
            nonlocal entries
            count = check_entries(part)
            if count:
                start = self._start + cutter.at
                parts.extend((start, start + len(part) - len("[]")))
                entries += count
            return count

        cutter = Cutter(check, largest=self._largest, where=self._where, part=self._piece)
        decode = codecs.getincrementaldecoder("utf-8")().decode
        try:
            for piece in self._pieces(self._start):
                decode(piece)
                cutter.feed(piece)
            decode(b"", final=True)
            text = cutter.finish()
        except UNREADABLE as error:
            where = self._where
            if cutter.head:
                where = self._place(parts[-1] if parts else self._start + cutter.head - 1, entries)
            raise UnusableError(why(error, "not-a-bundle")).error(where) from None
        try:
            kind = kind_of(text)
        except UnusableError:
            kind = ""
        return _Cut(kind if TYPE.fullmatch(kind) else None, bytes(text) if cutter.head else None, parts)

    def _place(self, start: int, number: int) -> str:
        """Return where an error is: in which entry, if it is in one. At ``start`` the entry with this number begins."""
        text = self._spool.read(start, min(start + _SEARCHED, self._end)).decode(errors="replace")
        comma = _COMMA.match(text)
        while comma is not None:
            try:
                entry, end = _parse(text, comma.end())
            except (ValueError, RecursionError):
                entry = None
            if not isinstance(entry, dict):
                return f"{self._where} entry {number}"
            comma = _COMMA.match(text, end)
            number += 1
        return self._where

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
