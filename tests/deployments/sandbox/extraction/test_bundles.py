"""References inside a Bundle of the data that name an entry by its ``fullUrl``, as Synthea writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.deployments.sandbox.extraction.conftest import Start, attribute, concept, crtdl, group, write

URN = "urn:uuid:00000000-0000-4000-8000-00000000000"
RESOURCES: list[dict[str, Any]] = [
    {"resourceType": "Condition", "id": "c", "subject": {"reference": f"{URN}3"},
     "encounter": {"reference": f"{URN}1"}},
    {"resourceType": "Encounter", "id": "e", "status": "finished", "subject": {"reference": f"{URN}3"}},
    {"resourceType": "MedicationAdministration", "id": "m", "subject": {"reference": f"{URN}3"},
     "medicationReference": {"reference": f"{URN}4"}},
    {"resourceType": "Patient", "id": "p", "gender": "female"},
    {"resourceType": "Medication", "code": concept("atc", "A")},
]  # fmt: skip
QUERY = crtdl(
    group("cond", "Condition", attribute("Condition.encounter", "enc", must=True)),
    group("enc", "Encounter", attribute("Encounter.status"), includeReferenceOnly=True),
    group("given", "MedicationAdministration", attribute("MedicationAdministration.medication[x]", "drug")),
    group("drug", "Medication", attribute("Medication.code"), includeReferenceOnly=True),
)


def test_owners_links_and_the_core_file_are_found_and_the_result_names_type_and_id(
    start: Start, tmp_path: Path
) -> None:
    entries = [{"fullUrl": f"{URN}{number}", "resource": each} for number, each in enumerate(RESOURCES)]
    gone = {"request": {"method": "DELETE", "url": "Patient/x"}}
    bundle = {"resourceType": "Bundle", "type": "transaction", "entry": [*entries, gone]}
    result = start(write(tmp_path / "data", bundle)).extract(QUERY)
    assert set(result.resources) == {"Patient/p", "Condition/c", "Encounter/e", "MedicationAdministration/m"}
    (drug,) = result.core  # without an id it has that of its URL
    assert drug == f"Medication/{URN.removeprefix('urn:uuid:')}4"
    condition = result.resources["Condition/c"]
    assert condition["subject"] == {"reference": "Patient/p"}
    assert condition["encounter"] == {"reference": "Encounter/e"}
    assert result.resources["MedicationAdministration/m"]["medicationReference"] == {"reference": drug}
    assert "urn:uuid" not in "".join(result.texts.values())
