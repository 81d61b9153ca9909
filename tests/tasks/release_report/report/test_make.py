"""A report of files: measured, and made for the hospital and for the recipient (document 5, sections 2 to 4)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from config import ReportConfig
from flows.reports.short_form import short
from tasks.release_report.page.page import html
from tasks.release_report.report.document import ReleaseReport
from tasks.release_report.report.facts import Corrected
from tasks.release_report.report.findings import TERMS
from tasks.release_report.report.numbers import Count
from tasks.release_report.report.query import QueryGroup, read_query
from tasks.release_report.report.rule_file import read_rules
from tasks.shared.report import StepReport
from tests.tasks.release_report.report.reporting import (
    bundle,
    report_of,
    section_of,
    table_of,
    write_lines,
)

MAIDEN = "http://hl7.org/fhir/StructureDefinition/patient-mothersMaidenName"
SIZE = 22


def maiden(number: int) -> dict[str, Any]:
    return {"extension": [{"url": MAIDEN, "valueString": f"Kanarienvogel{number}"}]}


def write(folder: Path, *more: dict[str, Any]) -> list[Path]:
    """Bundles, a line each: a Patient and a Condition; ``more`` is of the patients in turn."""
    lines = []
    for number in range(SIZE):
        added = more[number] if number < len(more) else {}
        person = {"resourceType": "Patient", "id": f"{folder.name}{number:03}", "gender": "female", **added}
        code = {"coding": [{"system": "http://icd.example", "code": "I10"}]}
        about = {"reference": f"Patient/{person['id']}"}
        found = {"resourceType": "Condition", "id": f"{folder.name}c{number:03}", "code": code, "subject": about}
        lines.append(bundle(person, found))
    return [write_lines(folder / "batch.ndjson", lines)]


def made(tmp_path: Path, leaving: list[Path], imported: list[Path], **more: Any) -> ReleaseReport:
    step = StepReport(position=2, name="pseudonymizer", state="completed", output="out", lines_out=SIZE)
    return report_of(tmp_path, leaving, imported, **({"steps": (step,)} | more))


@pytest.mark.parametrize(("patients", "said"), [
    (1, Count(word="fewer", number=5)), (5, Count(word="about", number=5)), (SIZE, Count(word="all")),
])  # fmt: skip
def test_a_maiden_name_that_is_left_is_the_first_line_with_its_path(tmp_path: Path, patients: int, said: Count) -> None:
    imported = write(tmp_path / "import", *map(maiden, range(SIZE)))
    report = made(tmp_path, write(tmp_path / "out", *map(maiden, range(patients))), imported)
    first = report.findings[0]
    about = f"Patient.extension({MAIDEN}).valueString"  # k patients share the URL, in import/ at least
    assert (first.level, first.code, first.about, first.patients) == ("stop", "original-left", about, said)
    assert "Kanarienvogel" not in report.model_dump_json()


def test_a_clean_delivery_has_no_stop_and_the_same_files_give_the_same_report(tmp_path: Path) -> None:
    found = made(tmp_path, write(tmp_path / "out"), write(tmp_path / "import", *map(maiden, range(SIZE))))
    assert [one for one in found.findings if one.level == "stop"] == []
    assert found.tiles.patients == SIZE
    again = made(tmp_path, [tmp_path / "out" / "batch.ndjson"], [tmp_path / "import" / "batch.ndjson"])
    assert again.model_copy(update={"seconds": 0}) == found.model_copy(update={"seconds": 0})


WRITTEN: tuple[dict[str, Any], ...] = (
    {
        "resourceType": "Patient", "meta": {"profile": ["x"], "source": "x", "tag": [{"system": "x", "code": "x"}]},
        "text": {"div": "x"}, "extension": [{"url": "x", "valueString": "x", "extension": [{"url": "x"}]}],
        "name": [{"family": "x", "given": ["x"], "_family": {"extension": [{"url": "x", "valueString": "x"}]}}],
        "identifier": [{"system": "x", "value": "x", "type": {"text": "x", "coding": [{"code": "x", "display": "x"}]}}],
        "address": [{"line": ["x"], "city": "x", "postalCode": "x"}], "telecom": [{"system": "x", "value": "x"}],
        "photo": [{"contentType": "x", "title": "x", "data": "x"}], "contact": [{"name": {"text": "x"}}],
        "generalPractitioner": [{"display": "x", "identifier": {"value": "x"}}], "unheardOf": {"of": ["x"]},
        "contained": [{"resourceType": "RelatedPerson", "name": [{"family": "x"}]}],
    },
    {
        "resourceType": "Observation", "status": "x", "code": {"text": "x"}, "valueQuantity": {"value": 1, "unit": "x"},
        "note": [{"text": "x", "authorString": "x"}],
        "component": [{"code": {"text": "x"}, "valueQuantity": {"value": 2, "code": "x"}}, {"valueString": "x"}],
    },
    {
        "resourceType": "Observation", "status": "x", "valueQuantity": {"value": 1, "unit": "x"}, "valueString": "x",
        "code": {"coding": [{"system": "x", "code": "x", "display": "x", "version": "x"}], "text": "x"},
        "performer": [{"display": "x"}], "method": {"text": "x"},
    },
    {
        "resourceType": "QuestionnaireResponse", "questionnaire": "x",
        "item": [{"linkId": "x", "text": "x", "answer": [{"valueString": "x"}, {"valueCoding": {"code": "x"}}]}],
    },
)  # fmt: skip
MAY_BE_SAID = {"system", "url"}
"""Elements whose texts a report may say where ``k`` patients share them (promise 3)."""


def sung(value: Any, name: str = "") -> Any:
    """Return a canary in each string, called by the element that it stands in."""
    if isinstance(value, dict):
        return {key: one if key == "resourceType" else sung(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [sung(one, name) for one in value]
    return f"Kanarienvogel-{name}-" if isinstance(value, str) else value


@pytest.mark.parametrize(("patients", "said"), [(1, set()), (4, set()), (5, MAY_BE_SAID), (SIZE, MAY_BE_SAID)])
def test_of_strings_shared_by_k_patients_only_names_of_kinds_are_shown(
    tmp_path: Path, patients: int, said: set[str]
) -> None:
    def one(folder: str, number: int) -> dict[str, Any]:
        resources = sung([*WRITTEN]) if number < patients else [{"resourceType": "Patient"}]
        for at, resource in enumerate(resources):
            resource["id"] = (
                f"{folder}{number:03}" if resource["resourceType"] == "Patient" else f"{folder}{number}-{at}"
            )
        return bundle(*resources)

    out, came = (
        write_lines(tmp_path / folder / "a.ndjson", (one(folder, number) for number in range(SIZE)))
        for folder in ("out", "import")
    )
    found = made(tmp_path, [out], [came])
    heard = set(re.findall(r"Kanarienvogel-(\w*)-", found.model_dump_json() + html(found) + short(found, where="/")))
    assert heard == said


def test_names_of_tables_that_a_person_corrected_are_texts_from_the_data(tmp_path: Path) -> None:
    """R7: flattening names tables and columns by the query, a person may name them after a patient."""
    imported = write(tmp_path / "import", *map(maiden, range(SIZE)))
    out = tmp_path / "csv_wait"
    out.mkdir()
    names = {"Patients": range(SIZE), "Kanarienvogel corrected": range(2)}
    for name, of in names.items():
        rows = [f"{n},Patient/{n},{'Kanarienvogel1' if n == 1 else '-'}" for n in of]
        (out / f"{name}.csv").write_text("\n".join(["id,patient,of Kanarienvogel", *rows]) + "\n")
    leaving = [out / f"{name}.csv" for name in names]
    found = made(tmp_path, leaving, imported, steps=(), corrected=(Corrected("csv_wait/Kanarienvogel corrected.csv"),))
    stops = [one.about for one in found.findings if one.code == "original-left"]
    assert stops == ["Patients.of Kanarienvogel", "….…"]  # all patients share the name of the column
    # What leaves are tables and what came in were resources: nothing is compared by path or by type.
    for name, column in (("left", "patients_before"), ("types", "patients_before"), ("types", "resources_before")):
        table = table_of(found, name)
        assert {row[table.columns.index(column)] for row in table.rows} == {None}
    by_query = made(tmp_path, leaving, imported, steps=(), changed=("csv_wait/Kanarienvogel corrected.csv",))
    abouts = {one.about for one in by_query.findings}
    assert {"Kanarienvogel corrected.of Kanarienvogel", "csv_wait/Kanarienvogel corrected.csv"} <= abouts


def test_without_import_the_report_says_that_originals_were_not_looked_for(tmp_path: Path) -> None:
    found = made(tmp_path, write(tmp_path / "out"), [])
    assert "originals-unchecked" in found.sections[0].said


def test_the_query_is_told(tmp_path: Path) -> None:
    attributes = [{"attributeRef": "Patient.gender"}, {"attributeRef": "Patient.birthDate", "mustHave": True}]
    group = {"id": "g", "name": "Personen", "groupReference": "http://p.example", "attributes": attributes}
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
    (tmp_path / "effective.json").write_text(json.dumps(query))
    read = read_query(tmp_path / "effective.json")
    assert read is not None
    assert (read.title, read.types, read.asks_for_consent) == ("Bluthochdruck", frozenset({"Patient"}), False)
    assert read.groups == (QueryGroup("Personen", "http://p.example", "Patient", 1, 1),)
    assert read.criteria[0].codes == ("http://icd.example|I10",)
    assert read.criteria[0].restriction == "2020-01-01 – …"
    (tmp_path / "bad.json").write_text("no JSON")
    assert read_query(tmp_path / "bad.json") is None


def test_of_the_rules_no_key_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("fhirPathRules: [{path: Patient.name, method: redact}]\nparameters: {cryptoHashKey: canary}\n")
    rules = read_rules(path)
    assert rules is not None
    assert not rules.removes
    assert "canary" not in repr(rules)
    path.write_text("{")
    assert read_rules(path) is None


ONE, TWO, THREE = "http://a.example/one", "http://a.example/two", "http://a.example/three"


COLUMNS = "Batch-ID,Reason,Group,Attribute,Resource-ID,Patient-ID\n"


def asking_for_consent(path: Path) -> Path:
    """Write a query whose cohort requires consent."""
    consent = {"context": {"code": "Einwilligung", "display": "Consent"}, "termCodes": []}
    query = {"version": "1", "cohortDefinition": {"inclusionCriteria": [[consent]]}, "dataExtraction": {}}
    path.write_text(json.dumps(query))
    return path


def test_that_dates_of_what_was_left_out_are_not_known_is_said(tmp_path: Path) -> None:
    query = asking_for_consent(tmp_path / "query.json")
    step = StepReport(position=1, name="extractor", state="completed", output="import")
    files = write(tmp_path / "out"), write(tmp_path / "import")
    found = made(tmp_path, *files, steps=(step,), query=read_query(query))
    assert "consent-dates" in section_of(found, 9).said
    assert "consent-unchecked" not in {one.code for one in found.findings}
    assert found.fact("consent") == "@consent-checked"


@pytest.mark.parametrize("source", ["local_import", "http_import"])
@pytest.mark.parametrize("asked", [True, False], ids=["consent", "no-consent"])
def test_a_query_that_no_extraction_applied_is_said_where_it_stands(tmp_path: Path, source: str, asked: bool) -> None:
    query = read_query(asking_for_consent(tmp_path / "query.json"))
    query = query if asked or query is None else replace(query, criteria=())
    steps = (StepReport(position=1, name=source, state="completed", output="import"),)
    files = write(tmp_path / "out"), write(tmp_path / "import")
    found = made(tmp_path, *files, steps=steps, query=query)
    assert section_of(found, 3).name == "query-not-applied"
    codes = {one.code: one.level for one in found.findings}
    assert codes["query-not-applied"] == "look"
    assert ("consent-unchecked" in codes) is asked
    assert found.fact("consent") == ("@consent-unchecked" if asked else "@consent-not-asked")
    for number in (5, 9):
        assert "consent-no-extraction" in section_of(found, number).said
        assert "consent-not-checked" not in section_of(found, number).said
    shown = html(found)
    assert "Query (not applied by this job)" in shown
    assert "extraction server did not check" not in shown
    assert "Die Abfrage, von diesem Auftrag nicht angewandt" in html(found.model_copy(update={"language": "de"}))


@pytest.mark.parametrize("given", [(), ("purpose",), ("purpose", "legal_basis", "recipient", "retention")])
def test_terms_that_are_not_given_are_one_look(tmp_path: Path, given: tuple[str, ...]) -> None:
    settings = ReportConfig.model_validate(dict.fromkeys(given, "as agreed"))
    found = made(tmp_path, write(tmp_path / "out"), write(tmp_path / "import"), settings=settings)
    missing = [name for name in TERMS if name not in given]
    looks = [one for one in found.findings if one.code == "terms-missing"]
    assert [one.level for one in looks] == (["look"] if missing else [])
    assert [one.values["terms"] for one in looks] == (
        [" ".join(f"@term-{name}" for name in missing)] if missing else []
    )
    page = html(found)
    first = page.partition('<dl class="terms"')[2].partition("</dl>")[0]
    assert first.count("not given") == len(missing) + 1  # the contact, whose absence is no finding
    assert page.index('<dl class="terms"') < page.index("<nav") < page.index("<table")
    assert "Not given: purpose, legal basis, recipient, how long" not in page or not given
