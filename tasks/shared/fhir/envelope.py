"""A Bundle taken apart at the commas between its entries, and put together again, byte for byte.

The text around the entries is the envelope. Nothing is parsed and dumped: ``before + b",".join(pieces) + after`` is the
line (document 3 §1, "Numbers keep their spelling"). Whoever splits a large Bundle gives every part the same envelope,
and with it the same ``id``, ``type`` and ``timestamp`` (document 3 §4, "Split").

How it is cut: msgspec reads the line once and hands over the text of each entry; their lengths lead from comma to
comma.
What is left, the Bundle without its entries, is short, and its keys are looked at one by one. That is the proof of the
cut, too: accepted is only an envelope which alone is a JSON object whose ``entry`` stands where the entries were taken.
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
_ARRAY_END: Final = re.compile(rb"[ \t\r\n]*+\]")
_ENTRY: Final = re.compile(rb'"entry"[ \t\r\n]*+:[ \t\r\n]*+\[')
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
    has_total: bool
    form: EntryForm = EntryForm.ARRAY

    def close(self, pieces: Iterable[bytes]) -> bytes:
        """The Bundle with these entries, each the text of a JSON object, white space around it or not."""
        inside = b",".join(pieces)
        if self.form is EntryForm.ARRAY or not inside:
            return b"".join((self.before, inside, self.after))
        if self.form is EntryForm.NULL:
            return b"".join((self.before.removesuffix(b"null"), b"[", inside, b"]", self.after))
        return b"".join((self.before, b',"entry":[', inside, b"]", self.after))

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
    _check_utf8(line)
    raws = _decode(_bundle, line).entry
    if raws is None:
        return _without_entries(line), []
    match = _ENTRY.search(line)
    opened = None if match is None else _open_at(line, match.end(), raws)
    if opened is None:
        # One deeper inside stands before the Bundle's own, or the key is written with escapes: the long way.
        opened = _open_at(line, _members(line)["entry"].start + 1, raws)
    assert opened is not None  # noqa: S101 - the second way finds what msgspec read, or has raised
    return opened


def envelope_around(before: bytes, after: bytes, *, where: str | None = None) -> Envelope:
    """The envelope of a Bundle whose entries were cut out elsewhere; ``before`` ends with the ``[`` of ``entry``.

    Raises the errors of ``open_bundle``.
    """
    try:
        _check_utf8(before)
        _check_utf8(after)
        envelope = _fitting(before, after)
    except UnusableError as refused:
        raise refused.error(where) from None
    if envelope is None:
        raise UnusableError("not-a-bundle", "the entries were not cut out of the Bundle's own entry").error(where)
    return envelope


def pieces_of(entries: bytes) -> list[bytes]:
    """Cut a JSON list of objects at its commas. Raises ``UnusableError``."""
    found = _pieces(entries, 1, _decode(_raws, entries))
    assert found is not None  # noqa: S101 - msgspec has read the list
    return found[0]


def check_entries(entries: bytes | memoryview) -> int:
    """Return how many objects are in a JSON list. Raises what msgspec raises for anything else."""
    return len(_objects.decode(entries))


_REPEATED = "the Bundle has a key twice, so what it holds is ambiguous"


class _Bundle(msgspec.Struct):
    entry: list[msgspec.Raw] | None = None


class _Object(msgspec.Struct):
    """Any JSON object."""


_bundle = msgspec.json.Decoder(_Bundle)
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
        raise UnusableError("not-a-bundle", "this is no Bundle, or its keys hold what FHIR does not allow") from None
    except msgspec.DecodeError:
        raise UnusableError("not-json") from None
    except RecursionError:
        raise UnusableError("json-too-deep") from None


def _check_utf8(text: bytes) -> None:
    try:
        check_utf8(text)
    except UnicodeDecodeError:
        raise UnusableError("not-utf8") from None


def _open_at(line: bytes, start: int, raws: list[msgspec.Raw]) -> tuple[Envelope, list[bytes]] | None:
    """Cut the line where its entries are these and begin at ``start``; ``None`` when they do not."""
    found = _pieces(line, start, raws)
    if found is None:
        return None
    pieces, end = found
    envelope = _fitting(line[:start], line[end:])
    return None if envelope is None else (envelope, pieces)


def _pieces(line: bytes, start: int, raws: list[msgspec.Raw]) -> tuple[list[bytes], int] | None:
    """Return what is between the commas of a list with these values that begins at ``start``, and where it ends."""
    pieces: list[bytes] = []
    at = end = start
    for raw in raws:
        text = bytes(raw)
        value = at if line.startswith(b"{", at) else past(BLANK, line, at)
        end = value + len(text)
        if not line.startswith(text, value):
            return None
        if not text.startswith(b"{"):
            raise UnusableError("not-a-bundle", "an entry of the Bundle is no JSON object")
        stop = past(_ENTRY_END, line, end) - 1
        pieces.append(text if value == at and stop == end else line[at:stop])
        at, end = stop + 1, stop
    return None if _ARRAY_END.match(line, end) is None else (pieces, end)


def _fitting(before: bytes, after: bytes) -> Envelope | None:
    """The envelope, if ``before`` ends where the array of the Bundle's own ``entry`` begins."""
    members = _members(before + after)
    if "entry" not in members or members["entry"].start != len(before) - 1:
        return None
    return _envelope(before, after, members, EntryForm.ARRAY)


def _without_entries(line: bytes) -> Envelope:
    members = _members(line)
    if "entry" in members:
        cut = members["entry"].start + len(members["entry"].text)
        return _envelope(line[:cut], line[cut:], members, EntryForm.NULL)
    cut = len(line.rstrip(_BLANK)[:-1].rstrip(_BLANK))  # before the closing brace
    return _envelope(line[:cut], line[cut:], members, EntryForm.MISSING)


def _envelope(before: bytes, after: bytes, members: dict[str, _Member], form: EntryForm) -> Envelope:
    kind, identifier, type_ = (
        _decode(_text, members[name].text) if name in members else None for name in ("resourceType", "id", "type")
    )
    if kind != "Bundle":
        raise UnusableError("not-a-bundle", "this is no Bundle")
    return Envelope(before, after, kind, identifier, type_, "total" in members, form)


def _members(text: bytes) -> dict[str, _Member]:
    """The keys of a JSON object with their values, none of them looked into.

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
