"""The attribute groups of a CRTDL, as the steps read them."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Attribute:
    """One element that a group asks for; ``linked_groups`` are ids of the groups its references may fill."""

    ref: str
    must_have: bool = False
    linked_groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class AttributeGroup:
    """One attribute group; ``reference`` is the canonical URL of its profile."""

    id: str
    name: str | None
    reference: str
    attributes: tuple[Attribute, ...]

    @property
    def resource_type(self) -> str:
        """Return the type of its attributes: the first part of an element's id; empty without attributes."""
        return type_of(self.attributes[0].ref) if self.attributes else ""


def type_of(attribute_ref: str) -> str:
    """Return the resource type of an element id such as ``Observation.value[x]:valueQuantity.code``."""
    return re.split(r"[.:]", attribute_ref, maxsplit=1)[0]
