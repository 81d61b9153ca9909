"""The elements that identify a person, and their values: one list for the leak check and the release report.

Persons are Patient, RelatedPerson, Person and Practitioner, also contained ones. Names of Organizations, Locations,
Medications and Devices identify nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

PERSONS: Final = frozenset({"Patient", "RelatedPerson", "Person", "Practitioner"})


class Kind(StrEnum):
    """Kind of an identifying value."""

    NAME = "name"
    TELECOM = "telecom"
    ADDRESS = "address"
    PLACE = "place"
    """City, district, postal code: part of an address that many people share."""
    IDENTIFIER = "identifier"
    NARRATIVE = "narrative"
    PHOTO = "photo"
    BIRTH_DATE = "birth date"


class Identifying(NamedTuple):
    """One identifying value. ``path`` begins with the resource type, without indexes; identifiers have a ``system``."""

    path: str
    kind: Kind
    value: str
    system: str = ""


ELEMENTS: Final = {
    "name": Kind.NAME, "telecom": Kind.TELECOM, "address": Kind.ADDRESS, "identifier": Kind.IDENTIFIER,
    "text": Kind.NARRATIVE, "photo": Kind.PHOTO, "birthDate": Kind.BIRTH_DATE,
}  # fmt: skip
NO_VALUES: Final = frozenset(
    {
        "use", "type", "period", "url", "system", "id", "rank", "contentType", "status", "assigner",
        "valueCode", "valueCoding",
    }
)  # fmt: skip
"""Elements that hold codes. ``unknown`` in place of a name (data-absent-reason) also occurs in many other elements."""
SHARED_PLACES: Final = frozenset({"city", "district", "state", "postalCode", "country"})
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")


def identifying(resource: Mapping[str, Any]) -> Iterator[Identifying]:
    """Yield the identifying values of a resource that is a person, and of the persons contained in any resource."""
    kind = resource.get("resourceType")
    path = str(kind)
    if kind in PERSONS:
        yield from _person(resource, path)
    for contained in _objects(resource.get("contained")):
        for found in identifying(contained):
            yield found._replace(path=f"{path}.contained.{found.path}")


def _person(node: Mapping[str, Any], path: str) -> Iterator[Identifying]:
    for key, value in node.items():
        kind = ELEMENTS.get(key.removeprefix("_"))
        if key == "contained":
            continue
        if kind is Kind.NARRATIVE and not isinstance(value, dict):
            continue  # the text of a code
        if kind is not None:
            yield from _values(value, kind, f"{path}.{key}", "")
        else:
            for child in _objects(value):  # contact, link, qualification, extension
                yield from _person(child, f"{path}.{key}")


def _values(value: Any, kind: Kind, path: str, system: str) -> Iterator[Identifying]:
    if isinstance(value, str):
        if value.strip() and (kind is not Kind.BIRTH_DATE or _DAY.match(value)):
            yield Identifying(path, kind, value, system)
    elif isinstance(value, list):
        for item in value:
            yield from _values(item, kind, path, system)
    elif isinstance(value, dict):
        system = str(value.get("system") or system) if kind is Kind.IDENTIFIER else ""
        for key, item in value.items():
            if key not in NO_VALUES:
                inner = Kind.PLACE if kind is Kind.ADDRESS and key in SHARED_PLACES else kind
                yield from _values(item, inner, f"{path}.{key}", system)


def _objects(value: Any) -> list[dict[str, Any]]:
    found = value if isinstance(value, list) else [value]
    return [item for item in found if isinstance(item, dict)]
