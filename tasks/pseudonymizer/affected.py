"""Count findings by path and put the numbers of different patients into words, as far as they may be published
(document 5, rules 1 and 3)."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tasks.pseudonymizer.identity import IdentityMap
from tasks.shared.publication import people

FOUND: Final = "residual "
KEPT: Final = "kept "
_SHOWN: Final = 20
_MOST: Final = 1000
"""Patients of a path that are told apart: what must be known is whether there are few."""


class Affected:
    """Hashes of patients by path, which ``identities`` keeps as it does those of ids; thread-safe.

    It begins with those that it has kept of the keys in ``counts``. Of what a complete step found it knows only that
    there was something.
    """

    def __init__(self, identities: IdentityMap | None = None, counts: Iterable[str] = ()) -> None:
        self._identities = identities or IdentityMap()
        self._patients: defaultdict[str, set[int]] = defaultdict(set)
        self._counted: Counter[str] = Counter()
        self._lock = threading.Lock()
        for path, patient in self._identities.noted(key for key in counts if key.startswith((FOUND, KEPT))):
            self._counted[path] += 1
            if len(self._patients[path]) < _MOST:
                self._patients[path].add(patient)

    def add(self, owners: Mapping[str, set[int]]) -> None:
        """Add the patients of a request with findings, by path."""
        with self._lock:
            for path, patients in owners.items():
                self._counted[path] += len(patients)
                if len(self._patients[path]) < _MOST:
                    self._patients[path].update(self._identities.note(path, patients))

    def in_words(self, path: str, count: int, k: int) -> str:
        """``count``, which is the sum over requests, in words: below ``k`` unless that many different patients were
        seen, and not more than were seen as far as they are known."""
        seen, all_known = len(self._patients[path]), self._counted[path] >= count
        if seen < min(k, _MOST):
            return people(min(count, k - 1), k) if count < k or all_known else "an unknown number of"
        return people(min(seen, count) if seen < _MOST and all_known else count, k)


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
