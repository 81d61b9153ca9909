"""The search parameters of R4, and the types that profiles name."""

from __future__ import annotations

import pytest

from tasks.shared.fhir import r4


@pytest.mark.parametrize(
    ("kind", "name", "has"),
    [
        ("token", "code", True),
        ("date", "date", True),
        ("date", "_lastUpdated", True),
        ("token", "date", False),
        ("date", "recorded-date", False),
        ("token", "CANARY", False),
    ],
)
def test_a_type_has_the_parameters_of_its_own_and_those_of_all_types(kind: str, name: str, has: bool) -> None:
    assert r4.has_parameter("Observation", kind, name) is has


@pytest.mark.parametrize(
    ("profile", "kind"),
    [
        ("http://hl7.org/fhir/StructureDefinition/Observation", "Observation"),
        ("https://example.org/fhir/modul-person/StructureDefinition/Patient|2.0", "Patient"),
        ("https://example.org/StructureDefinition/MyObservation", ""),
        ("https://example.org/StructureDefinition/DomainResource", ""),
        ("", ""),
    ],
)
def test_a_profile_that_ends_in_a_type_is_of_that_type(profile: str, kind: str) -> None:
    assert r4.type_of_profile(profile) == kind
