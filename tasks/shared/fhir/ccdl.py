"""The CCDL, the cohort query: the structure of its criteria (document 3 §3).

``inclusionCriteria`` is an AND of ORs, ``exclusionCriteria`` an OR of ANDs; whether a server knows the codes is for
the server to say.
"""

from __future__ import annotations

from typing import Any

from tasks.shared.structure import Structure

COMPARATORS = ("gt", "ge", "lt", "le", "eq")
VALUE_FILTERS = ("concept", "quantity-comparator", "quantity-range")
ATTRIBUTE_FILTERS = (*VALUE_FILTERS, "reference")


def check_cohort(structure: Structure, cohort: dict[str, Any] | None, where: str) -> None:
    """Note everything that is wrong with a cohort definition."""
    if cohort is None:
        return
    structure.version(cohort, where, {"2"}, reference="crtdl-version")
    _check_rows(structure, structure.list(cohort, "inclusionCriteria", where), f"{where}.inclusionCriteria")
    rows = structure.list(cohort, "exclusionCriteria", where, required=False)
    _check_rows(structure, rows, f"{where}.exclusionCriteria")


def _check_rows(structure: Structure, rows: list[Any], where: str) -> None:
    for number, row in enumerate(rows):
        place = f"{where}[{number}]"
        if not isinstance(row, list):
            structure.wrong(place, "must be a list of criteria")
        elif not row:
            structure.wrong(place, "must have at least 1 entry")
        else:
            for index, criterion in enumerate(row):
                _check_criterion(structure, criterion, f"{place}[{index}]")


def _check_criterion(structure: Structure, criterion: Any, where: str) -> None:
    if not structure.is_object(criterion, where):
        return
    context = structure.object(criterion, "context", where)
    if context is not None:
        structure.coding(context, f"{where}.context")
    structure.codings(criterion, "termCodes", where)
    value = structure.object(criterion, "valueFilter", where, required=False)
    if value is not None:
        _check_filter(structure, value, f"{where}.valueFilter", VALUE_FILTERS)
    for number, entry in enumerate(structure.list(criterion, "attributeFilters", where, required=False)):
        place = f"{where}.attributeFilters[{number}]"
        if structure.is_object(entry, place):
            code = structure.object(entry, "attributeCode", place)
            if code is not None:
                structure.coding(code, f"{place}.attributeCode")
            _check_filter(structure, entry, place, ATTRIBUTE_FILTERS)
    restriction = structure.object(criterion, "timeRestriction", where, required=False)
    if restriction is not None:
        structure.period(restriction, "afterDate", "beforeDate", f"{where}.timeRestriction")


def _check_filter(structure: Structure, entry: dict[str, Any], where: str, kinds: tuple[str, ...]) -> None:
    match structure.choice(entry, "type", where, kinds):
        case "concept":
            structure.codings(entry, "selectedConcepts", where)
        case "quantity-comparator":
            structure.choice(entry, "comparator", where, COMPARATORS)
            structure.number(entry, "value", where)
            _check_unit(structure, entry, where)
        case "quantity-range":
            least = structure.number(entry, "minValue", where)
            most = structure.number(entry, "maxValue", where)
            if least is not None and most is not None and most < least:
                structure.wrong(where, "maxValue is below minValue")
            _check_unit(structure, entry, where)
        case "reference":
            for number, criterion in enumerate(structure.list(entry, "criteria", where, at_least=1)):
                _check_criterion(structure, criterion, f"{where}.criteria[{number}]")


def _check_unit(structure: Structure, entry: dict[str, Any], where: str) -> None:
    unit = structure.object(entry, "unit", where, required=False)
    if unit is not None:
        structure.text(unit, "code", f"{where}.unit")
