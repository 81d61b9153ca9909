"""A Bundle taken apart into its entries and the members around them, and put together again.

Each value keeps the bytes it came in: nothing is parsed and dumped (document 3 §1, "Numbers keep their spelling").
Whoever splits a large Bundle gives every part the same envelope, and with it the same ``id``, ``type`` and
``timestamp`` (document 3 §4, "Split").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
from msgspec import Raw

from tasks.shared.fhir.reading import UNREADABLE, UnusableError, check_utf8, why

T = TypeVar("T")

Members = dict[str, Raw]
"""The top level of a JSON object, each value as it is written."""

_EMPTY: Final = Raw(b"[]")
_NULL: Final = Raw(b"null")


@dataclass(frozen=True, slots=True, repr=False)
class Envelope:
    """A Bundle without its entries: its ``members``, in which ``entry`` is an empty list."""

    members: Members

    @property
    def id(self) -> str | None:
        """Return the id of the Bundle."""
        return _decode(_text, self.members.get("id", _NULL))

    @property
    def type(self) -> str | None:
        """Return the type of the Bundle."""
        return _decode(_text, self.members.get("type", _NULL))

    def around(self) -> tuple[bytes, bytes]:
        """Return the text before the entries, with the bracket, and that behind them."""
        before: Members = {}
        after = dict(self.members)
        for name in self.members:
            value = after.pop(name)
            if name == "entry":
                break
            before[name] = value
        head, tail = _encode(before), _encode(after)
        comma = b"," if before else b""
        return b'%b%b"entry":[' % (head[:-1], comma), b"]" + (b"," + tail[1:] if after else b"}")

    def close(self, pieces: Iterable[bytes]) -> bytes:
        """Return the Bundle with these entries, each the text of a JSON object."""
        before, after = self.around()
        return b"".join((before, b",".join(pieces), after))

    def without(self, name: str) -> Envelope:
        """Return the envelope without one of the Bundle's members."""
        return Envelope({key: value for key, value in self.members.items() if key != name})


def open_bundle(line: bytes, *, where: str | None = None) -> tuple[Envelope, list[bytes]]:
    """Take a Bundle, of whatever type, apart into its envelope and its entries.

    Raises ``DataError``, which quotes nothing of the line and has ``where`` (``file:line``) as its context:
    ``not-json``, ``not-utf8``, ``json-too-deep``, ``not-a-bundle`` (something else, or entries that are no objects).
    """
    try:
        envelope, entries = open_envelope(line)
        return envelope, pieces_of(entries)
    except UnusableError as refused:
        raise refused.error(where) from None


def open_envelope(line: bytes) -> tuple[Envelope, bytes]:
    """Return the envelope of a Bundle, and its entries as a JSON list that is not looked into.

    Raises ``UnusableError``.
    """
    try:
        check_utf8(line)
    except UnicodeDecodeError:
        raise UnusableError("not-utf8") from None
    members = _decode(_members, line)
    if _decode(_text, members.get("resourceType", _NULL)) != "Bundle":
        raise UnusableError("not-a-bundle", "this is not a Bundle")
    entries = members.get("entry", _NULL)
    members["entry"] = _EMPTY
    return Envelope(members), bytes(_EMPTY if entries == _NULL else entries)


def pieces_of(entries: bytes) -> list[bytes]:
    """Return the texts of the objects in a JSON list. Raises ``UnusableError``."""
    pieces = [bytes(raw) for raw in _decode(_raws, entries)]
    if not all(piece.startswith(b"{") for piece in pieces):
        raise UnusableError("not-a-bundle", "an entry of the Bundle is no JSON object")
    return pieces


def check_entries(entries: bytes | memoryview) -> int:
    """Return how many objects are in a JSON list. Raises what msgspec raises for anything else."""
    return len(_objects.decode(entries))


class _Object(msgspec.Struct):
    """Any JSON object."""


_objects: Final = msgspec.json.Decoder(list[_Object])
_raws: Final = msgspec.json.Decoder(list[Raw])
_members: Final = msgspec.json.Decoder(Members)
_text: Final[msgspec.json.Decoder[str | None]] = msgspec.json.Decoder(str | None)
_encode: Final = msgspec.json.Encoder().encode


def _decode(decoder: msgspec.json.Decoder[T], text: bytes | Raw) -> T:
    try:
        return decoder.decode(text)
    except UNREADABLE as error:
        raise UnusableError(why(error, "not-a-bundle")) from None
