"""Section 9: how much of each attribute of the query is there, before and after the pipeline's steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tasks.release_report.measure.measured import Measured, Path
from tasks.release_report.report.facts import ReportFacts
from tasks.release_report.report.query import element_of

FILLED: Final = "@filled"
"""As many patients have it as before."""
REMOVED: Final = "@removed"
"""Nobody has it any more."""
THINNED: Final = "@thinned"
"""Fewer patients have it than before."""
MASKED: Final = "@masked"
"""What is there says why nothing is there."""
ABSENT: Final = "@absent"
"""Nobody had it before."""
UNKNOWN: Final = "@not-compared"

_REASON: Final = "data-absent-reason)"
"""How the extension ends that says why nothing is there."""


@dataclass(frozen=True)
class Completeness:
    """An attribute of a group: patients that had it in ``import/`` (``None``: not known) and that have it now.

    ``nobodys`` says that it is of no patient, such as a medication's: then the numbers are those of resources.
    """

    group: str
    ref: str
    required: bool
    before: int | None
    after: int
    state: str
    nobodys: bool


def attributes(facts: ReportFacts) -> Iterator[Completeness]:
    """Yield all attributes of the query; none for tables, whose columns are others."""
    imported, leaving = facts.imported, facts.leaving
    if facts.query is None or leaving.tables:
        return
    for group in facts.query.groups:
        for attribute in group.attributes:
            element, count = element_of(attribute.ref), patients_with
            if not count(leaving, element) and not (imported and count(imported, element)):
                count = _resources_with if _is_nobodys(facts, group.type) else patients_with
            before, after = count(imported, element) if imported is not None else None, count(leaving, element)
            state = _state(before, after, masked=_masked(leaving, element))
            nobodys = count is _resources_with
            yield Completeness(group.name, attribute.ref, attribute.required, before, after, state, nobodys)


def patients_with(measured: Measured, element: str) -> int:
    """Return how many patients have an element: exact where counted, else the least known number."""
    if element in measured.elements:
        return measured.elements[element]
    if element in measured.paths:
        return measured.paths[element].patients
    return max((at.patients for at in _inside(measured, element)), default=0)


def _inside(measured: Measured, element: str) -> list[Path]:
    """Return the paths at and below an element."""
    inside = (f"{element}.", f"{element}(", *([element.replace("[x]", "")] if "[x]" in element else []))
    return [at for path, at in measured.paths.items() if path == element or path.startswith(inside)]


def _is_nobodys(facts: ReportFacts, name: str) -> bool:
    """Return whether all resources of a type, now or at the import, belong to no patient."""
    both = [facts.leaving, *([facts.imported] if facts.imported is not None else [])]
    counted = [measured.types[name] for measured in both if name in measured.types]
    return any(one.nobody for one in counted) and not any(one.patients for one in counted)


def _resources_with(measured: Measured, element: str) -> int:
    """Return the least known number of resources without a patient that have an element."""
    return max((at.nobody for at in _inside(measured, element)), default=0)


def _masked(measured: Measured, element: str) -> bool:
    return any(path.startswith(f"{element}.extension(") and _REASON in path for path in measured.paths)


def _state(before: int | None, after: int, *, masked: bool) -> str:
    if masked:
        return MASKED
    if before is None:
        return UNKNOWN
    if before == 0 and after == 0:
        return ABSENT
    if after == 0:
        return REMOVED
    return THINNED if after < before else FILLED
