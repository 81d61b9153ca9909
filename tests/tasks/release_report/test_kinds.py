"""What stands at a path, by the names on its way."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.release_report.kinds import is_persons, kind_of, kind_of_column

URL = "http://hl7.org/fhir/StructureDefinition"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("Patient.name.family", "name"),
        ("Patient.name.use", ""),
        ("Patient.name.period.start", ""),
        ("Patient.identifier.value", "identifier"),
        ("Patient.identifier.system", ""),
        ("Patient.identifier.type.text", ""),
        ("Patient.identifier.type.coding.code", ""),
        ("Patient.address.city", "place"),
        ("Patient.address.district", "place"),
        ("Patient.address.postalCode", "place"),
        ("Patient.address.state", ""),
        ("Patient.address.country", ""),
        ("Patient.address.line", "address"),
        ("Patient.photo.url", "photo"),
        ("Patient.photo.contentType", ""),
        ("Patient.text.status", ""),
        ("Patient.text.div", "narrative"),
        ("Patient.birthDate", "birth date"),
        ("Patient.gender", ""),
        ("Patient.deceasedDateTime", ""),
        ("Patient.maritalStatus.text", "text of a code"),
        ("Patient.communication.language.coding.display", ""),
        ("Patient.nickname", "free text"),
        ("Patient.managingOrganization.display", "display"),
        ("Observation.text.div", "free text"),
        ("Observation.note.text", "free text"),
        ("Observation.note.authorString", "display"),
        ("Observation.valueString", "free text"),
        ("Observation.valueQuantity.unit", ""),
        ("Observation.valueSampledData.data", ""),
        ("Observation.code.text", "text of a code"),
        ("Observation.code.coding.display", ""),
        ("Observation.subject.display", "display"),
        ("Observation.effectiveDateTime", ""),
        ("Observation.meta.source", ""),
        ("Observation.identifier.value", "identifier"),
        ("Observation.nonsense", "free text?"),
        ("QuestionnaireResponse.item.text", ""),
        ("QuestionnaireResponse.item.answer.valueString", "free text"),
        ("MedicationRequest.dosageInstruction.text", "free text"),
        ("DocumentReference.content.attachment.title", "free text"),
        ("DocumentReference.masterIdentifier.value", "identifier"),
        ("Coverage.subscriberId", "identifier"),
        ("Claim.accident.locationAddress.line", "address"),
        ("Bundle.signature.data", ""),
        ("Organization.name", ""),
        ("Organization.contact.name.family", ""),
        ("Organization.text.div", ""),
        ("Location.address.city", ""),
        ("Device.identifier.value", ""),
        ("Encounter.serviceProvider.identifier.value", ""),
        ("Encounter.location.location.identifier.value", ""),
        ("Patient.managingOrganization.identifier.value", ""),
        ("Observation.performer.identifier.value", "identifier"),
        ("Provenance.agent.who.display", ""),
    ],
)
def test_kinds_of_elements(path: str, expected: str) -> None:
    resource, *names = path.split(".")
    assert kind_of(resource, names) == expected


@pytest.mark.parametrize(
    ("resource", "names", "url", "expected"),
    [
        ("Patient", "extension.valueString", f"{URL}/patient-mothersMaidenName", "name"),
        ("Observation", "extension.valueString", "http://x/nickname", "name"),
        ("Patient", "extension.valueString", "http://x/remark", "free text"),
        ("Patient", "extension.valueCode", f"{URL}/patient-mothersMaidenName", ""),
        ("Patient", "extension.valueDecimal", "http://x/score", ""),
        ("Patient", "address.extension.extension.valueDecimal", f"{URL}/geolocation/latitude", "address"),
        ("Patient", "address.line.extension.valueString", f"{URL}/iso21090-ADXP-houseNumber", "address"),
        ("Patient", "address.city.extension.valueCoding.code", "http://fhir.de/ags", "place"),
        ("Patient", "name.family.extension.valueString", f"{URL}/humanname-own-name", "name"),
        ("Patient", "name.family.extension.valueCode", f"{URL}/data-absent-reason", ""),
        ("Observation", "extension.valueIdentifier.value", "http://x/y", "identifier"),
        ("Observation", "extension.valueAttachment.data", "http://x/y", "attachment data"),
        ("Organization", "extension.valueString", "http://x/nickname", ""),
    ],
)
def test_kinds_in_extensions(resource: str, names: str, url: str, expected: str) -> None:
    assert kind_of(resource, names.split("."), url) == expected


@pytest.mark.parametrize(
    ("reference", "element", "expected"),
    [
        ({"reference": "Practitioner/1", "display": "x"}, "performer", True),
        ({"reference": "https://h/fhir/Patient/1/_history/2", "display": "x"}, "subject", True),
        ({"reference": "Organization/1", "display": "x"}, "performer", False),
        ({"reference": "Organization?identifier=s|1", "display": "x"}, "performer", False),
        ({"type": "Location", "display": "x"}, "performer", False),
        ({"reference": "urn:uuid:1", "display": "x"}, "performer", True),
        ({"reference": "urn:uuid:1", "display": "x"}, "serviceProvider", False),
        ({"display": "x"}, "asserter", True),
        ({"display": "x"}, "encounter", False),
        ({"display": "x", "code": "1", "system": "s"}, "type", False),
    ],
)
def test_whose_name_a_display_can_be(reference: dict[str, Any], element: str, expected: bool) -> None:
    assert is_persons(reference, element) is expected


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("family_name", "name"), ("Given", "name"), ("mrn", "identifier"), ("identifier_system", ""),
        ("phone", "telecom"), ("postal_code", "place"), ("zip", "place"),
        ("street", "address"), ("note_text", "free text"), ("gender", ""),
        ("code_display", ""), ("birth_date", ""),
    ],
)  # fmt: skip
def test_kinds_of_columns_without_a_view(column: str, expected: str) -> None:
    assert kind_of_column(column) == expected
