"""R1: the unit is the patient. The run of data that the pass is in, and whose they are.

A run is what stands together of one patient, or one resource of nobody. A cell that is touched in a run is counted when
the run ends: once, however often it was met.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tasks.release_report.measure.cells import Cell

Touch = Callable[[Cell | None], None]


class Run:
    """The present run.

    ``number`` tells runs apart; ``patient`` is a serial number, -1 of nobody, ``owner`` that, or one from ``NOBODYS``
    on. While an element is recorded (``spelled.py``) the number is one of its own, below 0, and ``changing`` says that
    what it does depends on more than how it is spelled.
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


def _touching(run: Run) -> Touch:
    touched, saved = run.touched, run.saved

    def touch(cell: Cell | None) -> None:
        """A cell, and those above and beside it, for the run."""
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
