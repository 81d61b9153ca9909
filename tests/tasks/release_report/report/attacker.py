"""Numbers that a reader can derive from a report: a small solver over whole numbers.

An unknown is a number of patients with the values it may have; sums and orders tie them together. ``told`` says which
unknowns have one value only. Values are bits of a number: bit 3 is set where it may be 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Domains = dict[str, int]
Links = dict[str, list[tuple[tuple[str, ...], str, bool]]]


def bits(values: Iterable[int]) -> int:
    """Return the set of these values."""
    found = 0
    for value in values:
        found |= 1 << value
    return found


def least(domain: int) -> int:
    """Return the smallest value."""
    return (domain & -domain).bit_length() - 1


def most(domain: int) -> int:
    """Return the largest value."""
    return domain.bit_length() - 1


def between(low: int, high: int) -> int:
    """Return all values from one to the other."""
    low = max(low, 0)
    return ((1 << (high - low + 1)) - 1) << low if high >= low else 0


@dataclass
class Puzzle:
    """Unknowns with their values; ``sums`` are (parts, whole), ``orders`` (at most, than)."""

    domains: Domains = field(default_factory=dict)
    sums: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    orders: list[tuple[str, str]] = field(default_factory=list)
    truth: dict[str, int] = field(default_factory=dict)

    def unknown(self, name: str, values: Iterable[int], truth: int) -> None:
        """Add an unknown, or know more of it."""
        found = bits(values)
        assert found >> truth & 1, f"{name} is {truth}, and what is said does not allow it"
        self.domains[name] = self.domains.get(name, found) & found
        self.truth[name] = truth

    def never(self, name: str, values: Iterable[int]) -> None:
        """Exclude values that are impossible in any case."""
        self.domains[name] &= ~bits(values)

    def revealed(self, k: int) -> list[str]:
        """Return the unknowns of which one of 1 to k - 1 is the only value that fits everything."""
        return self.only(*(name for name, truth in self.truth.items() if 0 < truth < k))

    def only(self, *names: str) -> list[str]:
        """Return those of these unknowns that have one value which fits everything."""
        search = _Search(dict(self.domains), self._links(), self.truth)
        assert search.narrow(self.domains)
        search.changes.clear()
        return [name for name in names if not search.other_value(name)]

    def _links(self) -> Links:
        links: Links = {name: [] for name in self.domains}
        for parts, whole in self.sums:
            for name in (*parts, whole):
                links[name].append((parts, whole, True))
        for small, large in self.orders:
            for name in (small, large):
                links[name].append(((small,), large, False))
        return links


class _Search:
    """Search for values that fit, with backtracking."""

    def __init__(self, domains: Domains, links: Links, truth: dict[str, int]) -> None:
        self.domains, self.links, self.truth = domains, links, truth
        self.changes: list[tuple[str, int]] = []
        self.tries = 0

    def other_value(self, name: str) -> bool:
        """Return whether everything fits with another value than the true one."""
        truth, domain = self.truth[name], self.domains[name]
        others = [value for value in range(most(domain) + 1) if domain >> value & 1 and value != truth]
        for value in sorted(others, key=lambda one: abs(one - truth)):
            before, self.tries = len(self.changes), _TRIES
            fits = self._try(name, value)
            self._back(before)
            if fits:
                return True
        return False

    def _try(self, name: str, value: int) -> bool:
        """Return whether the values fit. Only changes are checked: the truth fits with the rest unchanged."""
        self.tries -= 1
        self._set(name, 1 << value)
        if self.tries < 0 or not self.narrow([name]):
            return False
        # The truth of all others fits but where a sum or an order says otherwise now.
        open_ = next((one for one in self._broken()), None)
        if open_ is None:
            return True
        domain = self.domains[open_]
        values = [each for each in range(most(domain) + 1) if domain >> each & 1]
        for each in sorted(values, key=lambda one: abs(one - self.truth[open_])):
            before = len(self.changes)
            if self._try(open_, each):
                return True
            self._back(before)
        return False

    def _value(self, name: str) -> int:
        """Return the truth, or the possible value nearest to it."""
        domain, truth = self.domains[name], self.truth[name]
        if domain >> truth & 1:
            return truth
        return min((each for each in range(most(domain) + 1) if domain >> each & 1), key=lambda one: abs(one - truth))

    def _broken(self) -> Iterator[str]:
        """Unknowns that are open, in sums and orders that do not fit with the values that are taken for them."""
        for touched in dict.fromkeys(name for name, _ in self.changes):
            for parts, whole, exact in self.links[touched]:
                total, of = sum(map(self._value, parts)), self._value(whole)
                if total != of if exact else total > of:
                    yield from (one for one in (*parts, whole) if self.domains[one] & (self.domains[one] - 1))

    def narrow(self, names: Iterable[str]) -> bool:
        """Bounds of sums and orders, until nothing changes; ``False`` when nothing fits."""
        queue = list(names)
        while queue:
            for parts, whole, exact in self.links[queue.pop()]:
                for name, kept in _bounds(self.domains, parts, whole, exact=exact):
                    if not kept:
                        return False
                    if kept != self.domains[name]:
                        self._set(name, kept)
                        queue.append(name)
        return True

    def _set(self, name: str, domain: int) -> None:
        self.changes.append((name, self.domains[name]))
        self.domains[name] = domain

    def _back(self, before: int) -> None:
        while len(self.changes) > before:
            name, domain = self.changes.pop()
            self.domains[name] = domain


_TRIES = 10_000
"""Values that are tried before it is taken for told: then a number may seem to be told that is not."""


def _bounds(domains: Domains, parts: tuple[str, ...], whole: str, *, exact: bool) -> Iterable[tuple[str, int]]:
    low, high = sum(least(domains[one]) for one in parts), sum(most(domains[one]) for one in parts)
    top = most(domains[whole])
    yield whole, domains[whole] & between(low, high if exact else top)
    bottom, top = least(domains[whole]), most(domains[whole])
    for one in parts:
        its_low, its_high = least(domains[one]), most(domains[one])
        floor = bottom - (high - its_high) if exact else 0
        yield one, domains[one] & between(floor, top - (low - its_low))
