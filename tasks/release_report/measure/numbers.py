"""Section 10: numbers with units, by what they are of, and resources a patient: quartiles of patients (R8)."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Mapping
from math import inf, isfinite
from statistics import median
from typing import Any, Final

import msgspec

from tasks.release_report.measure.cells import Bounds, Cell, DataRun, Values
from tasks.release_report.measure.contents import decode
from tasks.release_report.measure.measured import Numbers
from tasks.release_report.measure.trie import Node

_SAMPLE: Final = 256
"""Patients of whom values are kept where a patient's data do not come together; above, those with the lowest draw."""
_MEDIANS: Final = 2_048
"""Medians that are kept where they do; above, a fair sample of them."""
_VALUES: Final = 64
"""Values of one patient that are kept; the first ones."""
_MOST: Final = 500
"""Things that numbers of one element may be of; others share one."""
_COUNTED: Final = 1_000_000
"""Patients whose resources are counted (2 bytes each and type)."""
_HIGHEST: Final = 65_535
_HANDFUL: Final = 5
_SUBJECTS: Final = 5_000
NUMBERS: Final = (int, bytes)
"""Classes of numbers: those with a point or an exponent are as they are written (``contents.decode``)."""


class Measure(Cell):
    """The numbers of one thing. Exact up to the bounds above, a fair sample of patients beyond."""

    __slots__ = ("_by", "_count", "_highest", "_medians", "pending", "units")

    def __init__(self, bounds: Bounds) -> None:
        super().__init__()
        self.units = Values(bounds)
        self.pending: list[float] = []
        self._medians = array("d")
        self._count = 0
        self._by: dict[int, array[float]] = {}
        self._highest = 1 << 64

    def settle(self, patient: int, draw: random.Random, *, together: bool) -> None:
        """Count what was ``pending`` for the patient; ``draw`` chooses the medians that are kept."""
        pending, self.pending = self.pending, []
        if not together:
            kept = self._by.get(patient)
            if kept is None:
                # Who was dropped once stays out, so that of nobody a part is kept.
                if _rank(patient) > self._highest:
                    return
                kept = self._by[patient] = array("d")
                if len(self._by) > 2 * _SAMPLE:
                    lowest = sorted(self._by, key=_rank)[:_SAMPLE]
                    self._highest = _rank(lowest[-1])
                    self._by = {one: self._by[one] for one in lowest}
            kept.extend(pending[: _VALUES - len(kept)])
            return
        self._count += 1
        middle = median(pending)
        if len(self._medians) < _MEDIANS:
            self._medians.append(middle)
        elif (place := draw.randrange(self._count)) < _MEDIANS:
            self._medians[place] = middle

    def result(self) -> Numbers:
        """Return the numbers."""
        if self._by:
            self._medians = array("d", [median(one) for one in self._by.values() if one])
        return Numbers(self.patients, self.units.counts(), quartiles(sorted(self._medians)))


def _rank(patient: int) -> int:
    return (patient * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % (1 << 64) >> 11


def quartiles(values: list[float]) -> tuple[float, float, float] | None:
    """Return the quartiles of sorted values; ``None`` for fewer than five."""
    if len(values) < _HANDFUL:
        return None
    return tuple(_at(values, part / 4) for part in (1, 2, 3))  # type: ignore[return-value]


def _at(values: list[float], part: float) -> float:
    place = part * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


class Measures:
    """The numbers of one element, by code; those behind the first 500 codes share one."""

    def __init__(self, bounds: Bounds) -> None:
        self.by: dict[str, Measure] = {}
        self.other = Measure(bounds)
        self._bounds = bounds

    def of(self, code: str) -> Measure:
        """Return the numbers of a code."""
        found = self.by.get(code)
        if found is None:
            if len(self.by) >= _MOST or self._bounds.crowded:
                self._bounds.others["numbers"] += 1
                return self.other
            found = self.by[code] = Measure(self._bounds)
        return found


class Measuring:
    """Takes in numbers: ``take`` is for a quantity of what has this code."""

    def __init__(self, run: DataRun, bounds: Bounds) -> None:
        self._met: list[Measure] = []
        # One for each measurement: the same files give the same sample, whatever was measured before.
        self._draw = random.Random(0)  # noqa: S311 - a sample, no secret
        self.record = self._recorder(run, bounds)

    def _recorder(self, run: DataRun, bounds: Bounds) -> Callable[[Node, Any, str], None]:
        met, touch = self._met, run.touch

        def record(node: Node, value: Any, code: str) -> None:
            run.changing = True
            number = value.get("value") if value.__class__ is dict else None
            if number.__class__ not in NUMBERS or not isfinite(exact := _as_float(number)):
                return
            if node.numbers is None:
                node.numbers = Measures(bounds)
            found = node.numbers.by.get(code) or node.numbers.of(code)
            if found.run != run.number:
                touch(found)
            if not found.pending:
                met.append(found)
            found.pending.append(exact)
            unit = value.get("code") or value.get("unit")
            if unit.__class__ is str:
                cell = found.units.cells.get(unit) or found.units.of(unit)
                if cell.run != run.number:
                    touch(cell)

        return record

    def end(self, patient: int, *, together: bool) -> None:
        """End a run; numbers of no patient (-1) do not count."""
        for one in self._met:
            if patient >= 0:
                one.settle(patient, self._draw, together=together)
            else:
                one.pending.clear()
        self._met.clear()


class Multiplicity:
    """Resources by type, of the run and of each patient."""

    def __init__(self) -> None:
        self.run: dict[str, int] = {}
        self._columns: dict[str, array[int]] = {}

    def end(self, patient: int) -> None:
        """End the run of a patient."""
        if patient >= _COUNTED:
            return
        for kind, number in self.run.items():
            column = self._columns.get(kind)
            if column is None:
                column = self._columns[kind] = array("H")
            if patient >= len(column):
                column.extend([0] * (patient + 1 - len(column) + len(column) // 8))
            column[patient] = min(column[patient] + number, _HIGHEST)

    def result(self) -> dict[str, tuple[float, float, float]]:
        """Return the quartiles by type."""
        middles = {kind: quartiles(sorted(one for one in column if one)) for kind, column in self._columns.items()}
        return {kind: middle for kind, middle in middles.items() if middle is not None}


def _as_float(number: int | bytes) -> float:
    """Return a number, infinity for one that is too large."""
    try:
        return float(number)
    except OverflowError:
        return inf


class Subject:
    """The first code of a resource, to which its numbers belong. ``members`` are those of the resource."""

    __slots__ = ("_known", "members")

    def __init__(self) -> None:
        self.members: Mapping[str, msgspec.Raw] = {}
        self._known: dict[bytes, str] = {}

    def code(self) -> str:
        """Return the code as ``code_of`` formats it; blank if there is none."""
        members = self.members
        for name in ("code", "medicationCodeableConcept", "vaccineCode", "type"):
            if name in members:
                raw = b"" + members[name]
                known = self._known.get(raw)
                if known is None:
                    if len(self._known) >= _SUBJECTS:
                        self._known.clear()
                    known = self._known[raw] = code_of(decode(raw))
                return known
        return ""


TEXT_ONLY: Final = "@text-only"
"""In place of the system of what has a text alone: the words of whoever wrote it, which no report says."""


def code_of(concept: Any) -> str:
    """``system|code`` of a concept's first coding, ``@text-only|text`` of one that has only that; blank without."""
    if isinstance(concept, list):
        concept = concept[0] if concept else None
    if not isinstance(concept, dict):
        return ""
    coding = concept.get("coding")
    if isinstance(coding, list) and coding and isinstance(coding[0], dict):
        return f"{coding[0].get('system') or ''}|{coding[0].get('code') or ''}"
    text = concept.get("text")
    return f"{TEXT_ONLY}|{text}" if isinstance(text, str) else ""


def is_text_only(code: str) -> bool:
    """Return whether the result of ``code_of`` is only a text."""
    return code.startswith(f"{TEXT_ONLY}|")
