"""JSON in and out with decimals as they are spelled: ``1.50`` leaves as ``1.50`` (document 3 §1)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import msgspec

JsonValue = Any
_LARGEST_EXPONENT = 400
_MINUS_ZERO = re.compile(rb"-0\s*(?:[,\]}]|$)")
"""The one integer whose spelling an ``int`` would lose (or text that looks like it, which does no harm)."""


class Spelled(Decimal):
    """A decimal that FHIRPath can calculate with and that remembers its text."""

    __slots__ = ("text",)
    text: str


def _spelled(text: str) -> Spelled:
    """Raises ``ValueError`` for a number that no calculation should meet, as ``1E999999999``."""
    value = Spelled(text)
    if abs(value.adjusted()) > _LARGEST_EXPONENT:
        raise ValueError
    value.text = text
    return value


def _integer(text: str) -> int | Spelled:
    return _spelled(text) if text == "-0" else int(text)


def _as_spelled(value: object) -> msgspec.Raw:
    if isinstance(value, Spelled):
        return msgspec.Raw(value.text.encode())
    raise TypeError(type(value).__name__)


_decoder = msgspec.json.Decoder(float_hook=_spelled)
_encoder = msgspec.json.Encoder(enc_hook=_as_spelled, decimal_format="number")


def decode(text: bytes) -> JsonValue:
    """Read a JSON value. Raises ``ValueError`` or ``RecursionError``."""
    if _MINUS_ZERO.search(text):
        return json.loads(text, parse_float=_spelled, parse_int=_integer)
    return _decoder.decode(text)


def encode(value: JsonValue) -> bytes:
    """Write a JSON value."""
    return _encoder.encode(value)


def encode_lines(values: Iterable[JsonValue]) -> bytes:
    """Write NDJSON, each line with its end."""
    return _encoder.encode_lines(values)
