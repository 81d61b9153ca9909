"""Which resources are about a person, and which never are: what identifies is looked for in the former."""

from __future__ import annotations

from typing import Final

PERSONS: Final = frozenset({"Patient", "RelatedPerson", "Person", "Practitioner"})
"""Types whose names, addresses, numbers and pictures are a person's."""
PRACTITIONERS: Final = frozenset({"Practitioner", "PractitionerRole"})
"""People whom many patients have: what they have is no less theirs for it."""
NO_PERSONS: Final = frozenset({"Provenance", "Organization", "Location", "Medication", "Device"})
"""Types that identify no person. The routing of the flattening needs what is in a Provenance."""
NAMED: Final = PERSONS | PRACTITIONERS | {"Organization", "CareTeam"}
"""Types whose name beside a reference says who somebody is, or where somebody was treated."""
