"""Section 7j: each day in the data compared with the day in its place in ``import/``.

The place of a day is its patient, its path and its order: the third ``Encounter.period.start`` of a patient is compared
with her third one, if she has as many as before. If she has fewer, the days are compared as a set, and only to find
that none moved. Years, months, and the first days of months that a rule makes of others are not compared.

The shift of a patient is the number of days by which most of her dates moved. A service that is sent one resource a
line draws a shift for each: then a patient has none of her own, and a path counts as raw by the share of its days.

Bounds: 16 bytes a day on disk. In memory are the days of one patient, or of about 260,000 days where the data of a
patient do not come together.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Final, Literal

from tasks.release_report.measure.cells import Bounds, Cell
from tasks.release_report.measure.kinds import PART
from tasks.release_report.measure.spill import Spill
from tasks.shared.fhir.r4 import PERSONS

FIRST: Final = 1 << 30
"""Is added to the ordinal of a day that is the first of a month."""

_DAY: Final = FIRST - 1
_TECHNICAL: Final = re.compile(r"Bundle\.|(?:.*\.)?Provenance\.")
"""Paths with moments of a server, which tell nothing of a patient."""
_SHIFTS: Final = 1_000
"""Shifts that are told apart (``date_shifts``)."""
_SET: Final = 3
"""Different days that must be among those of ``import/`` where days are compared as a set."""
_OWN: Final = 5
"""Patients whose dates all moved alike, for one whose dates did not, if each patient has a shift of her own."""
_LONGEST: Final = 366
"""Days. The shift of a resource is not longer."""

_Days = Mapping[str, list[int]]
_Beside = Literal["still", "moved", "shifted", "unclear"]
"""What became of a patient's dates: none moved, one or a few did, most did alike, some did in several ways."""
_Birth = Literal["birth", "event", "moved", ""]
"""What a patient's birthday is: a stop, a day that was it before while none moved, a stop unless dates are shifted, the
work of a shift."""


@dataclass(frozen=True)
class _Shift:
    """The shift of a patient's dates, and the number of days by which most of the moved dates were shifted."""

    kind: _Beside
    days: int


def birthday_texts(births: Iterable[int]) -> Iterator[tuple[str, int]]:
    """Yield each birthday as texts have it, with the patient. ``births`` are days as they are noted."""
    for patient, birth in enumerate(births):
        if birth:
            year, month, day = date.fromordinal(birth % FIRST).isoformat().split("-")
            for text in (
                f"{year}-{month}-{day}", f"{day}.{month}.{year}", f"{year}{month}{day}", f"{month}/{day}/{year}",
                f"{day}/{month}/{year}",
            ):  # fmt: skip
                yield text, patient


def is_of_person(path: str) -> bool:
    """Return whether a path belongs to a person, also in a contained resource."""
    names = [part[1] for part in PART.finditer(path)]
    within = (name for above, name in pairwise(names) if above == "contained")
    return any(name in PERSONS for name in (*names[:1], *within))


def noted_day(day: date) -> int:
    """Return the ordinal of a day as it is noted."""
    return day.toordinal() + (FIRST if day.day == 1 else 0)


@dataclass
class Imported:
    """Holds what of ``import/`` is compared: the days, the paths of their places, the birthdays of the patients (0: not
    known, or the first of a year)."""

    days: Spill
    paths: Sequence[str] = ()
    births: Sequence[int] = ()
    together: bool = False


@dataclass(frozen=True)
class Moved:
    """Counts the patients of a path: those with days that could be ``compared``, those with one that is the ``same``,
    and those of whom it is the same although their other days moved (``raw``)."""

    compared: int = 0
    same: int = 0
    raw: int = 0


@dataclass(frozen=True)
class Comparison:
    """Holds what became of the days: by path, and patients by their shift.

    ``births`` are patients by path with their own birthday there. ``events`` are those who had it there before, and
    none of whose dates moved, such as those born during a stay. ``by_chance`` are the patients whose shift is none by
    chance; ``None`` if each resource has a shift.
    """

    paths: Mapping[str, Moved] = field(default_factory=dict)
    shifts: Mapping[int, int] = field(default_factory=dict)
    births: dict[str, Cell] = field(default_factory=dict)
    events: Mapping[str, Cell] = field(default_factory=dict)
    by_chance: Cell | None = field(default_factory=Cell)

    def is_by_chance(self, path: str, patient: int) -> bool:
        """Return whether a date of a patient, but her birthday, may be the same because her shift is none by chance."""
        if path in self.births and self.births[path].has(patient):
            return False
        if self.by_chance is None:
            return path in self.paths and not self.paths[path].raw
        return self.by_chance.has(patient)

    def add_births(self, found: Mapping[str, Cell], bounds: Bounds) -> None:
        """Add patients by path who have their birthday in another text."""
        for path, cell in found.items():
            self.births.setdefault(path, Cell()).merge(cell, bounds)


class _AtPath:
    """Counts the patients of one path; those with a day that is the same, by what became of their other days."""

    def __init__(self) -> None:
        self.compared = Cell()
        self.coarse = Cell()
        """First days of months now, which were others."""
        self.same = Cell()
        self.beside: defaultdict[_Beside, Cell] = defaultdict(Cell)
        self.days = self.unmoved = 0
        self.first, self.last = _DAY, 0

    def is_conclusive(self) -> bool:
        """Return whether a day that is the same tells a shift. It does not where all patients had one day, such as that
        of the extraction, and where a rule made first days of months."""
        one_day = self.first == self.last and self.compared.patients > 1
        return not one_day and self.coarse.patients < self.compared.patients


class Comparing:
    """Compares the days of one patient after the other."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._paths: defaultdict[str, _AtPath] = defaultdict(_AtPath)
        self._shifts: defaultdict[_Beside, Counter[int]] = defaultdict(Counter)
        self._births: defaultdict[_Birth, defaultdict[str, Cell]] = defaultdict(lambda: defaultdict(Cell))
        self._kinds: Counter[_Beside] = Counter()
        self._several: Counter[bool] = Counter()
        """Patients with several dates that moved, by whether most of them moved alike."""
        self._still = Cell()
        self._compared = 0

    def add(self, owner: int, then: _Days, now: _Days, birth: int) -> None:
        """Compare the days of a patient with those in ``import/``. ``birth`` is her birthday, 0 if it is not known."""
        found = {path: self._deltas(owner, path, then.get(path, []), days) for path, days in now.items()}
        moves: Counter[int] = Counter()
        for deltas in found.values():
            moves.update(deltas)
        still = moves.pop(0, 0)
        own = _own_shift(moves, still)
        self._count(owner, own, moves.total(), still)
        for path, deltas in found.items():
            if not deltas and own.days and _none_moved(then.get(path, []), now[path], own.days):
                deltas = [0] * len(now[path])
                self._paths[path].compared.add(owner, self._bounds)
            if 0 in deltas:
                at = self._paths[path]
                at.same.add(owner, self._bounds)
                at.beside[own.kind].add(owner, self._bounds)
                at.unmoved += deltas.count(0)
        if birth:
            for path in [path for path, days in now.items() if birth in days]:
                kind = _birthday(birth, then.get(path, []), now[path], own)
                if kind == "event" and is_of_person(path):
                    kind = "birth"
                self._births[kind][path].add(owner, self._bounds)

    def _count(self, owner: int, own: _Shift, moves: int, still: int) -> None:
        if not moves and not still:
            return
        self._compared += 1
        self._kinds[own.kind] += 1
        if own.kind != "unclear":
            self._shifts[own.kind][own.days] += 1
        if own.kind == "still":
            self._still.add(owner, self._bounds)
        if moves > 1:
            self._several[own.kind != "unclear"] += 1

    def _deltas(self, owner: int, path: str, then: list[int], now: list[int]) -> list[int]:
        """Return by how many days each day moved; nothing if that is not known."""
        at = self._paths[path]
        if _is_coarse(then, now):
            at.coarse.add(owner, self._bounds)
            return []
        if len(then) != len(now):
            return []
        deltas = [(after & _DAY) - (before & _DAY) for before, after in zip(then, now, strict=True)]
        at.first = min(at.first, *(day & _DAY for day in then))
        at.last = max(at.last, *(day & _DAY for day in then))
        at.compared.add(owner, self._bounds)
        at.days += len(deltas)
        return deltas

    def result(self) -> Comparison:
        """Return what was found."""
        by_resource = _OWN * self._several[False] > self._several[True]
        shifted = 2 * self._kinds["still"] <= self._compared
        shifts = self._shifts["still"] + self._shifts["shifted"]
        if shifted:
            shifts += self._shifts["moved"]
        kinds: list[_Beside] = ["shifted", "moved"] if shifted else ["shifted"]
        if too_many_still := self._has_too_many_still(shifts):
            kinds.append("still")

        def raw(at: _AtPath) -> int:
            """Return the patients of a path with a day that is the same and should not be."""
            if not at.is_conclusive():
                return 0
            if by_resource:  # one day in a hundred is the same by chance
                return at.same.patients if at.unmoved >= _SET and 4 * at.unmoved >= at.days else 0
            return sum(at.beside[kind].patients for kind in kinds)

        births = self._births["birth"]
        if not shifted:
            for path, cell in self._births["moved"].items():
                births[path].merge(cell, self._bounds)
        chance = None if by_resource else self._still if shifted and not too_many_still else Cell()
        paths = {path: Moved(at.compared.patients, at.same.patients, raw(at)) for path, at in self._paths.items()}
        self._bounds.others["date_shifts"] += sum(count for _, count in shifts.most_common()[_SHIFTS:])
        return Comparison(paths, dict(shifts.most_common(_SHIFTS)), births, self._births["event"], chance)

    def _has_too_many_still(self, shifts: Counter[int]) -> bool:
        """Return whether more patients have no shift than have drawn none by chance, while others have one."""
        others = [patients for shift, patients in shifts.items() if shift]
        if self._kinds["shifted"] < max(_SET, self._compared / 10):
            return False
        return len(others) == 1 or shifts[0] > _SET * (1 + max(others))


def _own_shift(moves: Counter[int], still: int) -> _Shift:
    """Return the shift of a patient, of whose dates ``still`` did not move."""
    if not moves:
        return _Shift("still", 0)
    days, times = max(moves.items(), key=itemgetter(1))
    if 2 * times <= moves.total():
        return _Shift("unclear", 0)
    return _Shift("shifted" if times > 1 and times >= still else "moved", days)


def _none_moved(then: list[int], now: list[int], shift: int) -> bool:
    """Return whether days, of which there are not as many as before, are some of those before, and are not so because
    the patient's shift makes them such."""
    before = {day & _DAY for day in then}
    after = {day & _DAY for day in now}
    return len(after) >= _SET and after <= before and not {day - shift for day in after} <= before


def _is_coarse(then: list[int], now: list[int]) -> bool:
    """Return whether days became first days of months."""
    return bool(then) and min(now) > FIRST > min(then) and len(then) == len(now)


def _birthday(birth: int, then: list[int], now: list[int], own: _Shift) -> _Birth:
    """Return what a birthday among the days of a path is."""
    if _is_coarse(then, now):
        return ""
    paired = len(then) == len(now)
    before = [day for day, after in zip(then, now, strict=True) if after == birth] if paired else then
    kinds = {_of_birthday((birth & _DAY) - (day & _DAY), own) for day in before}
    order: tuple[_Birth, ...] = ("birth", "moved", "event", "")
    if not paired:  # any of them may have become it
        order = ("", "event", "moved", "birth")
    return next((kind for kind in order if kind in kinds), "birth")


def _of_birthday(delta: int, own: _Shift) -> _Birth:
    """Return what a birthday is that stands in the place of a day so many days before it."""
    if delta == 0:
        return "event" if own.kind == "still" else "birth"
    if own.kind == "shifted":
        return "" if delta == own.days else "birth"
    near = abs(delta) <= _LONGEST
    if own.kind == "moved":
        return "moved" if near and delta == own.days else "birth"
    return "" if near and own.kind == "unclear" else "birth"


def compared(imported: Imported, days: Spill, paths: Sequence[str], bounds: Bounds, *, together: bool) -> Comparison:
    """Return the comparison of the days of what leaves with those of ``import/``, whose patients stand in the same
    order. ``paths`` are those of the places in ``days``; ``together`` says that the days of each patient are."""
    comparing = Comparing(bounds)
    parts = 1 if together and imported.together else max(days.parts(), imported.days.parts())
    for part in range(parts):
        before = _patients(imported.days.rows(part, parts), imported.paths, together=parts == 1 and imported.together)
        after = _patients(days.rows(part, parts), paths, together=parts == 1 and together)
        owner, then = next(before, _NOBODY)
        for patient, now in after:
            while owner < patient:
                owner, then = next(before, _NOBODY)
            birth = imported.births[patient] if patient < len(imported.births) else 0
            comparing.add(patient, then if owner == patient else {}, now, birth)
    return comparing.result()


_NOBODY: Final[tuple[int, _Days]] = (1 << 40, {})


def _patients(
    rows: Iterable[tuple[int, ...]], paths: Sequence[str], *, together: bool
) -> Iterator[tuple[int, dict[str, list[int]]]]:
    """Yield the days of each patient by path, in the order of the patients."""
    kept = [path if not _TECHNICAL.match(path) else "" for path in paths]
    if not together:
        rows = sorted(rows, key=itemgetter(0))
    for owner, of in groupby(rows, itemgetter(0)):
        days: dict[str, list[int]] = {}
        for _, place, day in of:
            if path := kept[place]:
                days.setdefault(path, []).append(day)
        yield owner, days
