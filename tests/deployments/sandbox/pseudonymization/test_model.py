"""The elements of R4 and their types."""

from __future__ import annotations

import pytest

from deployments.sandbox.pseudonymization.model import ElementKind, child, is_a


@pytest.mark.parametrize(
    ("path", "key", "name", "kind"),
    [
        ("Patient", "id", "id", "id"),
        ("Patient", "name", "name", "HumanName"),
        ("HumanName", "id", "id", "string"),
        ("HumanName", "family", "family", "string"),
        ("Patient", "birthDate", "birthDate", "date"),
        ("Patient", "deceasedDateTime", "deceased", "dateTime"),
        ("Observation", "valueQuantity", "value", "Quantity"),
        ("Observation.component", "valueString", "value", "string"),
        ("Observation", "component", "component", "BackboneElement"),
        ("Extension", "url", "url", "uri"),
        ("Extension", "valueAddress", "value", "Address"),
        ("Bundle.entry", "fullUrl", "fullUrl", "uri"),
        ("Bundle.entry.request", "url", "url", "uri"),
        ("Reference", "reference", "reference", "string"),
        ("Dosage", "timing", "timing", "Timing"),
        ("Timing.repeat", "boundsPeriod", "bounds", "Period"),
        ("Patient.contact", "name", "name", "HumanName"),
        ("Narrative", "div", "div", "xhtml"),
    ],
)
def test_elements_have_their_name_and_type(path: str, key: str, name: str, kind: str) -> None:
    element = child(path, key)
    assert element is not None
    assert (element.name, element.type) == (name, kind)


def test_elements_that_are_defined_elsewhere() -> None:
    path = "QuestionnaireResponse"
    for _ in range(4):
        element = child(path, "item")
        assert element is not None
        path = element.path
    assert child(path, "linkId") is not None


@pytest.mark.parametrize(("path", "key"), [("Bundle.entry", "resource"), ("Patient", "contained")])
def test_resources_are_not_elements_of_their_surroundings(path: str, key: str) -> None:
    element = child(path, key)
    assert element is not None
    assert element.kind is ElementKind.RESOURCE


@pytest.mark.parametrize(("path", "key"), [("Patient", "wombat"), ("Observation", "value"), ("Patient", "valueString")])
def test_what_r4_does_not_know(path: str, key: str) -> None:
    assert child(path, key) is None


def test_types_come_from_others() -> None:
    assert is_a("Age", "Quantity")
    assert is_a("Patient", "Resource")
    assert not is_a("Quantity", "Age")
