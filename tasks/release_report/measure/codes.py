"""Section 10: the codes of an element, in each spelling with its display.

Bounds: 1,000 codes an element and 30,000 in all (``codes``); what falls out is in the element's ``other`` cell.
"""

from __future__ import annotations

from typing import Any, Final

from tasks.release_report.measure.cells import LONGEST, Bounds, Cell, Values
from tasks.release_report.measure.contents import content_of

_MOST_CODES: Final = 1_000
_ALL_CODES: Final = 30_000


def are_texts(*values: Any) -> bool:
    """Return whether all of these are texts, or missing. Others may be equal and not alike: 1 is ``True``."""
    return all(value is None or value.__class__ is str for value in values)


class Seen:
    """A coding or a quantity as it is spelled: the cells to touch, how many members it has, the contents of those that
    are known, by their nodes, and whether an identifier of ``import/`` may be in it."""

    __slots__ = ("cells", "contents", "run", "size", "suspicious")

    def __init__(self, cells: tuple[Cell, ...], size: int, contents: tuple[tuple[Any, int], ...]) -> None:
        self.run = 0
        self.cells = cells
        self.size = size
        self.contents = contents
        self.suspicious = False


class CodeTable:
    """The codes of one element."""

    def __init__(self, path: str, bounds: Bounds) -> None:
        self.path = path
        self.seen: dict[tuple[Any, Any, Any], Seen] = {}
        self.codes: dict[str, Cell] = {}
        self.displays: dict[str, dict[str, Cell]] = {}
        self.systems = Values(bounds)
        self.text_only = Cell()
        self.other = Cell()
        self._bounds = bounds

    def add(self, system: Any, code: Any, display: Any, leaves: tuple[Cell, ...]) -> Seen:
        """Record a coding in a new spelling."""
        bounds = self._bounds
        name = f"{system if isinstance(system, str) else ''}|{code if isinstance(code, str) else ''}"
        cells: list[Cell] = list(leaves)
        if isinstance(system, str):
            cells.append(self.systems.of(system))
        cell = self.codes.get(name)
        full = len(self.seen) >= 2 * _MOST_CODES
        if cell is None and isinstance(code, str):
            full = full or len(self.codes) >= _MOST_CODES or bounds.codes >= _ALL_CODES or bounds.crowded
            if not full and len(name) <= LONGEST:
                bounds.codes += 1
                cell = self.codes[name] = Cell()
        if cell is not None:
            cells.append(cell)
            if isinstance(display, str) and not full and len(display) <= LONGEST:
                cells.append(self.displays.setdefault(name, {}).setdefault(display, Cell()))
        elif isinstance(code, str):
            bounds.others["codes"] += 1
            cells.append(self.other)
        values = (one for one in (system, code, display) if one is not None)
        contents = tuple((leaf, content_of(one)) for leaf, one in zip(leaves, values, strict=True))
        seen = Seen(tuple(cells), len(leaves), contents)
        if not full and are_texts(system, code, display):
            self.seen[system, code, display] = seen
        return seen
