"""Every place that identifies is found, with its kind (document 5, section 7a; promise 4, the measuring half)."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tasks.release_report.measure.kinds import kind_of
from tasks.release_report.measure.measure import measure
from tasks.release_report.measure.originals import Originals
from tasks.shared.stop import Stop

PATHS = {
    # Patient
    "Patient.name.family": "name",
    "Patient.name.given[]": "name",
    "Patient.name.text": "name",
    "Patient.name.prefix[]": "name",
    "Patient._birthDate.extension(http://hl7.org/fhir/x/own-name).valueString": "name",
    "Patient.name._family.extension(http://hl7.org/fhir/StructureDefinition/humanname-own-name).valueString": "name",
    "Patient.extension(http://hl7.org/fhir/StructureDefinition/patient-mothersMaidenName).valueString": "name",
    "Patient.extension(http://x.example/whatever).valueHumanName.family": "name",
    "Patient.address.line[]": "address",
    "Patient.address.text": "address",
    "Patient.address.city": "address-part",
    "Patient.address.postalCode": "address-part",
    "Patient.address._line.extension(http://hl7.org/fhir/StructureDefinition/iso21090-ADXP-streetName).valueString":
        "address",
    "Patient.extension(http://hl7.org/fhir/StructureDefinition/patient-birthPlace).valueAddress.city": "address-part",
    "Patient.telecom.value": "telecom",
    "Patient.identifier.value": "identifier",
    "Patient.identifier.extension(http://x.example/y).valueString": "identifier",
    "Patient.photo.data": "photo",
    "Patient.photo.url": "photo",
    "Patient.text.div": "narrative",
    "Patient.contact.name.family": "name",
    "Patient.contact.telecom.value": "telecom",
    "Patient.contact.address.line[]": "address",
    "Patient.generalPractitioner.display": "display",
    "Patient.link.other.identifier.value": "identifier",
    "Patient.maritalStatus.text": "concept-text",
    "Patient.extension(http://x.example/free).valueString": "text",
    "Patient.extension(http://x.example/number).valueIdentifier.value": "identifier",
    "Patient.extension(http://x.example/file).valueAttachment.data": "attachment",
    "Patient.contained.RelatedPerson.name.family": "name",
    # others
    "RelatedPerson.name.family": "name",
    "RelatedPerson.telecom.value": "telecom",
    "Practitioner.name.family": "name",
    "Practitioner.address.line[]": "address",
    "Practitioner.qualification.identifier.value": "identifier",
    "Person.name.given[]": "name",
    "Person.photo.data": "photo",
    "PractitionerRole.telecom.value": "telecom",
    "Observation.subject.display": "display",
    "Observation.subject.identifier.value": "identifier",
    "Observation.identifier.value": "identifier",
    "Observation.valueString": "text",
    "Observation.note.text": "text",
    "Observation.note.authorString": "text",
    "Observation.text.div": "narrative",
    "Observation.code.text": "concept-text",
    "Observation.contained.Patient.identifier.value": "identifier",
    "Observation.component.valueString": "text",
    "Encounter.identifier.value": "identifier",
    "Encounter.participant.individual.display": "display",
    "DocumentReference.masterIdentifier.value": "identifier",
    "DocumentReference.content.attachment.url": "attachment",
    "DocumentReference.description": "text",
    "DiagnosticReport.presentedForm.data": "attachment",
    "DiagnosticReport.conclusion": "text",
    "Media.content.data": "attachment",
    "Binary.data": "attachment",
    "Coverage.subscriberId": "identifier",
    "Specimen.accessionIdentifier.value": "identifier",
    "ServiceRequest.requisition.value": "identifier",
    "ImagingStudy.series.uid": "identifier",
    "FamilyMemberHistory.name": "name",
    "QuestionnaireResponse.item.answer.valueString": "text",
    "Organization.contact.name.family": "name",
    "Consent.sourceAttachment.data": "attachment",
    "Device.serialNumber": "device",
    "Claim.careTeam.provider.display": "display",
    "Composition.section.text.div": "narrative",
    "Provenance.signature.data": "attachment",
    # what identifies nobody
    "Organization.name": "",
    "Organization.identifier.value": "",
    "Organization.telecom.value": "",
    "Location.address.line[]": "",
    "Medication.batch.lotNumber": "",
    "Observation.valueQuantity.unit": "",
    "Observation.code.coding[].display": "",
    "Observation.status": "",
    "Patient.identifier.system": "",
    "Patient.address.extension(http://x.example/key-of-the-town).valueCoding.system": "",
    "Patient.name.extension(http://x.example/order).valueCoding.system": "",
}  # fmt: skip


def nested(steps: list[str], value: Any) -> Any:
    """Return the value below the steps of a path; what is a list in FHIR need not be one here, but for ``[]``."""
    if not steps:
        return value
    step, *rest = steps
    if step == "contained":
        kind, *rest = rest
        return {"contained": [{"resourceType": kind, "id": "c", **nested(rest, value)}]}
    if step.startswith("extension("):
        return {"extension": [{"url": step[10:-1], **nested(rest, value)}]}
    below = nested(rest, value)
    return {step.removesuffix("[]"): [below] if step.endswith("[]") else below}


def split(path: str) -> list[str]:
    """Return the steps of a path; a URL in brackets has points of its own."""
    steps, held = [], ""
    for piece in path.split("."):
        held = f"{held}.{piece}" if held else piece
        if held.count("(") == held.count(")"):
            steps.append(held)
            held = ""
    return steps


def lines(path: str, patients: int, values: int) -> list[dict[str, Any]]:
    """Some patients of whom the first few have a value of their own at a path."""
    found = []
    for number in range(patients):
        kind, *steps = split(path)
        own = f"Value-{number:03}-of-somebody"
        person: dict[str, Any] = {"resourceType": "Patient", "id": f"p{number}"}
        holder = {"resourceType": kind, "id": f"r{number}"} if kind != "Patient" else person
        if number < values:
            holder |= nested(steps, own)
        some = [person] if holder is person else [person, holder]
        found.append({"resourceType": "Bundle", "type": "collection", "entry": [{"resource": one} for one in some]})
    return found


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("values", [1, *(pytest.param(many, marks=pytest.mark.slow) for many in (5, 12))])
def test_what_is_left_is_found_with_its_kind(path: str, values: int, tmp_path: Path) -> None:
    file = tmp_path / "a.ndjson"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines(path, 12, values)))
    with Originals(tmp_path / "spool", 5) as originals:
        for collect in (True, False):
            found = measure(
                [file], base=tmp_path, spool=tmp_path / "spool", stop=Stop(), k=5, today=date(2026, 1, 1),
                originals=originals, collect=collect,
            )  # fmt: skip
    at = found.paths[path.replace("[]", "").replace("._", ".")]
    assert (at.patients, at.kind) == (values, PATHS[path])
    if at.kind and at.kind not in ("display", "concept-text"):
        assert at.original == values


def test_a_code_in_an_address_is_a_part_of_it_and_its_system_is_nothing() -> None:
    above = ("Patient", "Address", "Extension", "Coding")
    assert [kind_of(name, "", above, "http://x.example/town") for name in ("code", "display", "system")] == [
        "address-part", "address-part", "",
    ]  # fmt: skip
    assert kind_of("code", "code", ("Organization", *above[1:]), "http://x.example/town") == ""
