"""Dates that stayed while others of the same line moved (``design.md``, D12): a path that the rules forgot.

A date moved when it is still a day, but another one. Birth dates are left aside: their precision is a rule of its own.
The first lines of a file are looked at, then one in ten: what a rule set does to a path it does to all lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

_FIRST: Final = 100
_ONE_IN: Final = 10
_DAY: Final = re.compile(rb'-(\d\d-\d\d)(?=["T])(?<!"birthDate":"\d{4}-\d\d-\d\d)(?<!"birthDate": "\d{4}-\d\d-\d\d)')
"""Month and day of a date in JSON text; searched for from the hyphen, which is rare."""
_TEXT_DAY: Final = re.compile(r"(\d{4}-\d{2}-\d{2})(?:T|\Z)")
_ASIDE: Final = frozenset({"birthDate", "lastUpdated"})


def is_sampled(line: int) -> bool:
    """Return whether the dates of this line of a file are looked at."""
    return line <= _FIRST or line % _ONE_IN == 0


def movement(before: bytes, after: bytes) -> set[str]:
    """Return whether the dates of a line moved or not, birth dates aside; empty without dates."""
    days = _DAY.findall(before)
    return {"moved" if days != _DAY.findall(after) else "unmoved"} if days else set()


def dates_that_stayed(
    texts: tuple[bytes, bytes], sent: Sequence[Raw | bytes | None], answer: Sequence[Raw | bytes | None]
) -> set[str]:
    """Return the paths whose dates stayed in a line where other dates moved; empty where none or all of them moved.

    ``texts`` are what was sent and what came back, with these resources in it, in the same order.
    """
    before, after = map(_DAY.findall, texts)
    if before == after or len(sent) != len(answer):
        return set()
    stayed: set[str] = set()
    moved = False
    for old, new in zip(sent, answer, strict=True):
        if old is not None and new is not None:
            days, now = _DAY.findall(memoryview(old)), _DAY.findall(memoryview(new))
            if days and len(days) == len(now) and not set(days) & set(now):
                moved = True  # all of them: the resource need not be walked
                continue
            for path, was, is_now in _dates(msgspec.json.decode(old), msgspec.json.decode(new)):
                moved = moved or was != is_now
                if was == is_now:
                    stayed.add(path)
    return stayed if moved else set()


def _dates(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (path, day before, day after) of each date of a resource, those of a Provenance aside."""
    kind = str(old.get("resourceType"))
    return iter(()) if kind == "Provenance" else _pairs(old, new, kind)


def _pairs(old: Any, new: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield (path, day before, day after) of each text that is a day on both sides."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() & new.keys() - _ASIDE:
            yield from _pairs(old[key], new[key], f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for before, after in zip(old, new, strict=True):
            yield from _pairs(before, after, path)
    elif isinstance(old, str) and isinstance(new, str):
        was, is_now = _TEXT_DAY.match(old), _TEXT_DAY.match(new)
        if was and is_now:
            yield path, was[1], is_now[1]
