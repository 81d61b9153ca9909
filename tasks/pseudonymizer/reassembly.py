"""A Bundle that was split becomes one line again (document 3 §4, "Reassembly").

The entries in their order, in the envelope of the first answer; of a Bundle whose first chunks lost all their entries
to a ``remove`` rule, in that of the first answer that has some. ``total`` stays only where FHIR allows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Protocol

import msgspec

from tasks.pseudonymizer.deidentification import Piece

_COUNTED: Final = frozenset({"searchset", "history"})
_TOTAL: Final = re.compile(rb'(?P<comma>,\s*)?"total"\s*:\s*[^\s,\]}]+(?(comma)|\s*,\s*)')
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Output(Protocol):
    """Where the line goes."""

    def write(self, data: bytes | memoryview) -> None:
        """Append a piece of a line."""


class Reassembly:
    """The pieces of one Bundle on their way to ``output``, as they come: memory is one piece."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._empty: Piece | None = None
        self._after: bytes | None = None
        self._id: str | None = None
        self._begun = False
        self.ids_differ = False
        """Whether the pieces came back with different Bundle ids, so one input id with several pseudonyms."""

    def add(self, piece: Piece) -> None:
        """The next piece."""
        if not self._begun:
            self._begun = True
            self._id = piece.id
        self.ids_differ |= piece.id != self._id
        if not piece.entries:
            self._empty = self._empty or piece
            return
        if self._after is None:
            before, self._after = _envelope(piece)
            self._output.write(before)
        else:
            self._output.write(b",")
        self._output.write(piece.inside)

    def end(self) -> None:
        """All pieces were added: close the Bundle."""
        if self._after is not None:
            self._output.write(self._after)
        elif self._empty is not None:
            before, after = _envelope(self._empty)
            for part in (before, self._empty.inside, after):
                self._output.write(part)


def _envelope(piece: Piece) -> tuple[bytes, bytes]:
    """The envelope, without a ``total`` that this type of Bundle must not have."""
    if not piece.has_total or piece.type in _COUNTED:
        return piece.before, piece.after
    text = piece.before + piece.after
    kept = {name: bytes(value) for name, value in _members.decode(text).items() if name != "total"}
    for start, end in _candidates(text, len(piece.before)):
        shorter = text[:start] + text[end:]
        # A "total" deeper inside looks the same; only without the Bundle's own one are these the members.
        if _read(shorter) == kept:
            cut = len(piece.before) - (end - start if end <= len(piece.before) else 0)
            return shorter[:cut], shorter[cut:]
    return piece.before, piece.after


def _candidates(text: bytes, middle: int) -> Iterator[tuple[int, int]]:
    """Where a ``total`` with its comma may stand, on one side of the entries."""
    for match in _TOTAL.finditer(text):
        if match.end() <= middle or match.start() >= middle:
            yield match.span()


def _read(text: bytes) -> dict[str, bytes] | None:
    try:
        return {name: bytes(value) for name, value in _members.decode(text).items()}
    except msgspec.DecodeError:
        return None
