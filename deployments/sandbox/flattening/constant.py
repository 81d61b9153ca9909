"""Constants of a view as FHIRPath sees them: ``%name``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from fhirpathpy.engine.nodes import FP_DateTime, FP_Time

from deployments.sandbox.flattening.definition import Constant
from deployments.sandbox.flattening.problem import ViewError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
PROVIDED: Mapping[str, str] = {
    "ucum": "http://unitsofmeasure.org",
    "sct": "http://snomed.info/sct",
    "loinc": "http://loinc.org",
}
"""Constants of the FHIRPath specification."""
PER_ELEMENT = frozenset({"context", "resource", "rootResource", "rowIndex"})
"""Variables whose value depends on where an expression is evaluated."""

_date_time: Callable[[str], object] = FP_DateTime
_time: Callable[[str], object] = FP_Time


def read_constants(constants: tuple[Constant, ...]) -> dict[str, Any]:
    """Name → value, those of FHIRPath included. Raises ``ViewError``."""
    named: dict[str, Any] = dict(PROVIDED)
    for number, constant in enumerate(constants):
        place = f"constant[{number}]"
        if not _NAME.fullmatch(constant.name):
            raise ViewError(f"{place}: a name has letters, digits and underscores, and begins with a letter")
        if constant.name in named or constant.name in PER_ELEMENT:
            raise ViewError(f"{place}: there is already a constant with the name {constant.name}")
        named[constant.name] = _value(constant, place)
    return named


def _value(constant: Constant, place: str) -> Any:
    given = msgspec.structs.asdict(constant)
    del given["name"]
    values = {key: value for key, value in given.items() if value is not None}
    if len(values) != 1:
        raise ViewError(f"{place}: {constant.name} has {len(values)} values instead of one")
    ((kind, value),) = values.items()
    read = _READ.get(kind, lambda same: same)(value)
    if read is None:
        raise ViewError(f"{place}: {constant.name} is not of its type")
    return read


def _integer64(value: int | str) -> int | None:
    try:
        return int(value)
    except ValueError:
        return None


def _at_least(least: int) -> Callable[[int], int | None]:
    return lambda value: value if value >= least else None


_READ: Mapping[str, Callable[[Any], Any]] = {
    "value_date": _date_time,
    "value_date_time": _date_time,
    "value_instant": _date_time,
    "value_time": _time,
    "value_integer64": _integer64,
    "value_positive_int": _at_least(1),
    "value_unsigned_int": _at_least(0),
}
"""How the library wants the types that are more than JSON."""
