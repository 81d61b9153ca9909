"""Dates that stayed while others of the same line moved (``design.md``, D12): a path that the rules forgot.

A date moved when it is still a day, but another one. Birth dates are left aside: their precision is a rule of its own.
The first lines of a file are looked at, then one in ten: what a rule set does to a path it does to all lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Raw

_FIRST: Final = 100
_ONE_IN: Final = 10
_DAY: Final = re.compile(rb'"(\d{4}-\d{2}-\d{2})(?=["T])')
_TEXT_DAY: Final = re.compile(r"(\d{4}-\d{2}-\d{2})(?:T|\Z)")
_ASIDE: Final = frozenset({"birthDate", "lastUpdated"})
_NEVER: Final = frozenset({"Provenance"})


def is_sampled(line: int) -> bool:
    """Return whether the dates of this line of a file are looked at."""
    return line <= _FIRST or line % _ONE_IN == 0


def dates_that_stayed(sent: list[Raw | bytes | None], answer: list[Raw | bytes | None]) -> set[str]:
    """Return the paths whose dates stayed in a line where other dates moved; empty where none or all of them moved."""
    if len(sent) != len(answer):
        return set()
    stayed: set[str] = set()
    moved = False
    for before, after in zip(sent, answer, strict=True):
        if before is None or after is None:
            continue
        days, now = _DAY.findall(memoryview(before)), _DAY.findall(memoryview(after))
        if not days or (len(days) == len(now) and not set(days) & set(now)):
            moved = moved or bool(days and now)
            continue
        old, new = msgspec.json.decode(before), msgspec.json.decode(after)
        if old.get("resourceType") in _NEVER:
            continue
        for path, was, is_now in _pairs(old, new, str(old.get("resourceType"))):
            if was == is_now:
                stayed.add(path)
            else:
                moved = True
    return stayed if moved else set()


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
