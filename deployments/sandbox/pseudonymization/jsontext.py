"""JSON in and out with numbers as they are spelled: ``1.50`` leaves as ``1.50`` (document 3 §1).

A decimal is a ``msgspec.Raw`` with its text, an integer an ``int``; everything else is what ``json`` gives.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import msgspec

from deployments.sandbox.pseudonymization.problem import MalformedResourceError

JsonValue = Any
_MINUS_ZERO = re.compile(rb"-0\s*(?:[,\]}]|$)")
"""The one integer whose spelling an ``int`` would lose (or text that looks like it, which does no harm)."""


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def _integer(text: str) -> int | msgspec.Raw:
    return _raw(text) if text == "-0" else int(text)


_decoder = msgspec.json.Decoder(float_hook=_raw)
_encoder = msgspec.json.Encoder()


def decode(text: bytes) -> JsonValue:
    """Read a JSON document. Raises ``MalformedResourceError``."""
    try:
        if _MINUS_ZERO.search(text):
            return json.loads(text, parse_float=_raw, parse_int=_integer)
        return _decoder.decode(text)
    except (ValueError, RecursionError):
        raise MalformedResourceError("The body is not JSON.") from None


def encode(value: JsonValue) -> bytes:
    """Write a JSON document."""
    return _encoder.encode(value)


def spelled(value: JsonValue) -> str:
    """A primitive value as its JSON text without quotation marks."""
    if isinstance(value, str):
        return value
    return encode(value).decode()


def plain(value: JsonValue) -> JsonValue:
    """A copy in which decimals are ``Decimal``, for the FHIRPath library."""
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
