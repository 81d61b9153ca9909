"""Read and write JSON without changing the spelling of numbers: ``1.50`` stays ``1.50`` (document 3 §1).

An integer becomes an ``int``. A decimal becomes a ``Spelled``, which can be used in calculations, or a ``msgspec.Raw``
with only its text. Other values are those of ``json``. Both kinds can be written.
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
"""The only integer whose spelling an ``int`` would lose. May also match text, which is harmless."""


class Spelled(Decimal):
    """A decimal for FHIRPath calculations that keeps its original text."""

    __slots__ = ("text",)
    text: str


def as_decimal(text: str) -> Spelled:
    """Return a number for calculations. Raises ``ValueError`` if it is too large, such as ``1E999999999``."""
    value = Spelled(text)
    if abs(value.adjusted()) > _LARGEST_EXPONENT:
        raise ValueError
    value.text = text
    return value


def as_raw(text: str) -> msgspec.Raw:
    """Return a number that is only written unchanged."""
    return msgspec.Raw(text.encode())


class JsonReader:
    """Reads JSON values, with decimals converted by ``number``."""

    def __init__(self, number: Callable[[str], JsonValue]) -> None:
        self._number = number
        self._decoder = msgspec.json.Decoder(float_hook=number)

    def __call__(self, text: bytes) -> JsonValue:
        """Return the value. Raises ``ValueError`` or ``RecursionError``."""
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
    """Return a JSON value as bytes, without white space."""
    return _encoder.encode(value)


def encode_lines(values: Iterable[JsonValue]) -> bytes:
    """Return values as NDJSON; each line ends with a line break."""
    return _encoder.encode_lines(values)


def spelled(value: JsonValue) -> str:
    """Return the JSON text of a primitive value without quotation marks."""
    return value if isinstance(value, str) else encode(value).decode()


def plain(value: JsonValue) -> JsonValue:
    """Return a copy with ``Decimal`` instead of spelled decimals, for the FHIRPath library."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return Decimal(bytes(value).decode()) if isinstance(value, msgspec.Raw) else value


def copied(value: JsonValue) -> JsonValue:
    """Return a copy that can be changed without changing the original."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value
