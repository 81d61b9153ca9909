"""R4: the resource types, their search parameters that a filter of a CRTDL may name, and what identifies a person.

The table ``r4_search.json`` is made of the published definitions (hl7.fhir.r4.core 4.0.1, CC0-1.0) by
``tests/tasks/shared/fhir/test_r4_search.py``. The pseudonymizer looks for the content of identifying elements in the
answers, the release report in all data that are sent.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

_ABSTRACT: Final = ("Resource", "DomainResource")
"""What all types have, and all but a few."""


class _SearchParameters(msgspec.Struct, frozen=True):
    token: frozenset[str] = frozenset()
    date: frozenset[str] = frozenset()


@functools.cache
def _types() -> dict[str, _SearchParameters]:
    return msgspec.json.decode(
        Path(__file__).with_name("r4_search.json").read_bytes(), type=dict[str, _SearchParameters]
    )


@functools.lru_cache(maxsize=512)
def is_type(name: str) -> bool:
    """Return whether R4 has resources of this type."""
    return name in _types() and name not in _ABSTRACT


def has_parameter(resource_type: str, kind: str, name: str) -> bool:
    """Return whether a type has a search parameter; ``kind`` is ``token`` or ``date``."""
    known = (_types().get(one, _SearchParameters()) for one in (resource_type, *_ABSTRACT))
    return any(name in (one.token if kind == "token" else one.date) for one in known)


def type_of_profile(url: str) -> str:
    """Return the type at the end of a profile URL; empty if there is none."""
    name = url.partition("|")[0].rstrip("/").rpartition("/")[2]
    return name if is_type(name) else ""


PERSONS: Final = frozenset({"Patient", "RelatedPerson", "Person", "Practitioner"})
"""Types whose names, addresses, numbers and pictures are a person's."""
PRACTITIONERS: Final = frozenset({"Practitioner", "PractitionerRole"})
"""People whom many patients have: what they have is no less theirs for it."""
NO_PERSONS: Final = frozenset({"Provenance", "Organization", "Location", "Medication", "Device"})
"""Types that identify no person. The routing of the flattening needs what is in a Provenance."""
NAMED: Final = PERSONS | PRACTITIONERS | {"Organization", "CareTeam"}
"""Types whose name beside a reference says who somebody is, or where somebody was treated."""

ELEMENTS: Final[Mapping[str, str]] = {
    "name": "HumanName",
    "telecom": "ContactPoint",
    "address": "Address",
    "photo": "Attachment",
    "identifier": "Identifier",
}
"""Elements of a person that identify, each with its type."""
IDENTIFYING: Final[Mapping[str, tuple[str, ...]]] = {
    "HumanName": ("family", "given", "text", "prefix", "suffix"),
    "ContactPoint": ("value",),
    "Address": ("line", "text"),
    "Attachment": ("data", "url", "title", "hash"),
    "Identifier": ("value",),
}
"""Of these types the elements whose values identify. The parts of a name or an address can stand in extensions, too."""
