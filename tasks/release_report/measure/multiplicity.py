"""Section 10: how many resources of a type a patient has.

Bound: the first million patients (2 bytes each and type).
"""

from __future__ import annotations

from array import array
from typing import Final

from tasks.release_report.measure.numbers import quartiles

_COUNTED: Final = 1_000_000
_HIGHEST: Final = 65_535


class Multiplicity:
    """Resources by type, of the run and of each patient."""

    def __init__(self) -> None:
        self.run: dict[str, int] = {}
        self._columns: dict[str, array[int]] = {}

    def end(self, patient: int) -> None:
        """The end of a patient's run."""
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
        """The quartiles by type."""
        middles = {kind: quartiles(sorted(one for one in column if one)) for kind, column in self._columns.items()}
        return {kind: middle for kind, middle in middles.items() if middle is not None}
