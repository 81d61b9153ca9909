"""A walk over JSON text that is not in memory, to find where things are in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from tasks.shared.errors import DataError
from tasks.shared.fhir.reading import BLANK, past
from tasks.shared.files.spool import Spool

_SCALAR: Final = re.compile(rb"[^ \t\r\n,\]}]*+")
IN_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""To the closing quote, or to the end of the piece, or to a backslash that is the piece's last byte."""
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_DEEP: Final = 6
"""Brackets within brackets that are passed at once; a resource rarely has more."""


def _closed(depth: int) -> bytes:
    """Text with strings and closed brackets in it, so many within each other."""
    inside = rb"(?:%b|[{\[]%b[}\]])" % (_STRING, _closed(depth - 1)) if depth else _STRING
    return rb'[^{}\[\]"]*+(?:%b[^{}\[\]"]*+)*+' % inside


BRACKET: Final = re.compile(rb'%b([{}\[\]"]|\Z)' % _closed(_DEEP), re.DOTALL)
"""To the bracket that closes those around, to one that does not close here or has too many within it, to a string that
does not end in this piece, or to the piece's end."""
_NAME_LIMIT: Final = 256
"""Bytes of a key or a ``resourceType`` that are looked at; FHIR has none as long as this."""
NOTHING: Final = -1
QUOTE, OBJECT, ARRAY, ARRAY_END, OBJECT_END = b'"{[]}'
_name = msgspec.json.Decoder(str)


class Walk:
    """A walk over spooled JSON text, with ``piece`` bytes of it in memory. Raises ``DataError`` ``not-json``.

    Only what is needed to find the entries is looked at; that the text is JSON, others make sure.
    """

    def __init__(self, spool: Spool, start: int, end: int, where: str, piece: int) -> None:
        self._spool = spool
        self._end = end
        self._where = where
        self._size = piece
        self._piece = b""
        self._base = start
        self._at = 0

    @property
    def position(self) -> int:
        """Where the walk is, as an offset in the spool."""
        return self._base + self._at

    def peek(self) -> int:
        """The next byte that is not blank, not passed yet; -1 at the end."""
        while True:
            self._at = past(BLANK, self._piece, self._at)
            if self._at < len(self._piece):
                return self._piece[self._at]
            if not self._more():
                return NOTHING

    def take(self, expected: bytes) -> int:
        """Pass the next byte, one of those expected."""
        byte = self.peek()
        if byte == NOTHING or byte not in expected:
            raise self._broken()
        self._at += 1
        return byte

    def members(self) -> Iterator[str]:
        """The keys of the object that begins here; before the next one is asked for, the value must be passed."""
        self.take(b"{")
        if self.peek() == OBJECT_END:
            return
        more = True
        while more:
            if self.peek() != QUOTE:
                raise self._broken()
            key = self.name()
            self.take(b":")
            yield key
            more = self.take(b",}") != OBJECT_END

    def name(self) -> str:
        """Pass the string that begins here and return it; a very long one is cut off."""
        start = self.position
        self._string()
        if self.position - start > _NAME_LIMIT:
            return ""
        try:
            return _name.decode(self._spool.read(start, self.position))
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise self._broken() from None

    def value(self) -> None:
        """Pass the value that begins here, whatever it is."""
        byte = self.peek()
        if byte == QUOTE:
            self._string()
        elif byte in {OBJECT, ARRAY}:
            self.brackets()
        else:
            self._scalar()

    def expect_object(self) -> None:
        """Raise unless an object begins here."""
        byte = self.peek()
        if byte == NOTHING or byte in b",]}":
            raise self._broken()
        if byte != OBJECT:
            raise DataError("not-a-bundle", "an entry of the Bundle is no JSON object", context=self._where)

    def brackets(self) -> None:
        """Pass the object or array that begins here."""
        self._at += 1  # the bracket that begins here: what is closed before its own end is inside
        depth = 1
        while True:
            for match in BRACKET.finditer(self._piece, self._at):
                bracket = match[1]
                if bracket == b"{" or bracket == b"[":
                    depth += 1
                elif bracket == b"}" or bracket == b"]":
                    depth -= 1
                    if not depth:
                        self._at = match.end()
                        return
                else:
                    self._at = match.end() - len(bracket)
                    break
            if self._at < len(self._piece):
                self._string()
            elif not self._more():
                raise self._broken()

    def _string(self) -> None:
        self._at += 1
        while True:
            self._at = past(IN_STRING, self._piece, self._at)
            rest = len(self._piece) - self._at
            if rest and self._piece[self._at] == QUOTE:
                self._at += 1
                return
            if not self._more():
                raise self._broken()
            self._at = rest  # 1 when a backslash was the last byte: the byte that it escapes is passed

    def _scalar(self) -> None:
        begin = self.position
        while (at := past(_SCALAR, self._piece, self._at)) == len(self._piece):
            self._at = at
            if not self._more():
                raise self._broken()
        self._at = at
        if self.position == begin:
            raise self._broken()

    def _more(self) -> bool:
        self._base += len(self._piece)
        self._at = 0
        self._piece = self._spool.read(self._base, min(self._base + self._size, self._end))
        return bool(self._piece)

    def _broken(self) -> DataError:
        return DataError("not-json", "the line is not valid JSON, or it breaks off", context=self._where)
