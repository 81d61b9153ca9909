"""Which resource became which: no answer may hold one of another request (document 3 §4).

What a service does to an id is its secret, but two resources never get one id. So an id that comes back for another
resource than before was mixed up on the way: by the service, or by something between it and us. So were two resources
that got each other's ids: whatever keeps ids gives each its own. Numbers may be the exception: a service that counts
its pseudonyms gives 1 for 2 and 2 for 1.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from tasks.pseudonymizer.answer_check import ResourceSummary

REMEMBERED = 50_000
"""Resources; twice as many are in memory at most, some 10 MB. Mixed up is what is under way at the same time."""


class Origins:
    """Hashes of the ids that were sent, by those that came back for them. Thread-safe."""

    def __init__(self) -> None:
        self._now: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._refused = False
        """What is known is then also of answers that were refused: knowing a pair is no proof."""
        self._lock = threading.Lock()

    def agree(self, given: ResourceSummary, received: ResourceSummary) -> bool:
        """Whether each resource that came back has an id that no other one has got, and no two have changed theirs;
        the two have the same types in the same order. A resource without an id tells nothing."""
        kinds, olds, news = given.types, given.ids, received.ids
        if not given.is_bundle:
            kinds, olds, news = [given.type], [given.id], [received.id]
        found = list(zip(_hashes(kinds, news), _hashes(kinds, olds), strict=True))
        if not (all(olds) and all(news)):
            found = [pair for pair, old, new in zip(found, olds, news, strict=True) if new and old]
        fresh = dict(found)
        changed = {new: old for new, old in found if new != old}
        with self._lock:
            now, before = self._now, self._before
            alone = [
                known.isdisjoint(fresh.values()) and known.isdisjoint(fresh) for known in (now.keys(), before.keys())
            ]
            if len(fresh) == len(found) and all(alone) and changed.keys().isdisjoint(changed.values()):
                now.update(fresh)  # nearly always
            elif self._refused or len(fresh) != len(found) or not fresh.items() <= now.items():
                decimal = [new if new and new.isdecimal() else None for new in news]
                numbers = set(_hashes(kinds, decimal))
                for new, old in found:
                    other = now.setdefault(new, before.get(new, old)) != old
                    if other or (new != old and new not in numbers and now.get(old, before.get(old)) == new):
                        self._refused = True
                        return False
            if len(now) > REMEMBERED:
                self._now, self._before = {}, now
        return True

    def belong(self, given: ResourceSummary, received: ResourceSummary) -> bool:
        """As ``agree`` where entries are missing: no id that is known is one of another request."""
        old = {hash(pair) for pair in zip(given.types, given.ids, strict=True)}
        with self._lock:
            known = (
                self._now.get(new, self._before.get(new))
                for new in map(hash, zip(received.types, received.ids, strict=True))
            )
            return all(one is None or one in old for one in known)


def _hashes(kinds: Iterable[str | None], ids: Iterable[str | None]) -> Iterator[int]:
    return map(hash, zip(kinds, ids, strict=True))
