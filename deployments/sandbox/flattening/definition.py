"""The ViewDefinition document (SQL on FHIR v2), with the keys that the deployed service supports.

Unknown keys are fatal (document 3 §5), and so is a value of another JSON type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Literal

import msgspec

from deployments.sandbox.common.fhirpath import date_time, time_of_day
from deployments.sandbox.flattening.problem import ViewError


class ViewColumnDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One column: ``path`` is evaluated on the element of its clause."""

    name: str
    path: str
    type: str | None = None
    collection: bool | None = None
    description: str | None = None


class SelectDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A select clause."""

    column: tuple[ViewColumnDefinition, ...] = ()
    select: tuple[SelectDefinition, ...] = ()
    union_all: tuple[SelectDefinition, ...] = ()
    for_each: str | None = None
    for_each_or_null: str | None = None
    repeat: tuple[str, ...] = ()


class WhereDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition on the resource."""

    path: str
    description: str | None = None


class ConstantDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """``%name`` in every path; exactly one of the values is present."""

    name: str
    value_base64_binary: str | None = None
    value_boolean: bool | None = None
    value_canonical: str | None = None
    value_code: str | None = None
    value_date: str | None = None
    value_date_time: str | None = None
    value_decimal: Decimal | None = None
    value_id: str | None = None
    value_instant: str | None = None
    value_integer: int | None = None
    value_integer64: int | str | None = None
    value_oid: str | None = None
    value_positive_int: int | None = None
    value_string: str | None = None
    value_time: str | None = None
    value_unsigned_int: int | None = None
    value_uri: str | None = None
    value_url: str | None = None
    value_uuid: str | None = None


class ViewDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A view as sent by the client."""

    resource_type: Literal["https://sql-on-fhir.org/ig/StructureDefinition/ViewDefinition"]
    resource: str
    select: tuple[SelectDefinition, ...]
    name: str | None = None
    status: str | None = None
    constant: tuple[ConstantDefinition, ...] = ()
    where: tuple[WhereDefinition, ...] = ()


_decoder = msgspec.json.Decoder(ViewDefinition)


def read_definition(text: bytes) -> ViewDefinition:
    """Read a ViewDefinition. Raises ``ViewError``."""
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ViewError(str(error)) from None


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
PROVIDED: Mapping[str, str] = {
    "ucum": "http://unitsofmeasure.org",
    "sct": "http://snomed.info/sct",
    "loinc": "http://loinc.org",
}
"""Constants of the FHIRPath specification."""
PER_ELEMENT = frozenset({"context", "resource", "rootResource", "rowIndex"})
"""Variables whose value depends on the evaluated element."""


def read_constants(constants: tuple[ConstantDefinition, ...]) -> dict[str, Any]:
    """Return the constants by name, including those of FHIRPath. Raises ``ViewError``."""
    named: dict[str, Any] = dict(PROVIDED)
    for number, constant in enumerate(constants):
        place = f"constant[{number}]"
        if not _NAME.fullmatch(constant.name):
            raise ViewError(f"{place}: a name must consist of letters, digits and underscores, and begin with a letter")
        if constant.name in named or constant.name in PER_ELEMENT:
            raise ViewError(f"{place}: there is already a constant with the name {constant.name}")
        named[constant.name] = _value(constant, place)
    return named


def _value(constant: ConstantDefinition, place: str) -> Any:
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
    "value_date": date_time,
    "value_date_time": date_time,
    "value_instant": date_time,
    "value_time": time_of_day,
    "value_integer64": _integer64,
    "value_positive_int": _at_least(1),
    "value_unsigned_int": _at_least(0),
}
"""Conversions to the library's types, for types beyond JSON."""
