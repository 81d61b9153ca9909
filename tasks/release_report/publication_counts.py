"""Counts of resources and of lines in a form that a page may show (document 5, R1, R4 and R6).

If each patient has one resource of a type, both numbers are the same, so rounding each figure is not enough. No printed
figure is less than the patients next to it may be, and each total is the sum of its printed parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tasks.release_report.publication import (
    ALL,
    COARSE,
    NONE,
    ROUNDED_TO,
    SOME,
    Count,
    count,
    possible_range,
    technical,
)


@dataclass(frozen=True)
class ResourcesOfType:
    """Resources of one type, or of "other types", as R1 prints them: all, those without a patient, and the patients."""

    resources: int
    nobody: int
    patients: Count


_UNSHARED: Final = frozenset({"fewer", "some"})
"""Counts of a type that may be fewer than ``k`` patients."""

Types = Mapping[str, tuple[int, int, int]]
"""Exact numbers by type: resources of patients, these patients, resources without a patient."""


def least_beside(said: Count, of: int | None) -> int:
    """Return the least number that may be printed next to a count for resources of these patients, or for patients at
    an earlier step.

    This is the most that a small count, or one with a small complement, may mean. A lower number would reveal the
    count: 17 resources of all but fewer than 5 of 21 patients.
    """
    if said.word in ("some", "all_but_fewer"):
        return (of or 1) - 1
    return {"fewer": (said.number or 1) - 1, "all": of or 0}.get(said.word, 0)


def by_type(
    columns: Sequence[Types], k: int, *, of: Sequence[int | None], recipient: bool = False
) -> tuple[list[dict[str, ResourcesOfType]], list[ResourcesOfType] | None]:
    """Return resources and patients by type, and those of "other types" where there are any (R1).

    ``columns`` are the step that the report is about and those before it, ``of`` the number of patients of each, or
    ``None`` where it is not printed. The results are by step, with the same types for each.

    Types of fewer than ``k`` patients at any step (of fewer than 50 resources, in the recipient's copy) are "other
    types" at each, and the smallest published ones with them, which have ``k``, at each step where none of them has:
    a type removed later hides nothing there. Types whose resources have no patient have 0 patients, and are shown.
    """
    steps = range(len(columns))
    names = sorted({name for column in columns for name in column})
    table = {
        name: _figures([column.get(name, (0, 0, 0)) for column in columns], k, of, rounded=recipient) for name in names
    }
    small = {name for name in names if any(one.said.word in _UNSHARED or 0 < one.patients < k for one in table[name])}
    if recipient:
        small |= {name for name in names if any(0 < one.own + one.nobody < COARSE for one in table[name])}
    for at in steps:
        hidden = {table[name][at].said.word for name in small} - {"none"}
        if hidden and hidden <= _UNSHARED:
            others_ = (table[name][at] for name in names if name not in small)
            least = min((one for one in others_ if one.patients >= k), key=lambda one: one.patients, default=None)
            small |= {name for name in names if least is not None and table[name][at].said == least.said}
    large = [name for name in names if name not in small]
    shown = [{name: table[name][at].published(recipient=recipient) for name in large} for at in steps]
    if not small:
        return shown, None
    others = []
    for at in steps:
        resources = sum(table[name][at].own + table[name][at].nobody for name in small)
        most = max(table[name][at].patients for name in small)
        # Of how many patients all of them are is not known, only that it is as many as of one of them.
        everybody_s = most >= (of[at] or most + 1)
        others.append(
            ResourcesOfType(
                technical(resources, recipient=recipient), 0, ALL if everybody_s else SOME if most else NONE
            )
        )
    return shown, others


@dataclass(frozen=True)
class _Figures:
    """One type at one step: exact and printed patients, and resources with and without a patient."""

    patients: int
    said: Count
    own: int
    nobody: int

    def published(self, *, recipient: bool) -> ResourcesOfType:
        nobody = technical(self.nobody, recipient=recipient)
        return ResourcesOfType(technical(self.own, recipient=recipient) + nobody, nobody, self.said)


def _figures(
    steps: Sequence[tuple[int, int, int]], k: int, of: Sequence[int | None], *, rounded: bool
) -> list[_Figures]:
    """Return one type at each step, with no fewer resources than the patients may be, and no fewer before than now."""
    found: list[_Figures] = []
    for (own, patients, nobody), everyone in zip(steps, of, strict=True):
        said = count(patients, k, of=everyone, rounded=rounded)
        least = 0
        if found:
            now = found[0]
            said, least = count_before(patients, k, of=everyone, now=now.said, of_now=of[0] or 0, rounded=rounded)
        most = possible_range(everyone, k, rounded=rounded)[1] if everyone is not None else None
        found.append(_Figures(patients, said, max(own, least, least_beside(said, most)) if own else 0, nobody))
    return found


def count_before(
    patients: int, k: int, *, of: int | None, now: Count, of_now: int, rounded: bool = False
) -> tuple[Count, int]:
    """Return the patients at an earlier step, of whom ``now`` are left, and the least to print next to them.

    They are not printed as fewer than ``now`` may mean, unless there are more patients now.
    """
    same = of == of_now
    least = least_beside(now, of_now if same else possible_range(of_now, k, rounded=rounded)[1])
    least = least if patients and (of is None or of >= of_now) else 0
    return count(max(patients, least), k, of=of, rounded=rounded), least


def parted(total: int, weights: Sequence[int], *, recipient: bool = False) -> list[int]:
    """Divide a printed total in proportion to ``weights`` (R1): rounded parts, of which the largest takes the rest.

    The parts reveal nothing about the exact total. Their sum is the total to print next to them; it differs from
    ``total`` only if that is less than a rounded part for each.
    """
    whole = sum(weights)
    if not whole:
        return [0 for _ in weights]
    parts = [technical(total * weight // whole, recipient=recipient) for weight in weights]
    largest = weights.index(max(weights))
    parts[largest] = max(parts[largest] + total - sum(parts), COARSE if recipient else ROUNDED_TO)
    return parts
