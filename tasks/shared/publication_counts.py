"""Counts of resources, of lines and of a step in a form that a page may show (document 5, R1, R4 and R6).

If each patient has one resource of a type, both numbers are the same, so rounding each figure is not enough. No printed
figure is less than the patients next to it may be, and each total is the sum of its printed parts. Each key of the
details of a step has a rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tasks.shared.publication import (
    ALL,
    COARSE,
    NONE,
    ROUNDED_TO,
    SOME,
    Count,
    cells,
    count,
    flow,
    people,
    possible_range,
    technical,
    words,
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


_PATIENTS: Final = frozenset({"cohort_patients"})
"""Details of a step that are figures around all patients; ``final_patients`` are all of them."""
_STAGES: Final = frozenset({"patient_exclusions"})
"""Details that are patients in disjoint cells."""
_PARTS: Final = frozenset(
    {
        *("resource_exclusions", "resource_inclusions", "types", "unrouted", "left_out", "codes", "severities"),
        *("failed", "surviving_ids", "groups", "findings", "resources_with_findings"),
    }
)
"""Details that are resources of a part of the data; those of the whole are exact (R1)."""
_ODD: Final = frozenset(
    {
        *("issues", "split_bundles", "sent_alone", "deferred", "collapsed", "skipped_entries", "derived_ids"),
        *("resolved_references", "repeated"),
    }
)
"""Details that count the resources, or Bundles, of which something was odd: a part of the data, too."""
_BY_TYPE: Final = frozenset({"types", "unrouted", "left_out", "resource_exclusions", "resource_inclusions"})
"""Those of them that are by type, or by group of the query, which has one type."""
_ROWS: Final = frozenset({"rows", "resources", "with_rows"})
_OF_GROUP: Final = _ROWS | {"batches", "bytes", "parquet_bytes"}
OTHER_TYPES: Final = "other types"


def details(of_step: Mapping[str, Any], k: int, types: Collection[str] = ()) -> dict[str, Any]:
    """Return the counts of a step as a page may show them: R6 for figures of patients, R4 for the stages that removed
    some, R1 for resources by type, by group or by reason, of which each may be another patient's. All else is as it is.

    ``types`` are those that the newest release report of the job prints by name. A step counts no patients by type, so
    all others are "other types", and all of them are before there is a report.
    """
    everyone = of_step.get("final_patients")
    said: dict[str, Any] = {}
    for name, value in of_step.items():
        if name in _PATIENTS and isinstance(value, int):
            figure = flow(everyone, [(name, value)], k)[name] if isinstance(everyone, int) else count(value, k)
            same = figure is not None and figure.word == "all"
            said[name] = value if same else words(figure) if figure is not None else "withheld"
        elif name in _STAGES and isinstance(value, Mapping):
            stages = cells({key: n for key, n in value.items() if isinstance(n, int)}, k)
            total = sum(n for n in value.values() if isinstance(n, int))
            said[name] = {key: _said_of(one, total, k) for key, one in stages.shown.items()}
            if stages.other is not None:
                said[name]["together"] = _said_of(stages.other, total, k)
        else:
            value = _without_types(name, value, types)
            said[name] = _part(value, k) if name in _PARTS or (name in _ODD and isinstance(value, int)) else value
    return said


def _without_types(name: str, value: Any, types: Collection[str]) -> Any:
    """Return counts by type, with those not among ``types`` added up; by reason if there are reasons."""
    if name == "groups" and isinstance(value, list):
        return [_group(row, types) if isinstance(row, Mapping) else row for row in value]
    if name not in _BY_TYPE or not isinstance(value, Mapping):
        return value
    others = [number for kind, number in value.items() if kind not in types]
    shown = {kind: number for kind, number in value.items() if kind in types}
    return shown | ({OTHER_TYPES: _added(others)} if others else {})


def _group(row: Mapping[str, Any], types: Collection[str]) -> Mapping[str, Any]:
    """Return a group of the flattening with its figures if its table is printed by name or has no data of patients."""
    printed = str(row.get("file", "")).partition(".")[0] in types or not any(row.get(name) for name in _ROWS)
    return row if printed else {name: value for name, value in row.items() if name not in _OF_GROUP}


def _added(numbers: Sequence[Any]) -> Any:
    if not any(isinstance(one, Mapping) for one in numbers):
        return sum(numbers)
    reasons: Counter[str] = Counter()
    for one in numbers:
        reasons.update(one if isinstance(one, Mapping) else {})
    return dict(reasons)


def _said_of(one: Count, total: int, k: int) -> str:
    """Return a cell of a total that is not shown; "all" becomes the total."""
    return people(total, k) if one.word == "all" else words(one)


def _part(value: Any, k: int, name: str = "") -> Any:
    if isinstance(value, Mapping):
        rows = not name and "group" in value
        return {key: each if rows and key not in _ROWS else _part(each, k, str(key)) for key, each in value.items()}
    if isinstance(value, list):
        return [_part(each, k) for each in value]
    return people(value, k) if isinstance(value, int) and not isinstance(value, bool) else value
