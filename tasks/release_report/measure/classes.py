"""Section 8: patients by birth year, sex and region; ``tasks/release_report/report/risk.py`` says what follows.

Bound: 50,000 classes (``classes``).
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from tasks.release_report.measure.cells import Bounds

_MOST_CLASSES: Final = 50_000


class Classes:
    """Each patient is in the class of the first resource that says something of her. ``region`` is how many signs of a
    postal code make one."""

    def __init__(self, bounds: Bounds, region: int) -> None:
        self.patients: Counter[tuple[str, str, str]] = Counter()
        self._classed = bytearray()
        self._bounds = bounds
        self._region = region

    def take(self, patient: int, birth: str, said: dict[str, Any]) -> None:
        """What a resource says of a patient."""
        place = patient >> 3
        if place >= len(self._classed):
            self._classed.extend(bytes(place + 64 - len(self._classed)))
        if self._classed[place] >> (patient & 7) & 1:
            return
        self._classed[place] |= 1 << (patient & 7)
        sex = said.get("gender")
        found = (birth[:4], sex if isinstance(sex, str) else "", _region(said, self._region))
        if found in self.patients or len(self.patients) < _MOST_CLASSES:
            self.patients[found] += 1
        else:
            self._bounds.others["classes"] += 1


def _region(patient: dict[str, Any], size: int) -> str:
    addresses = patient.get("address")
    for one in addresses if isinstance(addresses, list) else [addresses]:
        code = one.get("postalCode") if isinstance(one, dict) else None
        if isinstance(code, str) and code:
            return code[:size]
    return ""
