"""Extraction semantics, through real jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployments.sandbox.data import DATA, DEMO_CRTDL
from tests.deployments.sandbox.extraction.conftest import (
    BASE,
    ICD,
    Result,
    Start,
    attribute,
    code,
    concept,
    crtdl,
    group,
    patient,
    resource,
    write,
)

MASKED = {"extension": [{"url": "http://hl7.org/fhir/StructureDefinition/data-absent-reason", "valueCode": "masked"}]}
GONE = {"_reference": MASKED}
"""Return a reference to a resource outside the result."""
NAMING = "https://www.medizininformatik-initiative.de/fhir/fdpg/NamingSystem/"
CONDITIONS = group("cond", "Condition", attribute("Condition.code", must=True))


@pytest.fixture
def extract(start: Start, tmp_path: Path) -> Any:
    """Extract from the given resources and patient p1."""

    def run(query: dict[str, Any], *resources: dict[str, Any] | str, **options: Any) -> Result:
        data = write(tmp_path / "data", patient("p1", gender="female"), *resources)
        return start(data, **options).extract(query)

    return run


class TestBundles:
    def test_each_line_is_one_patients_transaction_with_puts_sorted_by_type_and_id(self, extract: Any) -> None:
        result = extract(
            crtdl(CONDITIONS),
            resource("Condition", "z", "p1", code=concept(ICD, "A")),
            resource("Condition", "b", "p1", code=concept(ICD, "A")),
            patient("p2", gender="male"),
            resource("Condition", "c", "p2", code=concept(ICD, "A")),
        )
        assert len(result.bundles) == 2
        for bundle, keys in zip(
            result.bundles, (["Condition/b", "Condition/z", "Patient/p1"], ["Condition/c", "Patient/p2"]), strict=True
        ):
            assert (bundle["resourceType"], bundle["type"]) == ("Bundle", "transaction")
            urls = [entry["request"]["url"] for entry in bundle["entry"]]
            assert urls[: len(keys)] == keys
            assert all(url.startswith("Provenance/") for url in urls[len(keys) :])
            for entry in bundle["entry"]:
                found = entry["resource"]
                assert entry["request"] == {"method": "PUT", "url": f"{found['resourceType']}/{found['id']}"}

    def test_one_provenance_per_attribute_group_with_a_resource_in_the_bundle(self, extract: Any) -> None:
        unused = group("none", "Observation", attribute("Observation.code"))
        result = extract(crtdl(CONDITIONS, unused), resource("Condition", "c1", "p1", code=concept(ICD, "A")))
        provenances = [
            entry["resource"]
            for entry in result.bundles[0]["entry"]
            if entry["resource"]["resourceType"] == "Provenance"
        ]
        assert len(provenances) == 2
        found = provenances[1]
        assert found.pop("id").startswith("prov-")
        assert found == {
            "resourceType": "Provenance",
            "target": [{"reference": "Condition/c1"}],
            "recorded": "2026-03-02T09:15:00Z",
            "occurredPeriod": {"start": "2026-03-02T09:15:00Z"},
            "agent": [{"who": {"identifier": {"system": f"{NAMING}program", "value": "sandbox"}}}],
            "entity": [
                {"role": "source", "what": {"identifier": {"system": f"{NAMING}attribute_group", "value": "cond"}}},
                {"role": "source", "what": {"identifier": {"system": f"{NAMING}extraction_id", "value": result.job}}},
            ],
        }

    def test_a_batch_holds_at_most_batchsize_patients(self, start: Start, hospital: Path) -> None:
        for size, lengths in ((1, [1, 1, 1]), (2, [1, 2]), (500, [3])):
            result = start(hospital, batchsize=size).extract(crtdl())
            assert sorted(text.count("\n") for text in result.texts.values()) == lengths


class TestGroups:
    def test_a_group_takes_what_claims_its_profile_whatever_the_version(self, extract: Any) -> None:
        profile = "https://example.org/Diagnose"
        result = extract(
            crtdl(group("g", f"{profile}|2.0", attribute("Condition.code"))),
            resource("Condition", "c1", "p1", profile),
            resource("Condition", "c2", "p1", f"{profile}|1.0"),
            resource("Condition", "c3", "p1", f"{profile}n"),
            resource("Condition", "c4", "p1"),
        )
        assert set(result.resources) == {"Patient/p1", "Condition/c1", "Condition/c2"}

    def test_token_filters_are_alternatives_and_the_date_filter_applies_too(self, extract: Any) -> None:
        filters = [
            {"type": "token", "name": "code", "codes": [code(ICD, "A"), code(ICD, "B")]},
            {"type": "token", "name": "category", "codes": [code("s", "x")]},
            {"type": "date", "name": "recorded-date", "start": "2025-01-01", "end": "2025-01-31"},
        ]
        inside = {"recordedDate": "2025-01-31T23:00:00+01:00"}
        result = extract(
            crtdl(group("g", "Condition", attribute("Condition.code"), filter=filters)),
            resource("Condition", "a", "p1", code=concept(ICD, "A"), **inside),
            resource("Condition", "b", "p1", code=concept(ICD, "B"), recordedDate="2025"),
            resource("Condition", "x", "p1", code=concept(ICD, "C"), category=[concept("s", "x")], **inside),
            resource("Condition", "no-1", "p1", code=concept(ICD, "C"), **inside),
            resource("Condition", "no-2", "p1", code=concept(ICD, "A"), recordedDate="2025-02-01"),
            resource("Condition", "no-3", "p1", code=concept(ICD, "A")),
        )
        assert set(result.resources) == {"Patient/p1", "Condition/a", "Condition/b", "Condition/x"}

    def test_a_resource_in_two_groups_is_there_once_with_the_elements_of_both(self, extract: Any) -> None:
        result = extract(
            crtdl(
                group("g1", "Condition", attribute("Condition.code")),
                group("g2", "Condition", attribute("Condition.severity"), attribute("Condition.note.text")),
            ),
            resource("Condition", "c", "p1", code=concept(ICD, "A"), severity=concept("s", "1"), stage=[{}],
                     note=[{"text": "x", "time": "2025"}]),
        )  # fmt: skip
        assert result.bundles[0]["entry"][0]["resource"] == {
            "resourceType": "Condition",
            "id": "c",
            "meta": {"profile": [f"{BASE}Condition"]},
            "subject": {"reference": "Patient/p1"},
            "code": concept(ICD, "A"),
            "severity": concept("s", "1"),
            "note": [{"text": "x"}],
        }
        assert result.summary["Resource-Inclusions"] == {"pat": 1, "g1": 1, "g2": 1}

    def test_patient_parameters_bypass_the_cohort(self, start: Start, hospital: Path) -> None:
        result = start(hospital).extract(crtdl(), "d", "a", "d")
        assert set(result.resources) == {"Patient/a", "Patient/d"}
        assert result.summary["Num-Cohort-Patients"] == 2


class TestRedaction:
    def test_only_the_attributes_id_profile_and_the_patient_reference_are_copied(self, extract: Any) -> None:
        source = resource(
            "Observation", "o", "p1", "https://example.org/Lab", status="final", code=concept("s", "1"),
            valueQuantity={"value": 1}, effectiveDateTime="2025", note=[{"text": "private"}],
        )  # fmt: skip
        source["meta"] |= {"source": "somewhere", "versionId": "7"}
        source["subject"]["display"] = "A Name"
        source["text"] = {"status": "generated", "div": "<div>A Name</div>"}
        query = crtdl(group("g", "https://example.org/Lab", attribute("Observation.value[x]")))
        assert extract(query, source).resources["Observation/o"] == {
            "resourceType": "Observation",
            "id": "o",
            "meta": {"profile": ["https://example.org/Lab"]},
            "subject": {"reference": "Patient/p1"},
            "valueQuantity": {"value": 1},
            "_status": MASKED,
            "code": MASKED,
        }

    @pytest.mark.parametrize(
        ("ref", "expected"),
        [
            ("Observation.value[x]", {"valueString": "x", "_valueString": {"id": "e"}}),
            ("Observation.value[x]:valueString", {"valueString": "x", "_valueString": {"id": "e"}}),
            ("Observation.value[x]:valueQuantity", {}),
            ("Observation.component.code", {"component": [{"code": concept("s", "1")}, {"code": MASKED}]}),
            ("Observation.component.value[x]", {"component": [{"code": MASKED}, {"valueInteger": 7, "code": MASKED}]}),
            ("Observation.component", {"component": [{"code": concept("s", "1")}, {"valueInteger": 7}]}),
            ("Observation.values", {}),
        ],
    )
    def test_paths_reach_into_lists_and_choices(self, extract: Any, ref: str, expected: dict[str, Any]) -> None:
        source = resource(
            "Observation", "o", "p1", valueString="x", _valueString={"id": "e"}, valueset="no choice",
            component=[{"code": concept("s", "1")}, {"valueInteger": 7}],
        )  # fmt: skip
        found = extract(crtdl(group("g", "Observation", attribute(ref))), source).resources["Observation/o"]
        always = ("resourceType", "id", "meta", "subject", "_status", "code")
        assert {key: value for key, value in found.items() if key not in always} == expected

    @pytest.mark.parametrize("spelling", ["1.50", "1e3", "0.10", "-0.0", "120.00", "1E+2", "123456789012345678901.5"])
    def test_decimals_keep_their_spelling(self, extract: Any, spelling: str) -> None:
        source = (
            '{"resourceType":"Observation","id":"o","subject":{"reference":"Patient/p1"},'
            f'"valueQuantity":{{"value":{spelling},"unit":"ü"}},"component":[{{"valueQuantity":{{"value":{spelling}}}}}]}}'
        )
        query = crtdl(
            group("g", "Observation", attribute("Observation.value[x]"), attribute("Observation.component.value[x]"))
        )
        text = "".join(extract(query, source).texts.values())
        assert text.count(f'"value":{spelling}') == 2

    def test_references_that_leave_the_result_are_masked_others_stay(self, extract: Any) -> None:
        attributes = [
            attribute(f"Condition.{name}") for name in ("encounter", "asserter", "evidence", "stage", "recorder")
        ]
        result = extract(
            crtdl(group("g", "Condition", *attributes)),
            resource("Condition", "c", "p1",
                     encounter={"reference": "Encounter/e", "display": "private"},
                     asserter={"reference": "http://elsewhere.example/Practitioner/x", "type": "Practitioner",
                               "identifier": {"value": "1"}},
                     recorder={"identifier": {"value": "no literal reference"}},
                     evidence=[{"detail": [{"reference": "Condition/d"}, {"reference": "Condition/d/_history/1"}]}],
                     stage=[{"assessment": [{"reference": "#inner"}, {"reference": "urn:uuid:1"}]}]),
            resource("Condition", "d", "p1"),
            resource("Encounter", "e", "p1"),
        )  # fmt: skip
        found = result.resources["Condition/c"]
        assert found["encounter"] == GONE | {"display": "private"}
        assert found["asserter"] == GONE | {"identifier": {"value": "1"}, "type": "Practitioner"}
        assert found["recorder"] == {"identifier": {"value": "no literal reference"}}
        assert found["evidence"][0]["detail"] == [{"reference": "Condition/d"}, {"reference": "Condition/d/_history/1"}]
        assert found["stage"][0]["assessment"] == [GONE, GONE]
        assert found["subject"] == {"reference": "Patient/p1"}


class TestMustHave:
    QUERY = crtdl(group("cond", "Condition", attribute("Condition.code", must=True), name="Diagnosen"))

    def test_a_resource_without_it_is_dropped_and_reported(self, extract: Any) -> None:
        result = extract(
            self.QUERY,
            resource("Condition", "with", "p1", code=concept(ICD, "A")),
            resource("Condition", "without", "p1"),
            resource("Condition", "null", "p1", code=None),
        )
        assert set(result.resources) == {"Patient/p1", "Condition/with"}
        assert result.excluded() == {
            ("MUST_HAVE", "Diagnosen", "Condition.code", "Condition/without"),
            ("MUST_HAVE", "Diagnosen", "Condition.code", "Condition/null"),
        }
        assert result.summary["Resource-Exclusions"]["Diagnosen"]["Must-Have"] == {"Condition.code": 2}

    def test_a_patient_without_a_passing_resource_in_such_a_direct_group_is_dropped(self, extract: Any) -> None:
        result = extract(
            self.QUERY,
            resource("Condition", "c1", "p1", code=concept(ICD, "A")),
            patient("p2", gender="male"),
            patient("p3", gender="male"),
            resource("Condition", "c3", "p3"),
        )
        assert set(result.resources) == {"Patient/p1", "Condition/c1"}
        assert result.left_out() == {("DIRECT_LOAD", "p2"), ("DIRECT_LOAD", "p3")}
        assert result.summary["Patient-Exclusions"] == {"CASCADING_DELETE": 0, "DIRECT_LOAD": 2, "CONSENT": 0}
        assert (result.summary["Num-Cohort-Patients"], result.summary["Num-Final-Patients"]) == (3, 1)


class TestReferences:
    FALL = "https://example.org/Fall"
    HERE = resource("Encounter", "e", "p1", FALL, status="finished", type=[concept("s", "1")])
    NOT_FOUND = ("REFERENCE_NOT_FOUND", "cond", "Condition.encounter", "Encounter/e")
    ELSEWHERE = ("RESOURCE_OUTSIDE_BATCH", "cond", "Condition.encounter", "Encounter/e")

    def query(self, *, must: bool) -> dict[str, Any]:
        cases = group(
            "enc", self.FALL, attribute("Encounter.status"), includeReferenceOnly=True,
            filter=[{"type": "token", "name": "type", "codes": [code("s", "1")]}],
        )  # fmt: skip
        return crtdl(group("cond", "Condition", attribute("Condition.encounter", "enc", must=must)), cases)

    @staticmethod
    def condition(key: str, target: str) -> dict[str, Any]:
        return resource("Condition", key, "p1", encounter={"reference": target})

    def test_a_reference_only_group_is_filled_through_references_only(self, extract: Any) -> None:
        alone = self.HERE | {"id": "alone"}
        result = extract(self.query(must=False), self.condition("c", "Encounter/e"), self.HERE, alone)
        assert set(result.resources) == {"Patient/p1", "Condition/c", "Encounter/e"}
        assert result.resources["Condition/c"]["encounter"] == {"reference": "Encounter/e"}

    @pytest.mark.parametrize(
        ("target", "row"),
        [
            (None, NOT_FOUND),
            (resource("Encounter", "e", "p2", FALL, status="finished", type=[concept("s", "1")]), ELSEWHERE),
            # There, and unfit for the linked group: another profile, another code
            (HERE | {"meta": {"profile": ["https://example.org/Other"]}}, NOT_FOUND),
            (HERE | {"type": [concept("s", "2")]}, NOT_FOUND),
        ],
    )
    def test_a_reference_that_leads_to_nothing_is_reported_and_masked(
        self, extract: Any, target: dict[str, Any] | None, row: tuple[str, ...]
    ) -> None:
        there = [self.condition("c", "Encounter/e"), patient("p2", gender="male"), *([target] if target else [])]
        result = extract(self.query(must=False), *there)
        assert result.resources["Condition/c"]["encounter"] == GONE
        assert result.excluded() == {row}
        counted = result.summary["Resource-Exclusions"]["cond"]
        assert counted[row[0].title().replace("_", "-")] == 1

    def test_a_must_have_reference_that_leads_to_nothing_takes_its_resource_with_it(self, extract: Any) -> None:
        good, bad = self.condition("good", "Encounter/e"), self.condition("bad", "Encounter/nowhere")
        result = extract(self.query(must=True), good, bad, self.HERE)
        assert set(result.resources) == {"Patient/p1", "Condition/good", "Encounter/e"}
        assert ("CASCADING_DELETE", "cond", "Condition.encounter", "Condition/bad") in result.excluded()
        assert result.summary["Resource-Exclusions"]["cond"]["Cascading-Delete"] == 1

    def test_a_patient_who_loses_the_last_such_resource_is_dropped(self, extract: Any) -> None:
        result = extract(self.query(must=True), self.condition("bad", "Encounter/nowhere"))
        assert result.manifest["output"] == []
        assert result.left_out() == {("CASCADING_DELETE", "p1")}
        assert result.summary["Patient-Exclusions"]["CASCADING_DELETE"] == 1


class TestCore:
    GIVEN = group("given", "MedicationAdministration", attribute("MedicationAdministration.medication[x]", "med"))
    DRUGS = group("med", "Medication", attribute("Medication.code", must=True), includeReferenceOnly=True)

    @staticmethod
    def administration(key: str, drug: str, owner: str = "p1") -> dict[str, Any]:
        return resource("MedicationAdministration", key, owner, medicationReference={"reference": f"Medication/{drug}"})

    def test_what_belongs_to_no_patient_goes_to_the_core_file_only_and_once(self, extract: Any) -> None:
        result = extract(
            crtdl(self.GIVEN, self.DRUGS),
            self.administration("a1", "m"), self.administration("a2", "m"),
            patient("p2", gender="male"), self.administration("a3", "m", "p2"),
            resource("Medication", "m", code=concept("atc", "A")),
            resource("Medication", "unused", code=concept("atc", "B")),
            self.administration("a4", "bad", "p2"), resource("Medication", "bad"),
            batchsize=1,
        )  # fmt: skip
        assert len(result.texts) == 3
        assert result.texts["core.ndjson"].count("\n") == 1
        assert set(result.core) == {"Medication/m"}
        assert "Medication/m" not in result.resources
        assert result.resources["MedicationAdministration/a1"]["medicationReference"] == {"reference": "Medication/m"}
        assert result.resources["MedicationAdministration/a4"]["medicationReference"] == GONE
        assert result.excluded() == {("MUST_HAVE", "med", "Medication.code", "Medication/bad")}
        assert result.summary["Resource-Inclusions"]["med"] == 1
        assert result.manifest["output"][-1]["url"].endswith("/core.ndjson")

    def test_a_direct_group_takes_all_of_them_and_references_to_them_stay(self, extract: Any) -> None:
        wards = group("org", "Organization", attribute("Organization.name", must=True))
        encounters = group("enc", "Encounter", attribute("Encounter.serviceProvider"))
        result = extract(
            crtdl(encounters, wards),
            resource("Encounter", "e1", "p1", serviceProvider={"reference": "Organization/named"}),
            resource("Encounter", "e2", "p1", serviceProvider={"reference": "Organization/nameless"}),
            resource("Organization", "named", name="x"),
            resource("Organization", "nameless"),
        )
        assert set(result.core) == {"Organization/named"}
        assert result.resources["Encounter/e1"]["serviceProvider"] == {"reference": "Organization/named"}
        assert result.resources["Encounter/e2"]["serviceProvider"] == GONE
        assert result.report("resource-exclusions.csv").splitlines()[1:] == [
            '"core","MUST_HAVE","org","Organization.name","Organization/nameless",""'
        ]

    def test_core_without_batch_files_when_no_patient_survived(self, extract: Any) -> None:
        result = extract(
            crtdl(CONDITIONS, group("org", "Organization", attribute("Organization.name"))),
            resource("Organization", "o", name="x"),
        )
        assert list(result.texts) == ["core.ndjson"]
        assert result.extension("extractor-job-issues") is None
        assert [batch["state"] for batch in result.batches] == ["SKIPPED"]


class TestReports:
    def test_every_field_is_quoted_and_the_columns_are_those_of_the_contract(self, extract: Any) -> None:
        labelled = group("cond", "Condition", attribute("Condition.code", must=True), name='Dia"gnose, 1')
        result = extract(crtdl(labelled), resource("Condition", "c", "p1"))
        batch = result.batches[0]["id"]
        assert result.report("resource-exclusions.csv") == (
            '"Batch-ID","Reason","Group","Attribute","Resource-ID","Patient-ID"\n'
            f'"{batch}","MUST_HAVE","Dia""gnose, 1","Condition.code","Condition/c","p1"\n'
        )
        assert result.report("patient-exclusions.csv") == (
            f'"Batch-ID","Stage","Patient-ID"\n"{batch}","DIRECT_LOAD","p1"\n'
        )

    def test_the_summary_has_the_fields_of_document_2(self, start: Start, hospital: Path) -> None:
        result = start(hospital, batchsize=1).extract(crtdl(CONDITIONS))
        assert json.loads(result.report("job-summary.json")) == result.summary
        assert set(result.summary) == {
            "Num-Cohort-Patients", "Num-Final-Patients", "Duration-Measurements", "Patient-Exclusions",
            "Resource-Exclusions", "Resource-Inclusions",
        }  # fmt: skip
        stages = ["CONSENT_FETCH", "DIRECT_LOAD", "REFERENCE_RESOLVE", "CASCADING_DELETE", "COPY_REDACT"]
        assert list(result.summary["Duration-Measurements"]) == stages
        for measured in result.summary["Duration-Measurements"].values():
            assert set(measured) == {"medianNanos", "averageNanos"}
            assert all(isinstance(value, int) and value >= 0 for value in measured.values())
        assert set(result.summary["Resource-Exclusions"]["cond"]) == {
            "Must-Have", "Consent", "Reference-Not-Found", "Resource-Outside-Batch", "Cascading-Delete",
        }  # fmt: skip

    def test_counts_agree_with_the_files_and_the_rows(self, start: Start) -> None:
        result = start(DATA, batchsize=5).extract(DEMO_CRTDL.read_bytes())
        total = len(result.resources) + len(result.core)
        assert sum(result.summary["Resource-Inclusions"].values()) == total
        assert result.summary["Num-Final-Patients"] == len(result.bundles)
