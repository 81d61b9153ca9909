"""Targets of references, and patients of the resources of a Bundle (document 3 §1)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tasks.shared.fhir.references import BundlePatient, Owned, Reference, ReferenceTarget, id_named_by, target_of
from tasks.shared.fhir.sources import names_foreign_patient


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("Patient/a", ReferenceTarget("Patient", "Patient/a")),
        ("https://x.example/fhir/Patient/a", ReferenceTarget("Patient", "Patient/a")),
        ("Patient/a/_history/1", ReferenceTarget("Patient", "Patient/a")),
        ("https://x.example/fhir/Patient/a/_history/1", ReferenceTarget("Patient", "Patient/a")),
        ("Patient/a#name", ReferenceTarget("Patient", "Patient/a")),
        ("Patient?_id=a", ReferenceTarget("Patient", "Patient/a")),
        (
            "Patient?identifier=http://x.example/mrn|1",
            ReferenceTarget("Patient?", "Patient?identifier=http://x.example/mrn|1"),
        ),
        ("https://x.example/fhir/Patient?identifier=1", ReferenceTarget("Patient?", "Patient?identifier=1")),
        ("urn:uuid:8e1b", ReferenceTarget("urn", "urn:uuid:8e1b")),
        ("#p", ReferenceTarget("#", "#p")),
        ("", None),
        ("a", None),
        ("Ab/c+d==", None),
        ("Nothing/a", None),
        ("Patient/", None),
    ],
)
def test_the_target_of_a_reference(reference: str, target: ReferenceTarget | None) -> None:
    assert target_of(reference) == target


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("Patient/1", "1"),
        ("https://x.example/fhir/Patient/1", "1"),
        ("Patient/1/_history/7", "1"),
        ("urn:uuid:8e1b", "8e1b"),
        ("#contained", None),
        ("Patient?identifier=a|b", None),
        ("", None),
    ],
)
def test_the_id_in_a_reference(reference: str, target: str | None) -> None:
    assert id_named_by(reference.encode()) == target


def bundle(*resources: Any) -> dict[str, Any]:
    return {"resourceType": "Bundle", "entry": [{"resource": resource} for resource in resources]}


def owned(reference: Any, element: str = "subject", kind: str = "Observation", **more: Any) -> dict[str, Any]:
    value = {"reference": reference} if isinstance(reference, str) else reference
    return {"resourceType": kind, "id": "o", element: value, **more}


A, B = ({"resourceType": "Patient", "id": one} for one in "ab")

FOREIGN = {
    "subject": bundle(A, owned("Patient/b")),
    "one among many": bundle(A, *[owned("Patient/a")] * 9, owned("Patient/b"), owned("Patient/a")),
    "before the Patient": bundle(owned("Patient/b"), A),
    "patient": bundle(A, owned("Patient/b", "patient", "Consent")),
    "beneficiary": bundle(A, owned("Patient/b", "beneficiary", "Coverage")),
    "a list": bundle(A, owned([{"reference": "Patient/a"}, {"reference": "Patient/b"}], kind="Account")),
    "a URL": bundle(A, owned("https://x.example/fhir/Patient/b/_history/2")),
    "a search by id": bundle(A, owned("Patient?_id=b")),
    "a contained resource": bundle(A, owned("Patient/a", contained=[owned("Patient/b")])),
    "the Patient twice": bundle(A, A, owned("Patient/b")),
    "beside something of another shape": bundle(A, owned("Patient/b"), owned(["x", 7]), {"resourceType": 7}),
}
OWN = {
    "their own": bundle(A, owned("Patient/a"), owned("https://x.example/fhir/Patient/a/_history/2")),
    "two Patients": bundle(A, B, owned("Patient/a"), owned("Patient/b"), owned("Patient/c")),
    "no Patient": bundle(owned("Patient/a"), owned("Patient/b")),
    "a Group": bundle(A, owned("Group/b")),
    "an identifier alone": bundle(A, owned({"identifier": {"value": "b"}, "type": "Patient"})),
    "a masked reference": bundle(A, owned({"_reference": {"extension": []}, "display": "b"})),
    "a contained Patient": bundle(A, owned("#b", contained=[B])),
    "a URN": bundle(A, owned("urn:uuid:b")),
    "a search": bundle(A, owned("Patient?identifier=b")),
    "a link to another Patient": bundle({**A, "link": [{"other": {"reference": "Patient/b"}}]}),
    "a relative": bundle(A, owned("Patient/a", "patient", "RelatedPerson")),
    "a Patient without an id": bundle({"resourceType": "Patient"}, owned("Patient/b")),
    "something of another shape": bundle(A, owned(7), owned([["x"]]), owned("Patient/a", contained="x"), "x"),
    "no Bundle": {"resourceType": "List", "entry": [{"item": {"reference": "Patient/b"}}]},
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_patient_is_found(name: str) -> None:
    assert names_foreign_patient(json.dumps(FOREIGN[name]).encode())


@pytest.mark.parametrize("name", OWN)
def test_what_is_no_foreign_patient(name: str) -> None:
    assert not names_foreign_patient(json.dumps(OWN[name]).encode())


@pytest.mark.parametrize("text", [b"", b"[]", b"[" * 100_000, b'{"entry":7}', b'{"entry":[7]}', b"\xff"])
def test_what_cannot_be_read_has_none(text: bytes) -> None:
    assert not names_foreign_patient(text)


def test_of_the_patients_that_a_bundle_names_two_are_remembered() -> None:
    found = BundlePatient()
    for number in range(100):
        found.add([Owned("Observation", None, subject=Reference(f"Patient/{number}"))])
    assert len(found._named) == 2
