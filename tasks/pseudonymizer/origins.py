"""Which resource became which: no answer may hold one of another request (document 3 §4).

What a service does to an id is its secret, but two resources never get one id. So an id that comes back for another
resource than before was mixed up on the way: by the service, or by something between it and us.
"""

from __future__ import annotations

import threading

from tasks.pseudonymizer.answer_check import ResourceSummary

REMEMBERED = 50_000
"""Resources; twice as many are in memory at most, some 10 MB. Mixed up is what is under way at the same time."""


class Origins:
    """Hashes of the ids that were sent, by those that came back for them. Thread-safe."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._now: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._lock = threading.Lock()

    def agree(self, given: ResourceSummary, received: ResourceSummary) -> bool:
        """Whether each resource that came back has an id that no other resource has got; the two have the same types in
        the same order. A resource without an id tells nothing."""
        pairs = [(given.type, given.id, received.id)]
        if received.is_bundle:
            pairs = list(zip(map(str, given.types), given.ids, received.ids, strict=True))
        found = [(hash((kind, new)), hash((kind, old))) for kind, old, new in pairs if new and old]
        with self._lock:
            now, before = self._now, self._before
            for new, old in found:
                if now.setdefault(new, before.get(new, old)) != old:
                    return False
            if len(now) > self._remembered:
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
