"""One line of JSON that arrives in pieces: the entries of its Bundle are handed out in parts, the rest is kept.

A patient with a long stay is one Bundle on one line, hundreds of megabytes at times, and a packed line can be far
larger than its file. So a line is never kept as a whole: what is in memory is the Bundle without its entries, and a
few entries, or a single one of at most ``limits.max_resource_mb`` (document 3 §1).

Entries of one Bundle mostly begin alike, so the text is cut where the last one seems to begin. Whoever takes a part
parses it, and it is JSON only if the cut was right. Elsewhere strings are passed over and brackets counted, which takes
ten times as long.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from tasks.shared.fhir.reading import BLANK, RESOURCE_TYPE, past, too_large

_IN_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""To the closing quote, or to the end of the piece, or to a backslash that is the piece's last byte."""
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_DEEP: Final = 6
"""Brackets within brackets that are passed at once; a resource rarely has more."""


def _closed(depth: int) -> bytes:
    """Text with strings and closed brackets in it, so many within each other."""
    inside = rb"(?:%b|[{\[]%b[}\]])" % (_STRING, _closed(depth - 1)) if depth else _STRING
    return rb'[^{}\[\]"]*+(?:%b[^{}\[\]"]*+)*+' % inside


_BRACKET: Final = re.compile(rb'%b([{}\[\]"]|\Z)' % _closed(_DEEP), re.DOTALL)
"""To the bracket that closes those around, to one that does not close here or has too many within it, to a string that
does not end in this piece, or to the piece's end."""
_OUTSIDE: Final = re.compile(rb'[^{}\[\]"]*+([{}\[\]"]|\Z)')
_BETWEEN: Final = re.compile(rb'[^{}\[\]",]*+([{}\[\]",]|\Z)')
_ENTRY: Final = re.compile(rb'"entry"[ \t\r\n]*+:[ \t\r\n]*+\[')
_TYPE: Final = re.compile(rb'"resourceType"[ \t\r\n]*+:[ \t\r\n]*+"Bundle"')
_DEEPEST: Final = 10_000
"""Brackets within brackets, more than any parser takes."""
_FIRST_KEY: Final = re.compile(rb'\[(\{"[^"\\]{1,40}")')
_PART: Final = 1 << 18
"""Bytes of entries that are handed out together."""
_MOST: Final = 1 << 22
"""Bytes of entries in which the beginning of the last one is looked for, before brackets are counted."""
_QUOTE: Final = ord('"')
_OPEN: Final = ord("[")
_CLOSE: Final = ord("]")
_COMMA: Final = ord(",")


class Cutter:
    """Cuts one line. ``feed`` it pieces, then ``finish``.

    ``take`` gets each part of the entries, a JSON list that is valid during the call alone, and returns how many there
    are in it. It raises ``msgspec.DecodeError``, and counts nothing, where it is no JSON list. ``largest`` is the limit
    of a resource in bytes, ``where`` (``file:line``) what the error names, ``part`` how many bytes of entries are
    handed out together, at least.

    Raises ``DataError`` ``resource-too-large``, before much more than ``largest`` bytes are in memory, and
    ``msgspec.DecodeError`` for what is no JSON, and ``RecursionError`` for what is too deep, as far as noticed here.
    """

    def __init__(self, take: Callable[[memoryview], int], *, largest: int, where: str, part: int | None = None) -> None:
        self.size = 0
        """Bytes of the line so far."""
        self.head = 0
        """Bytes before the entries that were cut out, with the bracket; 0 where there are none."""
        self._part = part or _PART
        self._take = take
        self._largest = largest
        self._where = where
        self._text = bytearray()
        self._at = 0
        self._depth = 0
        self._in_string = False
        self._string = 0
        self._inside = False
        self._before = b""
        self._comma = 0
        self._next = b""
        self._enough = self._part
        self._handed_out = False

    @property
    def at(self) -> int:
        """Return the offset in the line of the first entry of the part that is handed out."""
        return self.size - len(self._text) + 1

    def feed(self, piece: bytes | bytearray | memoryview) -> None:
        """Take the next piece."""
        self.size += len(piece)
        self._text += piece
        if not (self._inside and self._depth == 2 and self._at == 1):
            self._scan()
        elif len(self._text) >= self._enough and not self._cut_quickly():
            if self._enough < _MOST:
                self._enough *= 2
            else:
                self._scan()
        if self._full():
            self._scan()
        if self._comma and (self._full() or self._comma >= self._part):
            self._cut_at(self._comma)
        if self._full():
            raise too_large(self._where, self._largest)

    def finish(self) -> bytearray:
        """Return the line without the entries that were handed out: a Bundle without entries, if it was cut."""
        self._scan()
        if self._inside:
            if self._comma:
                self._cut_at(self._comma)
            raise msgspec.DecodeError("the line ends within the entries")
        return self._text

    def _scan(self) -> None:
        while self._at < len(self._text):
            if self._in_string:
                self._at = past(_IN_STRING, self._text, self._at)
                if self._at == len(self._text) or self._text[self._at] != _QUOTE:
                    return  # its end is in a later piece; a backslash at the end of this one is looked at again
                self._at += 1
                self._in_string = False
            elif not self._depth and not self._begins():
                return
            else:
                self._next_sign()

    def _begins(self) -> bool:
        """Return whether the object of the line begins here or has ended; ``False`` for white space only."""
        at = past(BLANK, self._text, self._at)
        if at == len(self._text):
            self._at = at
            return False
        if not self._string and self._text[at] != ord("{"):
            raise msgspec.DecodeError("the line is no object")
        return True

    def _next_sign(self) -> None:
        text, between = self._text, self._inside and self._depth == 2
        pattern = _BETWEEN if between else _OUTSIDE if self._depth < 2 else _BRACKET
        match = pattern.match(text, self._at)
        assert match is not None  # noqa: S101 - each of the patterns matches anything
        sign, self._at = match[1], match.end()
        if sign == b'"':
            self._in_string = True
            if self._depth == 1:
                self._string = self._at - 1
        elif sign == b"," and between:
            self._comma = self._at - 1
        elif sign in (b"{", b"["):
            self._depth += 1
            if self._depth > _DEEPEST:
                raise RecursionError
            if sign == b"[" and self._depth == 2 and not self.head and _ENTRY.fullmatch(text, self._string, self._at):
                self._enter()
        elif sign in (b"}", b"]"):
            self._depth -= 1
            if self._inside and self._depth == 1:
                self._close_bundle()

    def _full(self) -> bool:
        return len(self._before) + len(self._text) > self._largest

    def _enter(self) -> None:
        before = bytes(self._text[: self._at])
        if RESOURCE_TYPE in before and _TYPE.search(before) is None:
            return  # what is no Bundle is one resource, as a List
        self.head, self._inside = self._at, True
        self._before = before
        del self._text[: self._at - 1]
        self._at = 1
        first = _FIRST_KEY.match(self._text)
        self._next = b"}," + first[1] if first is not None else b""

    def _cut_quickly(self) -> bool:
        """Cut before what looks like the beginning of an entry; whether it is one."""
        at = self._text.rfind(self._next) if self._next else -1
        if at < 0:
            return False
        try:
            self._cut_at(at + 1)
        except msgspec.DecodeError:
            self._text[at + 1] = _COMMA
            self._next = b""
            return False
        self._enough = self._part
        return True

    def _cut_at(self, comma: int) -> None:
        """Hand out the entries before this comma; behind it another list begins."""
        self._hand_out(comma)
        self._text[comma] = _OPEN
        del self._text[:comma]
        self._at, self._depth, self._in_string, self._comma = 1, 2, False, 0

    def _close_bundle(self) -> None:
        end = self._at - 1
        self._hand_out(end, last=True)
        self._text[:end] = self._before
        self._at = len(self._before) + 1
        self._before, self._comma, self._inside = b"", 0, False

    def _hand_out(self, end: int, *, last: bool = False) -> None:
        """Hand out the entries before ``end``, where a comma or the bracket after the last one is."""
        self._text[end] = _CLOSE
        with memoryview(self._text) as text, text[: end + 1] as part:
            count = self._take(part)
        if not count and (self._handed_out or not last):
            raise msgspec.DecodeError("a comma without an entry")
        self._handed_out = True
