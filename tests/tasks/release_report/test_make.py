"""A report of files: measured, and said to the house and to the recipient (document 5, sections 2 to 4)."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tasks.release_report.facts import Destination, Settings
from tasks.release_report.make import Asked, Made, make, read_rules
from tasks.release_report.query import element_of, read_query
from tasks.shared.publication import Count
from tasks.shared.report import StepReport
from tasks.shared.stop import Stop

MAIDEN = "http://hl7.org/fhir/StructureDefinition/patient-mothersMaidenName"
SIZE = 22


def maiden(number: int) -> dict[str, Any]:
    return {"extension": [{"url": MAIDEN, "valueString": f"Kanarienvogel{number}"}]}


def write(folder: Path, *more: dict[str, Any]) -> list[Path]:
    """Bundles, a line each: a Patient and a Condition; ``more`` is of the patients in turn."""
    folder.mkdir(exist_ok=True)
    lines = []
    for number in range(SIZE):
        added = more[number] if number < len(more) else {}
        person = {"resourceType": "Patient", "id": f"{folder.name}{number:03}", "gender": "female", **added}
        code = {"coding": [{"system": "http://icd.example", "code": "I10"}]}
        about = {"reference": f"Patient/{person['id']}"}
        found = {"resourceType": "Condition", "id": f"{folder.name}c{number:03}", "code": code, "subject": about}
        lines.append(
            {"resourceType": "Bundle", "type": "collection", "entry": [{"resource": person}, {"resource": found}]}
        )
    path = folder / "batch.ndjson"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [path]


def made(tmp_path: Path, leaving: list[Path], imported: list[Path], **more: Any) -> Made:
    step = StepReport(position=2, name="pseudonymizer", state="completed", output="out", lines_out=SIZE)
    known: dict[str, Any] = {
        "job": "j", "project": "p", "base": tmp_path, "leaving": leaving, "imported": imported, "steps": (step,),
        "destination": Destination("s3_upload", "store.example", bucket="b", encrypted=True),
        "settings": Settings(), "stop": Stop(), "today": date(2026, 1, 1), "made": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return make(Asked(**(known | more)))


@pytest.mark.parametrize(("patients", "said"), [
    (1, Count(word="fewer", number=5)), (5, Count(word="about", number=5)), (SIZE, Count(word="all")),
])  # fmt: skip
def test_a_maiden_name_that_is_left_is_the_first_line_with_its_path(tmp_path: Path, patients: int, said: Count) -> None:
    imported = write(tmp_path / "import", *map(maiden, range(SIZE)))
    found = made(tmp_path, write(tmp_path / "out", *map(maiden, range(patients))), imported)
    first = found.house.findings[0]
    about = f"Patient.extension({MAIDEN}).valueString"  # k patients share the URL, in import/ at least
    assert (first.level, first.code, first.about, first.patients) == ("stop", "original-left", about, said)
    assert "Kanarienvogel" not in found.house.model_dump_json() + found.recipient.model_dump_json()


def test_a_clean_delivery_has_no_stop_and_the_recipient_learns_no_exact_number(tmp_path: Path) -> None:
    found = made(tmp_path, write(tmp_path / "out"), write(tmp_path / "import", *map(maiden, range(SIZE))))
    assert [one for one in found.house.findings if one.level == "stop"] == []
    assert found.house.tiles.patients == SIZE
    assert (found.recipient.k, found.recipient.tiles.patients) == (11, Count(word="about", number=20))
    assert [file.name for file in found.files] == ["out/batch.ndjson"]
    again = made(tmp_path, [tmp_path / "out" / "batch.ndjson"], [tmp_path / "import" / "batch.ndjson"])
    assert again.house.model_copy(update={"seconds": 0}) == found.house.model_copy(update={"seconds": 0})


def test_without_import_the_report_says_that_originals_were_not_looked_for(tmp_path: Path) -> None:
    found = made(tmp_path, write(tmp_path / "out"), [])
    assert "originals-unchecked" in found.house.sections[0].said


def test_the_query_is_told_with_what_enrichment_added(tmp_path: Path) -> None:
    attribute = {"attributeRef": "Patient.gender", "mustHave": False}
    group = {"id": "g", "name": "Personen", "groupReference": "http://p.example", "attributes": [attribute]}
    hypertension = {
        "context": {"system": "x", "code": "Diagnose", "display": "Diagnose"},
        "termCodes": [{"system": "http://icd.example", "code": "I10", "display": "Hypertonie"}],
        "timeRestriction": {"afterDate": "2020-01-01"},
    }
    query = {
        "version": "1",
        "display": "Bluthochdruck",
        "cohortDefinition": {"version": "2", "inclusionCriteria": [[hypertension]]},
        "dataExtraction": {"attributeGroups": [group]},
    }
    (tmp_path / "given.json").write_text(json.dumps(query))
    group["attributes"] = [attribute, {"attributeRef": "Patient.extension:maiden", "mustHave": True}]
    (tmp_path / "effective.json").write_text(json.dumps(query))
    read = read_query(tmp_path / "effective.json", tmp_path / "given.json")
    assert read is not None
    assert (read.title, read.types, read.asks_for_consent) == ("Bluthochdruck", frozenset({"Patient"}), False)
    assert [(one.ref, one.required, one.added) for one in read.groups[0].attributes] == [
        ("Patient.gender", False, False), ("Patient.extension:maiden", True, True),
    ]  # fmt: skip
    assert read.criteria[0].codes == ("http://icd.example|I10",)
    assert read.criteria[0].restriction == "2020-01-01 – …"
    (tmp_path / "bad.json").write_text("no JSON")
    assert read_query(tmp_path / "bad.json") is None


def test_an_attribute_is_the_path_of_its_element() -> None:
    assert element_of("Observation.value[x]:valueQuantity.code") == "Observation.valueQuantity.code"
    assert element_of("Patient.identifier:pid.value") == "Patient.identifier.value"
    assert element_of("Observation.value[x]") == "Observation.value[x]"


def test_of_the_rules_no_key_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("fhirPathRules: [{path: Patient.name, method: redact}]\nparameters: {cryptoHashKey: canary}\n")
    rules = read_rules(path)
    assert rules is not None
    assert rules.paths == (("Patient.name", "redact"),)
    assert "canary" not in repr(rules)
    path.write_text("{")
    assert read_rules(path) is None
