"""A Bundle taken apart at the commas between its entries, and put together again, byte for byte.

The text around the entries is the envelope. Nothing is parsed and dumped: ``before + b",".join(pieces) + after`` is the
line (document 3 §1, "Numbers keep their spelling"). Whoever splits a large Bundle gives every part the same envelope,
and with it the same ``id``, ``type`` and ``timestamp`` (document 3 §4, "Split").

How it is cut: msgspec hands over the text of each of the Bundle's own members, and then of each entry; their lengths
lead from key to key, and from comma to comma.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeVar

import msgspec

from tasks.shared.fhir.reading import BLANK, UnusableError, check_utf8, past

T = TypeVar("T")

_KEY: Final = re.compile(rb'[ \t\r\n]*+("[^"\\]*+(?:\\.[^"\\]*+)*+")[ \t\r\n]*+:[ \t\r\n]*+', re.DOTALL)
_MEMBER_END: Final = re.compile(rb"[ \t\r\n]*+[,}]")
_ENTRY_END: Final = re.compile(rb"[ \t\r\n]*+[,\]]")
_BLANK: Final = b" \t\r\n"


class EntryForm(Enum):
    """In which form a Bundle has its ``entry``."""

    ARRAY = "array"
    NULL = "null"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, repr=False)
class Envelope:
    """A Bundle's text without its entries; its ``repr`` shows neither the text nor the id.

    ``before`` ends with the ``[`` of ``entry``; ``after`` begins behind the last entry. A Bundle without ``entry``, or
    with ``null`` there, is cut where the entries would stand, and ``close`` adds the characters they need.
    """

    before: bytes
    after: bytes
    resource_type: str | None
    id: str | None
    type: str | None
    form: EntryForm = EntryForm.ARRAY

    def close(self, pieces: Iterable[bytes]) -> bytes:
        """Return the Bundle with these entries, each the text of a JSON object, white space around it or not."""
        inside = b",".join(pieces)
        if self.form is EntryForm.ARRAY or not inside:
            return b"".join((self.before, inside, self.after))
        if self.form is EntryForm.NULL:
            return b"".join((self.before.removesuffix(b"null"), b"[", inside, b"]", self.after))
        return b"".join((self.before, b',"entry":[', inside, b"]", self.after))

    def without(self, name: str) -> tuple[bytes, bytes]:
        """Return what is before and after the entries, without one of the Bundle's members and its comma."""
        text, middle = self.before + self.after, len(self.before)
        end = text.index(b"{") + 1
        for number, (key, value) in enumerate(_members(text).items()):
            begin, end = end, value.start + len(value.text)
            if key != name:
                continue
            if number:
                begin = text.index(b",", begin)
            else:
                begin, end = past(BLANK, text, begin), past(BLANK, text, text.index(b",", end) + 1)
            if end <= middle:
                return text[:begin] + text[end:middle], self.after
            return self.before, text[middle:begin] + text[end:]
        return self.before, self.after

    def __repr__(self) -> str:
        return f"Envelope(resource_type={self.resource_type!r}, type={self.type!r}, form={self.form.value!r})"


def open_bundle(line: bytes, *, where: str | None = None) -> tuple[Envelope, list[bytes]]:
    """Cut a Bundle, of whatever type, into its envelope and its entries.

    The pieces are what stands between the commas, white space included, so that
    ``before + b",".join(pieces) + after == line``; each is one JSON object. Of the entries nothing else is looked at.

    Raises ``DataError``, which quotes nothing of the line and has ``where`` (``file:line``) as its context:
    ``not-json``, ``not-utf8``, ``json-too-deep``, ``not-a-bundle`` (something else, or entries that are no objects),
    ``repeated-key`` (one of the Bundle's own keys stands twice: what it holds is ambiguous).
    """
    try:
        return cut_bundle(line)
    except UnusableError as refused:
        raise refused.error(where) from None


def cut_bundle(line: bytes) -> tuple[Envelope, list[bytes]]:
    """Cut a Bundle as ``open_bundle`` does. Raises ``UnusableError`` instead, for other readers."""
    envelope, entries = open_envelope(line)
    return envelope, pieces_of(entries) if entries else []


def open_envelope(line: bytes) -> tuple[Envelope, bytes]:
    """Return the envelope of a Bundle, and its entries as a JSON list that is not looked into; blank without one.

    Raises ``UnusableError``.
    """
    _check_utf8(line)
    members = _members(line)
    kind, identifier, type_ = (
        _decode(_text, members[name].text) if name in members else None for name in ("resourceType", "id", "type")
    )
    if kind != "Bundle":
        raise UnusableError("not-a-bundle", "this is not a Bundle")
    if "entry" not in members:
        start = end = len(line.rstrip(_BLANK)[:-1].rstrip(_BLANK))  # before the closing brace
        form, entries = EntryForm.MISSING, b""
    elif members["entry"].text == b"null":
        start = end = members["entry"].start + len(b"null")
        form, entries = EntryForm.NULL, b""
    else:
        start, entries = members["entry"]
        start, end, form = start + 1, start + len(entries) - 1, EntryForm.ARRAY
        if past(BLANK, entries, 1) == len(entries) - 1:
            end = start  # white space where entries would stand is no entry
    return Envelope(line[:start], line[end:], kind, identifier, type_, form), entries


def pieces_of(entries: bytes) -> list[bytes]:
    """Cut a JSON list of objects at its commas. Raises ``UnusableError``."""
    pieces: list[bytes] = []
    at = 1
    for raw in _decode(_raws, entries):
        text = bytes(raw)
        value = at if entries.startswith(b"{", at) else past(BLANK, entries, at)
        if not text.startswith(b"{"):
            raise UnusableError("not-a-bundle", "an entry of the Bundle is no JSON object")
        end = value + len(text)
        stop = past(_ENTRY_END, entries, end) - 1
        pieces.append(text if value == at and stop == end else entries[at:stop])
        at = stop + 1
    return pieces


def check_entries(entries: bytes | memoryview) -> int:
    """Return how many objects are in a JSON list. Raises what msgspec raises for anything else."""
    return len(_objects.decode(entries))


_REPEATED = "the Bundle has a key twice, so what it holds is ambiguous"


class _Object(msgspec.Struct):
    """Any JSON object."""


_objects = msgspec.json.Decoder(list[_Object])
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_values = msgspec.json.Decoder(dict[str, msgspec.Raw])
_string = msgspec.json.Decoder(str)
_text = msgspec.json.Decoder(str | None)


class _Member(NamedTuple):
    """The value of one of an object's own keys: where it starts, and its text."""

    start: int
    text: bytes


def _decode(decoder: msgspec.json.Decoder[T], text: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError:
        raise UnusableError(
            "not-a-bundle", "this is not a Bundle, or its keys hold values that FHIR does not allow"
        ) from None
    except msgspec.DecodeError:
        raise UnusableError("not-json") from None
    except RecursionError:
        raise UnusableError("json-too-deep") from None


def _check_utf8(text: bytes) -> None:
    try:
        check_utf8(text)
    except UnicodeDecodeError:
        raise UnusableError("not-utf8") from None


def _members(text: bytes) -> dict[str, _Member]:
    """Return the keys of a JSON object with their unparsed values.

    Readers keep the last of several values under one key. So the text is walked along the values they kept: one that is
    not there, or does not end where a value ends, had another before it. Raises ``repeated-key``.
    """
    values = _decode(_values, text)
    members: dict[str, _Member] = {}
    at = text.index(b"{") + 1
    while (key := _KEY.match(text, at)) is not None:
        name = _decode(_string, key[1])
        value = bytes(values[name])
        end = _MEMBER_END.match(text, key.end() + len(value))
        if name in members or end is None or not text.startswith(value, key.end()):
            raise UnusableError("repeated-key", _REPEATED)
        members[name] = _Member(key.end(), value)
        at = end.end()
    return members
