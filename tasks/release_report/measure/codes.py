"""Spellings of codings that were met at an element, so that the next one that is spelled alike is not walked."""

from __future__ import annotations

from typing import Any, Final

from tasks.release_report.measure.cells import Cell

_MOST_SEEN: Final = 2_000


def are_texts(*values: Any) -> bool:
    """Return whether all of these are texts, or missing. Others may be equal and not alike: 1 is ``True``."""
    return all(value is None or value.__class__ is str for value in values)


class Seen:
    """A coding or a quantity as it is spelled: the cells to touch, how many members it has, and whether an identifier
    of ``import/`` may be in it."""

    __slots__ = ("cells", "run", "size", "suspicious")

    def __init__(self, cells: tuple[Cell, ...], size: int) -> None:
        self.run = 0
        self.cells = cells
        self.size = size
        self.suspicious = False


class CodeTable:
    """The spellings of the codings of one element."""

    def __init__(self) -> None:
        self.seen: dict[tuple[Any, Any, Any], Seen] = {}

    def add(self, system: Any, code: Any, display: Any, leaves: tuple[Cell, ...]) -> Seen:
        """Record a coding in a new spelling."""
        seen = Seen(leaves, len(leaves))
        if len(self.seen) < _MOST_SEEN and are_texts(system, code, display):
            self.seen[system, code, display] = seen
        return seen
