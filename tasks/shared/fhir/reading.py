"""Shared parts of the readers of FHIR JSON: head of a resource, reasons why it is unreadable.

What to do about it is each step's own: what is rejected, what is a finding, which shapes of an entry are let through.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from tasks.shared.errors import DataError

TYPE: Final = re.compile(r"[A-Z][A-Za-z]{1,63}")
ID: Final = re.compile(r"[A-Za-z0-9\-.]{1,64}")

USUAL: Final = re.compile(
    rb'\s*\{\s*"resourceType"\s*:\s*"([A-Z][A-Za-z]{1,63})"\s*,\s*"id"\s*:\s*"([A-Za-z0-9\-.]{1,64})"'
)
"""How nearly every resource begins: type and id. Where it does, nothing more of it needs to be read."""

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for a text that it cannot read."""

REASONS: Final = {
    "not-json": "the text is not valid JSON",
    "not-utf8": "the text is not valid UTF-8",
    "json-too-deep": "the JSON is nested too deeply to be read",
    "not-a-resource": "not a FHIR resource: a JSON object with a resourceType is expected",
    "invalid-resource-type": "resourceType is not the name of a FHIR type",
    "not-a-bundle": "the Bundle, or one of its entries, does not have the structure that FHIR requires",
}
"""What is wrong with a text, for a person, where a reader has nothing closer to say."""

RESOURCE_TYPE: Final = b'"resourceType"'

LARGEST_RESOURCE: Final = 64 << 20
"""Bytes of the largest resource that is read where the configuration is not known (``limits.max_resource_mb``)."""

_PIECE: Final = 1 << 20
"""Bytes whose UTF-8 is checked at once: text of several bytes a character must not be there twice."""


class UnusableError(Exception):
    """A text that is not what it has to be: never seen outside of the readers, which say what that means.

    ``reference`` is that of an error or a finding, ``message`` what ``REASONS`` says of it unless given; they quote
    nothing of the text. ``type`` is that of the resource, where it is known.
    """

    def __init__(self, reference: str, message: str | None = None, type: str | None = None) -> None:  # noqa: A002
        super().__init__(reference)
        self.reference = reference
        self.message = REASONS[reference] if message is None else message
        self.type = type

    def error(self, where: str | None) -> DataError:
        """Return the error for a person; ``where`` is ``file:line``."""
        return DataError(self.reference, self.message, context=where)


def too_large(where: str | None, largest: int) -> DataError:
    """Return the error for a resource of more than ``largest`` bytes; ``where`` is ``file:line``."""
    return DataError(
        "resource-too-large",
        f"one resource, or the part of a Bundle outside its entries, is larger than {largest >> 20} MiB",
        context=where,
        hint="the file may be damaged; if the data is right, raise limits.max_resource_mb (at most 1024)",
    )


class ResourceHead(msgspec.Struct, rename="camel"):
    """Type and id of a resource; ``id`` is ``None`` when there is one that is no text."""

    resource_type: str
    id: str | msgspec.UnsetType | None = msgspec.UNSET


class _StrictHead(ResourceHead):
    id: str | msgspec.UnsetType = msgspec.UNSET


class _Kind(msgspec.Struct, rename="camel"):
    resource_type: str


class _Profiled(msgspec.Struct):
    meta: Any = None


_head = msgspec.json.Decoder(_StrictHead)
_profiled = msgspec.json.Decoder(_Profiled)
_kind = msgspec.json.Decoder(_Kind)


def read_head(raw: bytes | memoryview | msgspec.Raw) -> ResourceHead:
    """Return the type and id of a resource. Raises ``UnusableError``."""
    try:
        return _head.decode(raw)
    except msgspec.ValidationError:
        return ResourceHead(kind_of(raw), None)
    except UNREADABLE as error:
        raise UnusableError(why(error)) from None


def kind_of(raw: bytes | bytearray | memoryview | msgspec.Raw) -> str:
    """Return the ``resourceType``, nothing else of the resource looked at. Raises ``UnusableError``."""
    try:
        return _kind.decode(raw).resource_type
    except UNREADABLE as error:
        raise UnusableError(why(error)) from None


def profiles_of(raw: bytes | memoryview | msgspec.Raw, *, strict: bool = False) -> list[str]:
    """Return the profiles that a resource claims in ``meta.profile``, without their versions; empty for none.

    With ``strict`` anything but a list of texts counts as none.
    """
    try:
        meta = _profiled.decode(raw).meta
    except UNREADABLE:
        return []
    claimed = meta.get("profile") if isinstance(meta, dict) else None
    named = claimed if isinstance(claimed, list) else [] if strict else [claimed]
    if strict and not all(isinstance(one, str) for one in named):
        return []
    return [one.partition("|")[0] for one in named if isinstance(one, str)]


def why(error: Exception, shape: str = "not-a-resource") -> str:
    """Return the reference for an error that is ``UNREADABLE``; ``shape`` is that of JSON of another shape."""
    if isinstance(error, msgspec.ValidationError):
        return shape
    if isinstance(error, RecursionError):
        return "json-too-deep"
    return "not-utf8" if isinstance(error, UnicodeDecodeError) else "not-json"


def check_utf8(text: bytes) -> None:
    """Raise ``UnicodeDecodeError``: msgspec does not look into strings that it only passes over."""
    if text.isascii():
        return
    start = 0
    while start < len(text):
        end = min(start + _PIECE, len(text))
        while end < len(text) and text[end] & 0xC0 == 0x80:
            end += 1
        text[start:end].decode()
        start = end


BLANK: Final = re.compile(rb"[ \t\r\n]*+")
"""White space between tokens, if there is any."""


def past(pattern: re.Pattern[bytes], text: bytes | bytearray, at: int) -> int:
    """Return the end of the match at ``at``; ``at`` if nothing matches."""
    match = pattern.match(text, at)
    return at if match is None else match.end()
