"""Counts of a step in a form that a page may show (document 5, R1, R4 and R6): each key of its details has a rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from tasks.shared.publication import Count, cells, count, flow, people, words

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
