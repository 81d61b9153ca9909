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
_DAY: Final = re.compile(rb'"(\d{4}-\d{2}-\d{2})(?=["T])(?<!"birthDate":"....-..-..)(?<!"birthDate": "....-..-..)')
_TEXT_DAY: Final = re.compile(r"(\d{4}-\d{2}-\d{2})(?:T|\Z)")
_ASIDE: Final = frozenset({"birthDate", "lastUpdated"})
_NEVER: Final = frozenset({"Provenance"})


def is_sampled(line: int) -> bool:
    """Return whether the dates of this line of a file are looked at."""
    return line <= _FIRST or line % _ONE_IN == 0


def days_in(text: Raw | bytes) -> list[bytes]:
    """Return the days in the text of a resource or Bundle, birth dates aside."""
    return _DAY.findall(memoryview(text))


def dates_that_stayed(sent: list[Raw | bytes | None], answer: list[Raw | bytes | None]) -> set[str]:
    """Return the paths whose dates stayed in a line where other dates moved; empty where none or all of them moved."""
    if len(sent) != len(answer):
        return set()
    pairs = [_Resource(old, new) for old, new in zip(sent, answer, strict=True) if old is not None and new is not None]
    other = [pair for pair in pairs if pair.days != pair.now]
    if not any(pair.all_moved or any(was != now for _, was, now in pair.dates()) for pair in other):
        return set()
    return {path for pair in pairs if pair.days and not pair.all_moved for path, was, now in pair.dates() if was == now}


class _Resource:
    """A resource before and after, and the days in its text."""

    def __init__(self, before: Raw | bytes, after: Raw | bytes) -> None:
        self._before, self._after = before, after
        self.days, self.now = days_in(before), days_in(after)

    @property
    def all_moved(self) -> bool:
        """Return whether no day is left as it was: then the resource need not be walked."""
        return bool(self.days) and len(self.days) == len(self.now) and not set(self.days) & set(self.now)

    def dates(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, day before, day after) of each date, those of a Provenance aside."""
        old, new = msgspec.json.decode(self._before), msgspec.json.decode(self._after)
        kind = str(old.get("resourceType"))
        return iter(()) if kind in _NEVER else _pairs(old, new, kind)


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
