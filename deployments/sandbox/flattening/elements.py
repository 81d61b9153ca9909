"""Elements of FHIR R4, as the FHIRPath library's model has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fhirpathpy.engine.nodes import TypeInfo

from deployments.sandbox.flattening.fhirpath import R4, element

Choice = tuple[tuple[str, str], ...]
"""An element with a choice of types (``value[x]``): property and type of each."""

_ABSTRACT = frozenset({"DomainResource", "Resource"})
_type_info: Callable[[str, str | None], Any] = TypeInfo


def is_resource_type(name: str) -> bool:
    """Whether it is the name of a resource type."""
    return name not in _ABSTRACT and R4["type2Parent"].get(name) in _ABSTRACT


def child(path: str, name: str) -> str | Choice:
    """The type of a child, or its path when it is defined in place; its types when it has a choice of them.

    What FHIR does not know has a path too: it is never there, or is what somebody put there.
    """
    below = f"{path}.{name}"
    below = R4["pathsDefinedElsewhere"].get(below, below)
    types = R4["choiceTypePaths"].get(below)
    if types:
        return tuple((f"{name}{each}", R4["path2Type"].get(below + each, below + each)) for each in types)
    if name == "extension":
        return "Extension"
    kind: str = R4["path2Type"].get(below, below)
    return kind


def is_a(path: str, specifier: str) -> bool:
    """Whether an element is of a type (``Quantity``, ``FHIR.Quantity``), as ``ofType()`` decides it."""
    namespace, _, name = specifier.replace("`", "").rpartition(".")
    return bool(element(None, path).get_type_info().is_(_type_info(name, namespace or None)))
