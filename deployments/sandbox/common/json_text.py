"""JSON in and out with numbers as they are spelled: ``1.50`` leaves as ``1.50`` (document 3 §1).

An integer is an ``int``, a decimal what its reader wants: a ``Spelled``, to calculate with, or a ``msgspec.Raw``, its
text alone. Everything else is what ``json`` gives. Either can be written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
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


def as_decimal(text: str) -> Spelled:
    """A number to calculate with. Raises ``ValueError`` for one that no calculation should meet, as ``1E999999999``."""
    value = Spelled(text)
    if abs(value.adjusted()) > _LARGEST_EXPONENT:
        raise ValueError
    value.text = text
    return value


def as_raw(text: str) -> msgspec.Raw:
    """A number that only has to leave as it came."""
    return msgspec.Raw(text.encode())


class JsonReader:
    """Reads JSON values, their decimals by ``number``."""

    def __init__(self, number: Callable[[str], JsonValue]) -> None:
        self._number = number
        self._decoder = msgspec.json.Decoder(float_hook=number)

    def __call__(self, text: bytes) -> JsonValue:
        """The value. Raises ``ValueError`` or ``RecursionError``."""
        if _MINUS_ZERO.search(text):
            return json.loads(text, parse_float=self._number, parse_int=self._integer)
        return self._decoder.decode(text)

    def _integer(self, text: str) -> JsonValue:
        return self._number(text) if text == "-0" else int(text)


decode_decimals = JsonReader(as_decimal)
decode_raw = JsonReader(as_raw)


def _as_spelled(value: object) -> msgspec.Raw:
    if isinstance(value, Spelled):
        return as_raw(value.text)
    raise TypeError(type(value).__name__)


_encoder = msgspec.json.Encoder(enc_hook=_as_spelled, decimal_format="number")


def encode(value: JsonValue) -> bytes:
    """Write a JSON value, without white space."""
    return _encoder.encode(value)


def encode_lines(values: Iterable[JsonValue]) -> bytes:
    """Write NDJSON, each line with its end."""
    return _encoder.encode_lines(values)


def spelled(value: JsonValue) -> str:
    """A primitive value as its JSON text without quotation marks."""
    return value if isinstance(value, str) else encode(value).decode()


def plain(value: JsonValue) -> JsonValue:
    """A copy with a ``Decimal`` where a text stands for one, for the FHIRPath library."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return Decimal(bytes(value).decode()) if isinstance(value, msgspec.Raw) else value


def copied(value: JsonValue) -> JsonValue:
    """A copy that can be changed without changing the original."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value
