"""Count findings by path and put the numbers of different patients into words, as far as they may be published
(document 5, rules 1 and 3)."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Final

from tasks.shared.publication import people

FOUND: Final = "residual "
KEPT: Final = "kept "
_SHOWN: Final = 20
_MOST: Final = 1000
"""Patients of a path that are told apart: what must be known is whether there are few."""


class Affected:
    """Hashes of patients by path; thread-safe. Of what an earlier run found it knows only that there was something."""

    def __init__(self) -> None:
        self._patients: defaultdict[str, set[int]] = defaultdict(set)
        self._counted: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, owners: Mapping[str, set[int]]) -> None:
        """Add the patients of a request with findings, by path."""
        with self._lock:
            for path, patients in owners.items():
                self._counted[path] += len(patients)
                if len(self._patients[path]) < _MOST:
                    self._patients[path] |= patients

    def in_words(self, path: str, count: int, k: int) -> str:
        """``count``, which is the sum over requests, in words: below ``k`` unless that many different patients were
        seen, and not more than were seen as far as they are known."""
        seen = len(self._patients[path])
        if seen < min(k, _MOST):
            return people(min(count, k - 1), k) if count < k or self._counted[path] == count else "an unknown number of"
        return people(seen if seen < _MOST and self._counted[path] == count else count, k)


def paths_of(counts: Mapping[str, int], *, kept: bool = False) -> dict[str, int]:
    """Return the number of patients with a finding at each path, in the order of the paths."""
    head = KEPT if kept else FOUND
    return {key.removeprefix(head): counts[key] for key in sorted(counts) if key.startswith(head) and counts[key]}


def worded(counts: Mapping[str, int], say: Callable[[str, int], str], *, kept: bool = False) -> dict[str, str]:
    """Return the first paths with their number of patients in words; ``say`` words the count under a key."""
    paths, head = paths_of(counts, kept=kept), KEPT if kept else FOUND
    said = {path: f"{say(head + path, count)} patients" for path, count in [*paths.items()][:_SHOWN]}
    more = len(paths) - len(said)
    return said | ({f"and {more} more paths": ""} if more > 0 else {})
