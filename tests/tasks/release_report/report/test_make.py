"""A report of files: measured, and made for the hospital and for the recipient (document 5, sections 2 to 4)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from config.report import ReportConfig
from flows.reports.short_form import short
from tasks.release_report.page.page import html
from tasks.release_report.publication import HIDDEN, Count
from tasks.release_report.report.document import ReleaseReport
from tasks.release_report.report.facts import Corrected
from tasks.release_report.report.findings import TERMS
from tasks.release_report.report.query import element_of, read_query
from tasks.release_report.report.step_files import read_rules
from tasks.shared.report import StepReport
from tests.peers import release_report as reports
from tests.tasks.release_report.report.reporting import (
    Reported,
    bundle,
    facts_in,
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


def made(tmp_path: Path, leaving: list[Path], imported: list[Path], **more: Any) -> Reported:
    step = StepReport(position=2, name="pseudonymizer", state="completed", output="out", lines_out=SIZE)
    return report_of(tmp_path, leaving, imported, **({"steps": (step,)} | more))


@pytest.mark.parametrize(("patients", "said"), [
    (1, Count(word="fewer", number=5)), (5, Count(word="about", number=5)), (SIZE, Count(word="all")),
])  # fmt: skip
def test_a_maiden_name_that_is_left_is_the_first_line_with_its_path(tmp_path: Path, patients: int, said: Count) -> None:
    imported = write(tmp_path / "import", *map(maiden, range(SIZE)))
    found = made(tmp_path, write(tmp_path / "out", *map(maiden, range(patients))), imported)
    first = found.in_house.findings[0]
    about = f"Patient.extension({MAIDEN}).valueString"  # k patients share the URL, in import/ at least
    assert (first.level, first.code, first.about, first.patients) == ("stop", "original-left", about, said)
    assert "Kanarienvogel" not in found.in_house.model_dump_json() + found.recipient.model_dump_json()


def test_a_clean_delivery_has_no_stop_and_the_recipient_learns_no_exact_number(tmp_path: Path) -> None:
    found = made(tmp_path, write(tmp_path / "out"), write(tmp_path / "import", *map(maiden, range(SIZE))))
    assert [one for one in found.in_house.findings if one.level == "stop"] == []
    assert found.in_house.tiles.patients == SIZE
    assert (found.recipient.k, found.recipient.tiles.patients) == (11, Count(word="about", number=20))
    again = made(tmp_path, [tmp_path / "out" / "batch.ndjson"], [tmp_path / "import" / "batch.ndjson"])
    assert again.in_house.model_copy(update={"seconds": 0}) == found.in_house.model_copy(update={"seconds": 0})


def test_of_a_decision_the_recipient_learns_who_and_when(tmp_path: Path) -> None:
    """Also in the copy made at the end, which is the one that goes with the data."""
    decision = reports.decided().decisions[0]
    found = made(tmp_path, write(tmp_path / "out"), [], decisions=(decision,))
    assert found.in_house.decisions == (decision,)
    (told,) = found.recipient.decisions
    assert (told.by, told.when, told.approved) == (decision.by, decision.when, True)
    words = [word for word in (decision.login, decision.comment, decision.despite) if word]
    assert len(words) == 3
    for word in words:
        assert word in unescape(html(found.in_house))
        assert word not in unescape(html(found.recipient)) + found.recipient.model_dump_json()


def changes_of(report: ReleaseReport) -> tuple[dict[str, Any], list[Any]]:
    """Return the content of section 16, and the findings that are new or gone."""
    return facts_in(report, 16), [*report.rows("changes")]


def test_the_last_release_is_compared_with_in_house_only(tmp_path: Path) -> None:
    """R7 and R10: what 7 patients had last time, is in the report of then in-house, and not in the recipient's."""
    imported = write(tmp_path / "import", *map(maiden, range(SIZE)))
    last = made(tmp_path, write(tmp_path / "out", *map(maiden, range(7))), imported, versions={"sluice": "1"})
    known = {"last": last.in_house, "last_copy": last.recipient}
    found = made(tmp_path, write(tmp_path / "out"), imported, versions={"sluice": "2"}, **known)
    facts, rows = changes_of(found.in_house)
    about = f"Patient.extension({MAIDEN}).valueString"
    assert rows == [("@gone", "@stop", "@original-left", about)]
    rounded = Count(word="about", number=20)
    said = {"last_patients": rounded, "same_files": False, "same_rules": True, "same_k": True, "same_versions": False}
    assert said.items() <= facts.items()
    assert 16 not in {one.number for one in found.recipient.sections}
    # The import tells the URL of all patients here; of a few it is told nowhere.
    few = write(tmp_path / "import", *map(maiden, range(7)))
    last = made(tmp_path, write(tmp_path / "out", *map(maiden, range(7))), few)
    found = made(tmp_path, write(tmp_path / "out"), few, last=last.in_house, last_copy=last.recipient)
    assert MAIDEN in found.in_house.model_dump_json()
    assert MAIDEN not in found.recipient.model_dump_json()


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
MAY_BE_SAID = {"system", "code", "display", "unit", "url", "profile", "status", "contentType"}
"""Elements whose texts a report may say where ``k`` patients share them (promise 3)."""


def sung(value: Any, name: str = "") -> Any:
    """Return a canary in each string, called by the element that it stands in."""
    if isinstance(value, dict):
        return {key: one if key == "resourceType" else sung(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [sung(one, name) for one in value]
    return f"Kanarienvogel-{name}-" if isinstance(value, str) else value


@pytest.mark.parametrize(("patients", "said"), [(1, set()), (4, set()), (5, MAY_BE_SAID), (SIZE, MAY_BE_SAID)])
def test_promise_3_of_strings_shared_by_k_patients_only_names_of_kinds_are_shown(
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
    for copy in (found.in_house, found.recipient):
        heard = set(re.findall(r"Kanarienvogel-(\w*)-", copy.model_dump_json() + html(copy) + short(copy, where="/")))
        assert heard <= (said if patients >= copy.k else set())
        assert ("code" in heard) == (patients >= copy.k)


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
    stops = [one.about for one in found.in_house.findings if one.code == "original-left"]
    assert stops == ["Patients.of Kanarienvogel", "….…"]  # all patients share the name of the column
    for copy in (found.in_house, found.recipient):
        assert "Kanarienvogel corrected" not in copy.model_dump_json()
        # What leaves are tables and what came in were resources: nothing is compared by path or by type.
        for name, column in (("left", "patients_before"), ("types", "patients_before"), ("types", "resources_before")):
            table = table_of(copy, name)
            assert {row[table.columns.index(column)] for row in table.rows} == {None}
    assert "#1" in found.in_house.model_dump_json()
    by_query = made(tmp_path, leaving, imported, steps=(), changed=("csv_wait/Kanarienvogel corrected.csv",)).in_house
    abouts = {one.about for one in by_query.findings}
    assert {"Kanarienvogel corrected.of Kanarienvogel", "csv_wait/Kanarienvogel corrected.csv"} <= abouts


def test_what_was_told_of_fewer_patients_then_is_not_told_again_under_a_larger_k(tmp_path: Path) -> None:
    few = write(tmp_path / "import", *map(maiden, range(4)))
    last = made(tmp_path, write(tmp_path / "out", *map(maiden, range(4))), few, settings=ReportConfig(k=3)).in_house
    assert MAIDEN in last.model_dump_json()
    found = made(tmp_path, write(tmp_path / "out"), few, last=last).in_house
    assert changes_of(found)[1] == [("@gone", "@stop", "@original-left", HIDDEN)]
    assert MAIDEN not in found.model_dump_json()


def test_without_import_the_report_says_that_originals_were_not_looked_for(tmp_path: Path) -> None:
    found = made(tmp_path, write(tmp_path / "out"), [])
    assert "originals-unchecked" in found.in_house.sections[0].said


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


HEAD = "file,line,entry,resource,severity,code,message_id,location,message,profile"


def validated(tmp_path: Path, *rows: tuple[str, str, str], lines: int = 1, query: Path | None = None) -> Reported:
    """A report of a job of which a validation found this: line, resource, profile."""
    (tmp_path / "validation").mkdir(exist_ok=True)
    found = [
        f"batch.ndjson,{line},1,{resource},error,structure,Odd_Code,Condition.code,quotes canary,{profile}"
        for line, resource, profile in rows
    ]
    (tmp_path / "validation" / "summary.csv").write_text("\n".join([HEAD, *found]) + "\n")
    step = StepReport(position=3, name="validation", state="completed", details={"reports": "validation"}, findings=9)
    leaving = write(tmp_path / "out")
    if lines > 1:
        again = leaving[0].read_text()
        leaving[0].write_text(again * lines)
    return made(tmp_path, leaving, write(tmp_path / "import"), steps=(step,), query=query and read_query(query))


def rows_of(report: Any) -> list[Any]:
    table = table_of(report, "validation")
    assert table.columns == ("position", "severity", "type", "profile", "message", "patients")
    return [(*row[2:5], row[5].word, row[5].number) for row in table.rows] + [table.withheld]


ONE, TWO, THREE = "http://a.example/one", "http://a.example/two", "http://a.example/three"


def test_findings_of_the_validation_are_told_by_profile(tmp_path: Path) -> None:
    found = validated(
        tmp_path,
        *((str(n), f"Condition/{n}", ONE) for n in range(1, 13)),
        *((str(n), f"Condition/x{n}", ONE) for n in range(1, 13)),  # a thousand of one patient are one patient
        *((str(n), f"Condition/{n}", f"{ONE} {TWO}") for n in range(13, 20)),
        *((str(n), f"Condition/{n}", THREE) for n in range(20, 23)),
        *((str(n), f"Patient/{n}", "") for n in range(1, 23)),
    )
    assert rows_of(found.in_house) == [
        ("Condition", ONE, "Odd_Code", "about", 10),
        ("Condition", "@other-profiles", "Odd_Code", "about", 10),
        ("Patient", "@no-profile", "Odd_Code", "all", None),
        False,
    ]
    assert rows_of(found.recipient)[:1] == [("Condition", "@other-profiles", "Odd_Code", "all", None)]
    assert ONE not in found.recipient.model_dump_json()
    assert THREE not in found.in_house.model_dump_json()
    assert "canary" not in found.in_house.model_dump_json()


def test_findings_of_few_patients_are_withheld_with_their_profile(tmp_path: Path) -> None:
    found = validated(tmp_path, *((str(n), f"Condition/{n}", THREE) for n in range(1, 5)))
    assert rows_of(found.in_house) == [True]
    assert THREE not in found.in_house.model_dump_json()


def test_a_profile_that_the_query_names_is_shown_however_long_it_is(tmp_path: Path) -> None:
    long = f"http://a.example/{'p' * 300}"
    attribute = {"attributeRef": "Condition.code", "mustHave": False}
    group = {"id": "g", "name": "G", "groupReference": f"{long}|1.0", "attributes": [attribute]}
    query = {"version": "1", "cohortDefinition": {}, "dataExtraction": {"attributeGroups": [group]}}
    (tmp_path / "query.json").write_text(json.dumps(query))
    rows = [(str(n), f"Condition/{n}", long) for n in range(1, 11)]
    assert [row[1] for row in rows_of(validated(tmp_path, *rows).in_house)[:-1]] == ["@other-profiles"]
    found = validated(tmp_path, *rows, query=tmp_path / "query.json")
    assert [row[1] for row in rows_of(found.in_house)[:-1]] == [long]


def test_findings_whose_line_is_no_patients_own_are_withheld(tmp_path: Path) -> None:
    rows = [(str(n), f"Condition/{n}", ONE) for n in range(1, 21)]
    for odd in ("1-9", "0", "23", "9" * 30, ""):
        assert rows_of(validated(tmp_path, *rows, (odd, "Condition/9", ONE)).in_house) == [True]
    assert rows_of(validated(tmp_path, *rows, lines=2).in_house) == [True]


@pytest.mark.parametrize("profile", ["@other-types", "…", "http://a.example/\u202e"])
def test_a_profile_is_never_taken_for_a_word_of_the_page(tmp_path: Path, profile: str) -> None:
    found = validated(tmp_path, *((str(n), f"Condition/{n}", profile) for n in range(1, 11)))
    assert [row[1] for row in rows_of(found.in_house)[:-1]] == ["@other-profiles"]


def test_of_many_profiles_the_last_ones_are_told_together(tmp_path: Path) -> None:
    found = validated(
        tmp_path, *((str(n), f"Condition/{n}", f"{ONE}{each}") for n in range(1, 11) for each in range(30))
    )
    names = [row[1] for row in rows_of(found.in_house)[:-1]]
    assert len(names) == 21
    assert names[-1] == "@other-profiles"


def test_where_there_is_no_room_for_more_cells_profiles_are_told_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.release_report.measure.cells._MOST_BITS", 10)
    rows = [(str(n), f"Condition/{n}", ONE) for n in range(1, 23)]
    rows += [(str(n), f"Condition/{n}", profile) for n in range(1, 11) for profile in (TWO, THREE)]
    found = validated(tmp_path, *rows)
    assert [(row[1], *row[3:]) for row in rows_of(found.in_house)[:-1]] == [
        (ONE, "all", None), ("@other-profiles", "about", 10),
    ]  # fmt: skip


COLUMNS = "Batch-ID,Reason,Group,Attribute,Resource-ID,Patient-ID\n"


def asking_for_consent(path: Path) -> Path:
    """Write a query whose cohort requires consent."""
    consent = {"context": {"code": "Einwilligung", "display": "Consent"}, "termCodes": []}
    query = {"version": "1", "cohortDefinition": {"inclusionCriteria": [[consent]]}, "dataExtraction": {}}
    path.write_text(json.dumps(query))
    return path


def outside(tmp_path: Path, text: str, *, counted: int, asked: bool = True) -> Any:
    """Return section 5's numbers of patients with resources that were left out for want of consent."""
    folder = tmp_path / "extraction" / "reports"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "resource-exclusions.csv").write_text(text)
    details = {"reports": ["resource-exclusions.csv"], "resource_exclusions": {"g": {"Consent": counted}}}
    step = StepReport(position=1, name="extractor", state="completed", output="import", details=details)
    query = asking_for_consent(tmp_path / "query.json") if asked else None
    found = made(
        tmp_path, write(tmp_path / "out"), write(tmp_path / "import"), steps=(step,), query=query and read_query(query)
    ).in_house
    assert "canary" not in found.model_dump_json()
    return found.fact("patients_outside_permit")


def test_of_how_many_patients_resources_were_left_out_for_want_of_consent(tmp_path: Path) -> None:
    def rows(patients: int, each: int = 3, reason: str = "CONSENT") -> str:
        whose = [(at, patient) for patient in range(patients) for at in range(each)]
        lines = [f'"b","{reason}","g","","Condition/canary{at}","canary{patient}"' for at, patient in whose]
        return "".join(f"{line}\n" for line in lines)

    more = rows(3, reason="MUST_HAVE")
    assert outside(tmp_path, COLUMNS + rows(8) + more, counted=24) == Count(word="about", number=10)
    assert outside(tmp_path, COLUMNS + rows(1, each=900), counted=900) == Count(word="fewer", number=5)
    assert outside(tmp_path, COLUMNS + more, counted=0) == Count(word="none")
    assert outside(tmp_path, COLUMNS + more, counted=0, asked=False) == "@not-checked"
    # What does not agree with the result, or names nobody, is not believed.
    assert outside(tmp_path, COLUMNS + rows(8), counted=25) is None
    assert outside(tmp_path, COLUMNS + '"b","CONSENT","g","","Condition/canary",""\n', counted=1) is None
    assert outside(tmp_path, "no table", counted=2) is None


def test_that_dates_of_what_was_left_out_are_not_known_is_said(tmp_path: Path) -> None:
    query = asking_for_consent(tmp_path / "query.json")
    step = StepReport(position=1, name="extractor", state="completed", output="import")
    files = write(tmp_path / "out"), write(tmp_path / "import")
    found = made(tmp_path, *files, steps=(step,), query=read_query(query)).in_house
    assert "consent-dates" in section_of(found, 14).said
    assert "consent-unchecked" not in {one.code for one in found.findings}
    assert found.fact("consent") == "@consent-checked"


@pytest.mark.parametrize("source", ["local_import", "http_import"])
@pytest.mark.parametrize("asked", [True, False], ids=["consent", "no-consent"])
def test_a_query_that_no_extraction_applied_is_said_where_it_stands(tmp_path: Path, source: str, asked: bool) -> None:
    query = read_query(asking_for_consent(tmp_path / "query.json"))
    query = query if asked or query is None else replace(query, criteria=())
    steps = (StepReport(position=1, name=source, state="completed", output="import"),)
    files = write(tmp_path / "out"), write(tmp_path / "import")
    copies = made(tmp_path, *files, steps=steps, query=query)
    for found in (copies.in_house, copies.recipient):
        assert section_of(found, 3).name == "query-not-applied"
        codes = {one.code: one.level for one in found.findings}
        assert codes["query-not-applied"] == "look"
        assert ("consent-unchecked" in codes) is asked
        assert found.fact("consent") == ("@consent-unchecked" if asked else "@consent-not-asked")
        for number in (5, 14):
            assert "consent-no-extraction" in section_of(found, number).said
            assert "consent-not-checked" not in section_of(found, number).said
    shown = html(copies.in_house)
    assert "Query (not applied by this job)" in shown
    assert "extraction server did not check" not in shown
    assert "Die Abfrage, von diesem Auftrag nicht angewandt" in html(
        copies.in_house.model_copy(update={"language": "de"})
    )


@pytest.mark.parametrize("given", [(), ("purpose",), ("purpose", "legal_basis", "recipient", "retention")])
def test_terms_that_are_not_given_are_one_look(tmp_path: Path, given: tuple[str, ...]) -> None:
    settings = ReportConfig.model_validate(dict.fromkeys(given, "as agreed"))
    found = made(tmp_path, write(tmp_path / "out"), write(tmp_path / "import"), settings=settings).in_house
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
