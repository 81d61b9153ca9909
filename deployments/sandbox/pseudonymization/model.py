"""Elements of FHIR R4 and their types, from the tables of the FHIRPath library."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import cast

from deployments.sandbox.common.fhirpath import R4
from deployments.sandbox.common.r4 import RESOURCE_TYPES

_TYPES = cast("dict[str, str]", R4["path2Type"])
_CHOICES = cast("dict[str, list[str]]", R4["choiceTypePaths"])
_ELSEWHERE = cast("dict[str, str]", R4["pathsDefinedElsewhere"])
_PARENTS = cast("dict[str, str]", R4["type2Parent"])

BACKBONE = "BackboneElement"
_GENERAL = ("Resource", "DomainResource")


class ElementKind(Enum):
    """Kind of an element in JSON."""

    PRIMITIVE = "primitive"
    """A value, with optional id and extensions under ``_name``."""
    COMPLEX = "complex"
    """An object with elements."""
    RESOURCE = "resource"
    """A resource with its own rules: in an entry, or contained."""


@dataclass(frozen=True, slots=True)
class FhirElement:
    """An element, as the rules refer to it."""

    key: str
    """JSON key, such as ``valueQuantity``."""
    name: str
    """Name in FHIRPath, such as ``value``."""
    type: str
    """Type, such as ``Quantity``."""
    path: str
    """Where the element's children are defined: the type, or the path for a backbone element."""
    kind: ElementKind
    parent: str
    """Type of the enclosing element, or its path for a backbone element."""

    @property
    def location(self) -> str:
        """Type and name, for messages."""
        return f"{self.parent}.{self.key}" if self.parent else self.key


def resource_element(kind: str) -> FhirElement:
    """Return the element for a resource."""
    return FhirElement(kind, kind, kind, kind, ElementKind.RESOURCE, "")


def is_a(kind: str, wanted: str) -> bool:
    """Return True if a type is ``wanted`` or derived from it."""
    while kind != wanted:
        parent = _PARENTS.get(kind)
        if parent is None:
            return False
        kind = parent
    return True


def applies_to(rule_type: str | None, kind: str) -> bool:
    """Return True if a rule for ``rule_type`` applies to resources of a type."""
    return rule_type is None or rule_type == kind or rule_type in _GENERAL


@lru_cache(maxsize=50_000)
def child(path: str, key: str) -> FhirElement | None:
    """Return the element with a JSON key in a type or backbone path, or None if R4 has none."""
    full = f"{path}.{key}"
    full = _ELSEWHERE.get(full, full)
    name = _CHOICE_NAMES.get(full, key)
    kind = _TYPES.get(full)
    if kind is None:
        return FhirElement(key, name, BACKBONE, full, ElementKind.COMPLEX, path) if full in _BACKBONES else None
    if kind == "Resource":
        return FhirElement(key, name, kind, kind, ElementKind.RESOURCE, path)
    if kind == "System.String":
        kind = _system_string(path, key)
    if kind[0].islower():
        return FhirElement(key, name, kind, "Element", ElementKind.PRIMITIVE, path)
    return FhirElement(key, name, kind, kind, ElementKind.COMPLEX, path)


def _system_string(path: str, key: str) -> str:
    """Return the FHIR type of an element that the tables define as a FHIRPath string."""
    if key == "id":
        return "id" if path in RESOURCE_TYPES else "string"
    return "uri"


def _backbones() -> frozenset[str]:
    found = set(_ELSEWHERE.values())
    for path in _TYPES:
        above = path.rpartition(".")[0]
        while "." in above:
            found.add(above)
            above = above.rpartition(".")[0]
    return frozenset(found - _TYPES.keys())


_BACKBONES = _backbones()
_CHOICE_NAMES = {f"{base}{kind}": base.rpartition(".")[2] for base, kinds in _CHOICES.items() for kind in kinds}
