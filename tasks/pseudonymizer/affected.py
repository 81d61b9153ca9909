"""How many different patients something was found of, as far as it may be said (document 5, rules 1 and 3)."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final

from tasks.shared.publication import people

_MOST: Final = 1000
"""Patients of a path that are told apart: what must be known is whether there are few."""


class Affected:
    """Hashes of patients by path; thread-safe. Of what an earlier run found it knows only that there was something."""

    def __init__(self) -> None:
        self._patients: defaultdict[str, set[int]] = defaultdict(set)
        self._counted: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, owners: Mapping[str, set[int]]) -> None:
        """The patients of whom something was found in a request, by path."""
        with self._lock:
            for path, patients in owners.items():
                self._counted[path] += len(patients)
                if len(self._patients[path]) < _MOST:
                    self._patients[path] |= patients

    def said(self, path: str, count: int, k: int) -> str:
        """``count``, which is the sum over requests, in words: below ``k`` unless that many different patients were
        seen, and not more than were seen as far as they are known."""
        seen = len(self._patients[path])
        if seen < min(k, _MOST):
            return people(min(count, k - 1), k) if count < k or self._counted[path] == count else "an unknown number of"
        return people(seen if seen < _MOST and self._counted[path] == count else count, k)
