"""Resource and reference keys: equal exactly when the reference names the resource."""

from __future__ import annotations

import pytest

from deployments.sandbox.flattening.functions import reference_key, resource_key
from tests.deployments.sandbox.flattening.support import one, rows


@pytest.mark.parametrize(
    ("reference", "key"),
    [
        ("Patient/1", "Patient/1"),
        ("Patient/1/_history/2", "Patient/1"),
        ("http://server/fhir/Patient/1", "Patient/1"),
        ("https://server/fhir/Patient/1/_history/7", "Patient/1"),
        ("urn:uuid:53fefa32-fcbb-4ff8-8a92-55ee120877b7", "urn:uuid:53fefa32-fcbb-4ff8-8a92-55ee120877b7"),
        ("#contained", "#contained"),
    ],
)
def test_the_key_of_a_reference(reference: str, key: str) -> None:
    assert reference_key({"reference": reference}, None) == key


def test_a_reference_of_another_type_than_asked_for_has_no_key() -> None:
    assert reference_key({"reference": "Patient/1"}, "Patient") == "Patient/1"
    assert reference_key({"reference": "Patient/1"}, "Group") is None
    assert reference_key({"reference": "urn:uuid:1"}, "Patient") is None
    assert reference_key({"reference": "urn:uuid:1", "type": "Patient"}, "Patient") == "urn:uuid:1"


@pytest.mark.parametrize("data", [{}, {"display": "x"}, {"reference": None}, {"reference": 1}, "Patient/1", None])
def test_what_names_nothing_has_no_key(data: object) -> None:
    assert reference_key(data, None) is None


@pytest.mark.parametrize("data", [{}, {"resourceType": "Patient"}, {"id": "1"}, "x", None])
def test_what_is_no_resource_has_no_key(data: object) -> None:
    assert resource_key(data) is None


@pytest.mark.parametrize(
    ("argument", "expected"), [("", [True, False]), ("Patient", [True, False]), ("Group", [None, None])]
)
def test_keys_are_equal_when_the_reference_names_the_resource(argument: str, expected: list[bool | None]) -> None:
    links = [{"resourceType": "Patient", "id": "1", "link": [{"other": {"reference": f"Patient/{to}"}}]} for to in "12"]
    definition = one(f"getResourceKey() = link.other.getReferenceKey({argument})")
    assert [row["x"] for row in rows(definition, *links)] == expected
