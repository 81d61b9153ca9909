"""The ViewDefinition as a document (SQL on FHIR v2), with the keys that the deployed service knows.

Unknown keys are fatal (document 3 §5), and so is a value of another JSON type.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

import msgspec

from deployments.sandbox.flattening.problem import ViewError

RESOURCE_TYPE = "https://sql-on-fhir.org/ig/StructureDefinition/ViewDefinition"


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One column: ``path`` is evaluated on the element that its clause is about."""

    name: str
    path: str
    type: str | None = None
    collection: bool | None = None
    description: str | None = None


class Select(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A select clause."""

    column: tuple[Column, ...] = ()
    select: tuple[Select, ...] = ()
    union_all: tuple[Select, ...] = ()
    for_each: str | None = None
    for_each_or_null: str | None = None
    repeat: tuple[str, ...] = ()


class Where(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition on the resource."""

    path: str
    description: str | None = None


class Constant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """``%name`` in every path; one of the values is given."""

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
    """A view, as it was sent."""

    resource_type: Literal["https://sql-on-fhir.org/ig/StructureDefinition/ViewDefinition"]
    resource: str
    select: tuple[Select, ...]
    name: str | None = None
    status: str | None = None
    constant: tuple[Constant, ...] = ()
    where: tuple[Where, ...] = ()


_decoder = msgspec.json.Decoder(ViewDefinition)


def read_definition(text: bytes) -> ViewDefinition:
    """Read a ViewDefinition. Raises ``ViewError``."""
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ViewError(str(error)) from None
