"""The formats of primitive values: those of the published schema, and what they mean beyond the pattern.

Two readings differ from the letter of the schema. White space in its patterns is ASCII white space, as in the
specification's own text; the letter would refuse a no-break space in a name. And its patterns of numbers, which JSON
schema does not apply to numbers, hold for the value: an integer has no fraction and 32 bits.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal

_BASE64 = re.compile(r"[0-9a-zA-Z+/=\s]*", re.ASCII)
_NUMBERS = frozenset({"decimal", "integer", "positiveInt", "unsignedInt"})
_LOWEST = {"integer": -(2**31), "unsignedInt": 0, "positiveInt": 1}
_HIGHEST = 2**31 - 1
_CALENDAR = frozenset({"date", "dateTime", "instant"})


def json_type(kind: str) -> str:
    """The JSON type of a primitive: ``number``, ``boolean`` or ``string``."""
    if kind in _NUMBERS:
        return "number"
    return "boolean" if kind == "boolean" else "string"


def has_json_type(kind: str, value: object) -> bool:
    """Whether a value is of the JSON type that the primitive is written in."""
    if kind in _NUMBERS:
        return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)
    return isinstance(value, bool if kind == "boolean" else str)


def is_well_formed(kind: str, pattern: str | None, value: object) -> bool:
    """Whether a value of the right JSON type has the primitive's format."""
    if isinstance(value, str):
        if kind == "base64Binary":
            return _is_base64(value)
        if pattern is not None and _matcher(pattern)(value) is None:
            return False
        return kind not in _CALENDAR or _is_in_the_calendar(value)
    if kind in _LOWEST:
        return isinstance(value, int) and _LOWEST[kind] <= value <= _HIGHEST
    return True


@functools.cache
def _matcher(pattern: str) -> Callable[[str], object]:
    return re.compile(pattern, re.ASCII).fullmatch


def _is_base64(value: str) -> bool:
    """``^(\\s*([0-9a-zA-Z\\+/=]){4}\\s*)+$`` in linear time."""
    groups = value.split()
    return bool(groups) and _BASE64.fullmatch(value) is not None and all(len(each) % 4 == 0 for each in groups)


def _is_in_the_calendar(value: str) -> bool:
    """Whether the day exists; the pattern knows no lengths of months."""
    if len(value) < len("2024-02-30"):
        return True
    try:
        date.fromisoformat(value[:10])
    except ValueError:
        return False
    return True
