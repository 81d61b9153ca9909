"""Section 7c: paths whose values are one a patient.

Bound: 4 million patients times paths (``one_each``).
"""

from __future__ import annotations

from array import array
from typing import Final

from tasks.release_report.measure.cells import Bounds

_TRACKED: Final = 4_000_000
"""Patients times paths of which values are compared to find those that are one a patient (8 bytes each)."""
_SHARED: Final = 512


class OneEach:
    """Whether every patient has one value of her own, and nobody shares one (7c): a hash a patient."""

    __slots__ = ("_bounds", "_first", "hashes")

    def __init__(self, bounds: Bounds) -> None:
        self.hashes = array("q")
        self._first: set[int] = set()
        self._bounds = bounds

    def add(self, patient: int, value: int) -> bool:
        """Take in a value; whether it may still be so."""
        hashes = self.hashes
        if patient >= len(hashes):
            more = patient + 1 - len(hashes) + len(hashes) // 4
            if self._bounds.tracked + more > _TRACKED:
                self._bounds.others["one_each"] += 1
                return False
            self._bounds.tracked += more
            hashes.frombytes(bytes(8 * more))
        old = hashes[patient]
        if old:
            return old == value
        first = self._first
        if len(first) < _SHARED:
            if value in first:
                return False
            first.add(value)
        hashes[patient] = value
        return True

    def drop(self) -> None:
        """Give the room back."""
        self._bounds.tracked -= len(self.hashes)

    def holds(self, patients: int) -> bool:
        """Whether so many patients have one, and no two share it; in parts, so that memory is that of a sixteenth."""
        if len(self.hashes) - self.hashes.count(0) != patients:
            return False  # not all of them texts
        for part in range(16):
            some = [one for one in self.hashes if one and one & 15 == part]
            if len(set(some)) < len(some):
                return False
        return True
