"""How many different patients something was found of, as far as it may be said (document 5, rules 1 and 3)."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from tasks.pseudonymizer.answer_check import ResourceSummary
from tasks.shared.publication import people

_MOST: Final = 1000
"""Patients of a path that are told apart: what must be known is whether there are few."""


class Affected:
    """Hashes of patients by path; thread-safe. Of what an earlier run found it knows nothing, and says "fewer"."""

    def __init__(self) -> None:
        self._patients: defaultdict[str, set[int]] = defaultdict(set)
        self._lock = threading.Lock()

    def add(self, paths: Iterable[str], given: ResourceSummary) -> None:
        """The patients of a request, in which something was found at ``paths``."""
        names = list(paths)
        if not names:
            return
        pairs = zip(given.types, given.ids, strict=False) if given.is_bundle else [(given.type, given.id)]
        ids = {hash(identity) for kind, identity in pairs if kind == "Patient"} or {hash(given.id)}
        with self._lock:
            for name in names:
                patients = self._patients[name.partition(" ")[2]]
                if len(patients) < _MOST:
                    patients |= ids

    def said(self, path: str, count: int, k: int) -> str:
        """``count`` in words: below ``k`` unless that many different patients were seen."""
        return people(count if len(self._patients[path]) >= min(k, _MOST) else min(count, k - 1), k)
