"""What every reader of FHIR's JSON has in common: how a resource begins, when it is ambiguous, why it is unreadable.

What to do about it is each step's own: what is rejected, what is a finding, which shapes of an entry are let through.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Final

import msgspec

TYPE: Final = re.compile(r"[A-Z][A-Za-z]{1,63}")
ID: Final = re.compile(r"[A-Za-z0-9\-.]{1,64}")

USUAL: Final = re.compile(
    rb'\s*\{\s*"resourceType"\s*:\s*"([A-Z][A-Za-z]{1,63})"\s*,\s*"id"\s*:\s*"([A-Za-z0-9\-.]{1,64})"'
)
"""How nearly every resource begins: type and id. Where it does, nothing more of it needs to be read."""

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for a text that it cannot read; ``why`` says what that means."""

REASONS: Final = {
    "not-json": "the text is not valid JSON",
    "not-utf8": "the text is not valid UTF-8",
    "json-too-deep": "the JSON is nested too deeply to be read",
    "not-a-resource": "this is no FHIR resource: no object with a resourceType",
    "invalid-resource-type": "resourceType is not the name of a FHIR type",
}
"""What is wrong with a text, for a person."""

_PIECE: Final = 1 << 20
"""Bytes whose UTF-8 is checked at once: text of several bytes a character must not be there twice."""


class Head(msgspec.Struct, rename="camel"):
    """Of a resource only what it is called."""

    resource_type: str
    id: str | msgspec.UnsetType = msgspec.UNSET


head: Final = msgspec.json.Decoder(Head)


def why(error: Exception) -> str:
    """The key in ``REASONS`` of an error of ``UNREADABLE``."""
    if isinstance(error, msgspec.ValidationError):
        return "not-a-resource"
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


def ambiguous(raw: bytes) -> bool:
    """Whether ``resourceType`` or ``id`` of a resource stands twice."""
    suspicious = raw.count(b'"resourceType"') > 1 or raw.count(b'"id"') > 1
    return suspicious and repeats(raw, ("resourceType", "id"))


def repeats(raw: bytes, names: Collection[str]) -> bool:
    """Whether one of these keys stands twice at the top level: readers keep one value. Slow, and rarely needed."""
    found: list[str] = []

    def keep(pairs: list[tuple[str, object]]) -> None:
        found[:] = [name for name, _ in pairs]  # objects end inside out: the last one is the outermost

    try:
        json.loads(raw, object_pairs_hook=keep, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return True  # readable for one parser and not for another: as ambiguous as it gets
    return any(found.count(name) > 1 for name in names)
