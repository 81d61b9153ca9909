"""R4: what identifies a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
