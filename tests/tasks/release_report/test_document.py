"""Sections and schema of ``release-report.json``."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tasks.release_report import document, files
from tasks.release_report.facts import SUMMARY
from tasks.release_report.numbers import Count
from tasks.release_report.query import read_query, read_summary
from tasks.release_report.report import make_report
from tasks.shared.errors import DataError
from tasks.shared.files.inventory import take_inventory
from tasks.shared.stop import Stop
from tests.conftest import ROOT
from tests.tasks.release_report.reporting import (
    SEND,
    bundle,
    config,
    facts,
    observation,
    patient,
    pseudonymizer,
    record,
    report,
    rows,
    section,
    step,
    summary,
    write,
)

SCHEMA = ROOT / "docs" / "schemas" / "release-report.schema.json"


def test_the_schema_is_that_of_the_code() -> None:
    command = f"python -m tasks.release_report.document > {SCHEMA.relative_to(ROOT)}"
    assert SCHEMA.read_text(encoding="utf-8") == document.schema(), command
    jsonschema.Draft202012Validator.check_schema(json.loads(document.schema()))


def test_a_report_is_as_its_schema_says(tmp_path: Path) -> None:
    write(tmp_path, "a.ndjson", patient("1", name=[{"family": "x"}]))
    summary(tmp_path)
    jsonschema.validate(json.loads(files.document_of(tmp_path).read_text()), json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize(
    ("send", "expected"),
    [
        (SEND, {"mode": "direct_resource_load", "host": "store.example.org", "connection": "@encrypted"}),
        ({"send_as": "transfer_load", "url": "http://h.example:8080",
          "transfer": {"project_identifier": "P", "organization_identifier": "O"}},
         {"mode": "transfer_load", "host": "h.example:8080", "project": "P", "organization": "O",
          "connection": "@not_encrypted"}),
        ({"send_as": "s3_upload", "s3": {"bucket": "b", "prefix": "p/", "region": "eu-1", "access_key_id": "a",
                                         "secret_access_key": "s"}},
         {"mode": "s3_upload", "bucket": "b", "prefix": "p/", "host": "s3.eu-1.amazonaws.com",
          "connection": "@encrypted"}),
    ],
)  # fmt: skip
def test_where_the_data_go(tmp_path: Path, send: dict[str, Any], expected: dict[str, Any]) -> None:
    write(tmp_path, "a.ndjson", patient("1"))
    found = section(report(tmp_path, config=config(services={"send": send})), 3).facts
    assert {name: found.get(name) for name in expected} == expected
    assert "s" not in found.values()


def test_a_job_that_sends_nothing_says_so(tmp_path: Path) -> None:
    write(tmp_path, "a.ndjson", patient("1"))
    found = report(tmp_path, config=config(("local_import",)))
    assert "nothing-sent" in section(found, 3).sentences
    assert found.tiles.destination is None


CRTDL = {
    "display": "Sepsis",
    "cohortDefinition": {
        "inclusionCriteria": [
            [
                {"context": {"display": "Diagnosis"}, "termCodes": [{"code": "A41", "display": "Sepsis"}],
                 "timeRestriction": {"afterDate": "2020-01-01"}},
                {"context": {"code": "Lab"}, "termCodes": [{"code": "1"}],
                 "valueFilter": {"type": "quantity-comparator", "comparator": "gt", "value": 2, "unit": {"code": "g"}}},
            ],
            [{"context": {"display": "Consent"}, "termCodes": [{"display": "MDAT"}]}],
        ],
        "exclusionCriteria": [[{"context": {"display": "Patient"}, "termCodes": [{"display": "Age"}],
                                "valueFilter": {"type": "quantity-range", "minValue": 0, "maxValue": 17}}]],
    },
    "dataExtraction": {
        "attributeGroups": [
            {"name": "Labs",
             "attributes": [{"attributeRef": "Observation.code"}, {"attributeRef": "Observation.value"}],
             "filter": [{"type": "token", "codes": [{"code": "718-7", "display": "Hb"}]},
                        {"type": "date", "name": "date", "start": "2021-01-01"}]},
        ],
    },
}  # fmt: skip

COUNTED = {
    "Num-Cohort-Patients": 40,
    "Num-Final-Patients": 9,
    "Patient-Exclusions": {"CONSENT": 3, "DIRECT_LOAD": 28, "CASCADING_DELETE": 0},
    "Resource-Exclusions": {
        "Labs": {"Must-Have": {"Observation.code": 4, "Observation.value": 2}, "Consent": 7, "Cascading-Delete": 1},
    },
    "Duration-Measurements": {"CONSENT_FETCH": {"medianNanos": 1}},
}  # fmt: skip


def test_query_consent_and_patients_of_an_extraction(tmp_path: Path) -> None:
    write(tmp_path, "a.ndjson", *(bundle(patient(str(n)), observation(str(n))) for n in range(9)))
    crtdl = tmp_path / "query.json"
    crtdl.write_text(json.dumps(CRTDL))
    (tmp_path / SUMMARY).parent.mkdir(parents=True)
    (tmp_path / SUMMARY).write_text(json.dumps(COUNTED))
    record(tmp_path, 1, patients=9)
    steps = (step("extractor", output="import"), step("validation", 3))
    found = report(tmp_path, crtdl=crtdl, steps=steps)
    assert found.findings == ()
    asked = section(found, 4)
    assert asked.facts["title"] == "Sepsis"
    assert asked.facts["query_sha256"] == hashlib.sha256(crtdl.read_bytes()).hexdigest()
    assert asked.facts["consent"] == "@consent-checked"
    assert asked.facts["patients_without_consent"] == Count(word="fewer", number=5)
    assert asked.facts["resources_without_consent"] == 7
    assert [row for table in asked.tables if table.name == "cohort" for row in table.rows] == [
        ("@included", "Diagnosis: Sepsis (2020-01-01 – …) or Lab: 1 (> 2 g)"),
        ("@included", "Consent: MDAT"),
        ("@excluded", "Patient: Age (0 – 17)"),
    ]
    assert rows(found, "groups") == {"Labs": ("Observation", "code, value", "Hb; date 2021-01-01 – …")}
    assert rows(found, "flow") == {
        "@in-cohort": (Count(word="about", number=40),),
        "@extracted": (Count(word="all"),),
        "@imported": (Count(word="all"),),
        "@leaving": (9,),  # the total is exact
    }
    assert rows(found, "lost")["@lost-direct_load"] == (Count(word="about", number=30),)
    assert rows(found, "lost")["@lost-consent"] == (Count(word="fewer", number=5),)
    assert section(found, 5).facts["resources_without_must_have"] == 6


def test_nobody_is_left_out_for_a_consent_that_the_query_does_not_require(tmp_path: Path) -> None:
    write(tmp_path, "a.ndjson", patient("1"))
    (tmp_path / "query.json").write_text("{}")
    (tmp_path / SUMMARY).parent.mkdir(parents=True)
    (tmp_path / SUMMARY).write_text('{"Patient-Exclusions": {"CONSENT": 0}}')
    found = report(tmp_path, crtdl=tmp_path / "query.json", steps=(step("extractor", output="import"),))
    assert rows(found, "lost") == {"@lost-consent": ("@consent-not-asked",)}


def test_a_query_of_a_job_without_extraction_was_not_applied(tmp_path: Path) -> None:
    write(tmp_path, "a.ndjson", patient("1"))
    (tmp_path / "query.json").write_text(json.dumps(CRTDL))
    found = report(tmp_path, crtdl=tmp_path / "query.json")
    assert section(found, 4).sentences == ("query-not-applied",)


@pytest.mark.parametrize("text", ["", "[]", '{"Patient-Exclusions": 1, "Resource-Exclusions": {"a": 1}}'])
def test_odd_summaries_and_queries_are_none_or_empty(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert read_query(path) is None or read_query(path).title == ""  # type: ignore[union-attr]
    found = read_summary(path)
    assert found is None or (found.cohort, found.excluded, found.without_consent) == (None, {}, 0)


def test_telling_patients_apart_with_bands_of_birth_years(tmp_path: Path) -> None:
    people = [patient(str(n), birthDate=str(1950 + n % 5), gender="female") for n in range(12)]
    write(tmp_path, "a.ndjson", *people, patient("x", birthDate="1990", gender="male"))
    fewer, none = Count(word="fewer", number=5), Count(word="none")
    assert rows(report(tmp_path), "apart") == {
        "@years-1": (fewer, Count(word="about", number=10), none),
        "@years-5": (fewer, none, Count(word="about", number=10)),
    }


def test_rules_kept_and_what_came_back_are_in_section_6(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("fhirPathRules: []")
    write(tmp_path, "a.ndjson", *(patient(str(n), birthDate="1980") for n in range(9)))
    settings = config(services={"pseudonymizer": {"anonymization_config": str(rules), "kept_identifiers": ["s"]}})
    leaks = {"Patient.identifier.value|identifier|s": 9, "Patient.name.text|name|": 2}
    found = report(tmp_path, config=settings, found={"leaks": leaks, "dates that stayed": {"Encounter.period.end": 9}})
    facts = section(found, 6).facts
    assert (facts["rules"], len(str(facts["rules_sha256"])), facts["kept_identifiers"]) == ("rules.yaml", 64, "s")
    ten = Count(unit="lines", word="about", number=10)
    few = Count(unit="lines", word="fewer", number=5)
    assert rows(found, "left") == {
        "Patient.name.text": ("@kind-name", few, None, "@stop"),
        "Encounter.period.end": ("@kind-date", ten, None, "@stop"),
        "Patient.identifier.value": ("@kind-identifier", ten, None, "@note"),
    }
    assert rows(found, "births") == {"@births-year": (Count(word="all"),)}


def test_ids_that_stayed_are_called_original(tmp_path: Path) -> None:
    write(tmp_path, "a.ndjson", *(patient(str(n)) for n in range(9)))
    assert list(rows(report(tmp_path), "ids")) == ["@ids-other"]
    files.remove(tmp_path)
    assert rows(report(tmp_path, found={"ids kept": {"Patient": 9}}), "ids") == {
        "@ids-original": (Count(unit="lines", word="about", number=10),), "@ids-other": (Count(word="all"),),
    }  # fmt: skip


def test_urls_of_extensions_with_few_patients_are_counted_and_not_shown(tmp_path: Path) -> None:
    seen = {"https://a.example/often": 9, "https://a.example/rare": 4, "https://a.example/once": 1}
    for url, patients in (seen | {"http://hl7.org/fhir/StructureDefinition/x": 1}).items():
        lines = (patient(str(n), extension=[{"url": url, "valueBoolean": True}]) for n in range(patients))
        write(tmp_path, f"{patients}{url[-1]}.ndjson", *lines)
    few = Count(word="fewer", number=5)
    assert rows(report(tmp_path), "extensions") == {
        "http://hl7.org/fhir/StructureDefinition/x": (few,),
        "https://a.example/often": (Count(word="least", number=5, lines=9),),
        "@hidden-urls": (2,),
    }


def test_not_checked_is_never_empty_and_says_what_this_job_did_not_check(tmp_path: Path) -> None:
    write(tmp_path, "a.ndjson", patient("1"))
    (tmp_path / "import" / "a.csv").write_text("id\n1\n")
    (tmp_path / "import" / "b.xml").write_text("<Patient/>")
    (tmp_path / "query.json").write_text("{}")
    always = {"text-unread", "attachments-unread", "rare-combinations", "tables-by-column", "files-unread"}
    nothing = section(report(tmp_path, steps=()), 8)
    assert {*nothing.sentences} == always | {"pseudonymized-elsewhere", "not-validated", "origin-unknown"}
    steps = (step("extractor"), step("pseudonymizer", 2), step("validation", 3))
    done = section(report(tmp_path, steps=steps, crtdl=tmp_path / "query.json"), 8)
    assert {*done.sentences} == always | {"consent-not-asked"}


@pytest.mark.parametrize(("lines", "sampled"), [(100, False), (101, True)])
def test_dates_are_called_unchecked_only_if_lines_were_left_out(tmp_path: Path, lines: int, sampled: bool) -> None:
    write(tmp_path, "a.ndjson", patient("1"))
    record(tmp_path, 2, {"dates": {"moved": 90}}, counts={"lines": lines})
    found = report(tmp_path, steps=(pseudonymizer(),))
    assert ("dates-sampled" in section(found, 8).sentences) is sampled
    assert section(found, 6).facts["dates_moved"] == Count(unit="lines", word="all")


def test_lines_of_patients_whose_dates_moved_and_stayed_are_counted_in_bands(tmp_path: Path) -> None:
    write(tmp_path, "a.ndjson", patient("1"))
    record(tmp_path, 2, {"dates": {"moved": 92, "unmoved": 3}})
    facts = section(report(tmp_path, steps=(pseudonymizer(),)), 6).facts
    assert facts["dates_moved"] == Count(unit="lines", word="about", number=90)
    assert facts["dates_unmoved"] == Count(unit="lines", word="fewer", number=5)


@pytest.mark.parametrize(
    ("more", "outcome"),
    [
        ({}, "waits"),
        ({"asks": False}, "unasked"),
        ({"asks": False, "inside": True}, "waits"),
        ({"asks": False, "step": None}, "unasked"),
        ({"asks": False, "step": None, "sent": "2026-11-28T12:00:00+00:00"}, "sent-undecided"),
        ({"step": None, "sent": "2026-11-28T12:00:00+00:00"}, "sent"),
    ],
)
def test_the_outcome_says_whether_somebody_is_asked(tmp_path: Path, more: dict[str, Any], outcome: str) -> None:
    write(tmp_path, "a.ndjson", patient("1"))
    assert report(tmp_path, **more).outcome == outcome


def test_a_file_that_changes_before_it_was_read_fails_the_report(tmp_path: Path) -> None:
    path = write(tmp_path, "a.ndjson", patient("1"))
    summary(tmp_path)
    path.write_text(path.read_text() * 2)
    manifest = take_inventory(tmp_path, [tmp_path / "import"], stop=Stop())
    path.write_text(path.read_text() * 2)
    with pytest.raises(DataError) as caught:
        make_report(facts(tmp_path), manifest)
    assert caught.value.reference == "report-files-changed"
    assert files.read(tmp_path) is None
