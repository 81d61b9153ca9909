"""The cells in which the measuring pass counts (document 5, R1).

A cell counts patients, each once. Where the data of a patient come together, the number of the run of data in which it
was seen last suffices; where they do not, a cell holds a set: a few serial numbers, or a bit a patient. A run is what
stands together of one patient, or one resource of nobody. A cell that is touched in a run is counted when the run ends:
once, however often it was met.

Bounds: 1,000 different values where values are counted (``values``); 100 MB of bits (from then on no new code or value
is counted apart); 4 million patients times paths whose values are compared (``one_each``). What falls out is in the
element's or the list's ``other`` cell, and in ``Bounds.others``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

_FEW: Final = 16
_STEP: Final = 64
_MOST_BITS: Final = 100_000_000
MOST_VALUES: Final = 1_000
LONGEST: Final = 300
"""Characters of a name, value or URL of the data that are kept."""


class Bounds:
    """The memory in use by all cells, and the counts that were refused because of the bounds."""

    def __init__(self) -> None:
        self.bits = 0
        self.paths = 0
        self.others: Counter[str] = Counter()

    @property
    def crowded(self) -> bool:
        """Return whether the bounds permit no more cells for codes or values."""
        return self.bits > _MOST_BITS


class Cell:
    """Patients who have something, and resources of nobody.

    ``run`` is the last run of data in which it was seen, ``up`` the cell in which it is, ``also`` others to be touched
    with it.
    """

    __slots__ = ("also", "bits", "few", "n", "nobody", "run", "up")

    def __init__(self, up: Cell | None = None) -> None:
        self.run = 0
        self.n = 0
        self.nobody = 0
        self.few: list[int] | None = None
        self.bits: bytearray | None = None
        self.up = up
        self.also: tuple[Cell, ...] = ()

    def add(self, patient: int, bounds: Bounds) -> None:
        """Count a patient who may be counted already."""
        bits = self.bits
        if bits is not None:
            place = patient >> 3
            if place < len(bits):  # nearly always: spared is a call
                bits[place] |= 1 << (patient & 7)
                return
        else:
            few = self.few
            if few is None:
                self.few = [patient]
                return
            if patient in few:
                return
            if len(few) < _FEW:
                few.append(patient)
                return
            bits = self.bits = bytearray()
            self.few = None
            for one in few:
                self._set(bits, one, bounds)
        self._set(bits, patient, bounds)

    @staticmethod
    def _set(bits: bytearray, patient: int, bounds: Bounds) -> None:
        place = patient >> 3
        if place >= len(bits):
            more = place + _STEP + len(bits) // 8 - len(bits)
            bits.extend(bytes(more))
            bounds.bits += more
        bits[place] |= 1 << (patient & 7)

    def has(self, patient: int) -> bool:
        """Return whether a patient was counted with ``add``."""
        if self.bits is None:
            return patient in (self.few or ())
        return patient >> 3 < len(self.bits) and bool(self.bits[patient >> 3] >> (patient & 7) & 1)

    def merge(self, other: Cell, bounds: Bounds) -> None:
        """Count the patients and the resources of another cell, too."""
        self.nobody += other.nobody
        for one in other.few or ():
            self.add(one, bounds)
        if other.bits is not None:
            if self.bits is None:
                few, self.few, self.bits = self.few, None, bytearray()
                for one in few or ():
                    self._set(self.bits, one, bounds)
            mine, theirs = int.from_bytes(self.bits, "little"), int.from_bytes(other.bits, "little")
            size = max(len(self.bits), len(other.bits))
            bounds.bits += size - len(self.bits)
            self.bits = bytearray((mine | theirs).to_bytes(size, "little"))

    @property
    def patients(self) -> int:
        """The number of patients."""
        if self.bits is not None:
            return int.from_bytes(self.bits, "little").bit_count()
        return self.n if self.few is None else len(self.few)


class Values:
    """Values with a cell each; ``other`` is for those that were too many."""

    def __init__(self, bounds: Bounds) -> None:
        self.cells: dict[str, Cell] = {}
        self.other = Cell()
        self._bounds = bounds

    def of(self, value: str) -> Cell:
        """Return the cell of a value."""
        cell = self.cells.get(value)
        if cell is None:
            if len(self.cells) >= MOST_VALUES or self._bounds.crowded or len(value) > LONGEST:
                self._bounds.others["values"] += 1
                return self.other
            cell = self.cells[value] = Cell()
        return cell

    def counts(self, head: str = "") -> dict[str, int]:
        """Patients by value."""
        return {head + value: cell.patients for value, cell in self.cells.items() if cell.patients}


Touch = Callable[[Cell | None], None]


class DataRun:
    """The present run.

    ``number`` tells runs apart; ``patient`` is a serial number, -1 of nobody, ``owner`` that, or one from ``NOBODYS``
    on. While an element is recorded (``references.py``) the number is one of its own, below 0, and ``changing`` says
    that what it does depends on more than how it is spelled.
    """

    __slots__ = ("changing", "number", "owner", "patient", "saved", "touch", "touched")

    def __init__(self) -> None:
        self.number = 0
        self.patient = self.owner = -1
        self.touched: list[Cell] = []
        self.changing = False
        self.saved: list[int] = []
        """What touched cells had as their run, while an element is recorded."""
        self.touch: Final[Touch] = _touching(self)


def _touching(run: DataRun) -> Touch:
    touched, saved = run.touched, run.saved

    def touch(cell: Cell | None) -> None:
        """Count a cell and its parents for the run."""
        number = run.number
        while cell is not None and cell.run != number:
            if number < 0:
                saved.append(cell.run)
            cell.run = number
            touched.append(cell)
            if cell.also:
                for one in cell.also:
                    if one.run != number:
                        if number < 0:
                            saved.append(one.run)
                        one.run = number
                        touched.append(one)
            cell = cell.up

    return touch
