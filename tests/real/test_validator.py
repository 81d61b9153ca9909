"""HL7's validator in server mode (document 3 §6): its findings appear at their places, and nothing else does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tasks.validation.client import service as declared_service

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.data import DATA, DEMO_CRTDL
from deployments.sandbox.extraction.app import ExtractionOptions, extraction_service
from tests.deployments.sandbox.extraction.conftest import ExtractionServerClient, attribute, crtdl, group
from tests.peers import job
from tests.peers.data import bundle, resource
from tests.peers.validation import ValidationJob, keys
from tests.real.conftest import Measure

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

NARRATIVE = {"status": "generated", "div": '<div xmlns="http://www.w3.org/1999/xhtml">made up</div>'}


def patient(identifier: str, **more: Any) -> dict[str, Any]:
    return resource("Patient", identifier, text=NARRATIVE, **more)


def observation(identifier: str, **more: Any) -> dict[str, Any]:
    known = {"status": "final", "code": {"text": "made up"}, "effectiveDateTime": "2026-03-02"}
    about = {"subject": {"reference": "Patient/p"}, "performer": [{"reference": "Practitioner/x"}]}
    return resource("Observation", identifier, text=NARRATIVE, **known | about | more)


def found(job: ValidationJob) -> set[tuple[str, str, str, str, str]]:
    """File, line, resource, location and code of every finding."""
    return {
        (row["file"], row["line"], row["resource"], row["location"], row["code"])
        for row in job.summary()
        if row["severity"] in {"error", "fatal"}
    }


def test_the_made_up_resource_shows_that_it_validates(validator: str) -> None:
    config = job.configuration({"validation": {"url": validator}})
    assert job.probed(declared_service(config), config) == []


def test_what_is_right_has_no_finding_and_an_outcome_that_says_so(validator: str, tmp_path: Path) -> None:
    made = ValidationJob(tmp_path)
    made.write("a.ndjson", patient("p", gender="female", birthDate="1980-02-03"), observation("o"))
    assert made.validate(validator).details["findings"] == 0
    (outcome,) = made.reports()["a.validation.ndjson"]
    assert [issue["details"]["text"] for issue in outcome["issue"]] == ["All OK"]
    assert made.summary()[0]["resource"] == ""


def test_a_warning_is_told_and_is_no_finding(validator: str, tmp_path: Path) -> None:
    made = ValidationJob(tmp_path)
    made.write("a.ndjson", resource("Patient", "p", gender="female"))
    result = made.validate(validator)
    assert (result.details["findings"], result.details["severities"]) == (0, {"warning": 1})
    (row,) = made.summary()
    assert (row["line"], row["resource"], row["severity"]) == ("1", "Patient/p", "warning")


def test_findings_are_where_the_resources_are(validator: str, tmp_path: Path) -> None:
    made = ValidationJob(tmp_path)
    inner = bundle(patient("p", gender="female"), observation("o1", status="no such"), observation("o2", valueTim="x"))
    made.write("a.ndjson", patient("q"), inner)
    made.write("b.ndjson", patient("r", birthDate="yesterday"), patient("s"))
    result = made.validate(validator)
    places = {(file, line, which, where) for file, line, which, where, _ in found(made)}
    assert places == {
        ("a.ndjson", "2", "Observation/o1", "Observation.status"),
        ("a.ndjson", "2", "Observation/o2", "Observation"),
        ("b.ndjson", "1", "Patient/r", "Patient.birthDate"),
    }
    assert result.details["resources_with_findings"] == 3
    assert result.details["types"] == {"Observation": 3, "Patient": 1}


def many(count: int) -> list[dict[str, Any]]:
    wrong = {0: {"status": "no such"}, 1: {"effectiveDateTime": "yesterday"}, 2: {"unknown": 1}}
    return [observation(f"o{n}", **wrong.get(n % 10, {})) for n in range(count)]


def test_the_findings_of_many_chunks_at_once_are_those_of_one(validator: str, tmp_path: Path) -> None:
    results = []
    for name, settings in (("one", {}), ("many", {"chunk_bytes": 4000, "max_concurrent_requests": 6})):
        made = ValidationJob(tmp_path / name)
        for file in "abc":
            made.write(f"{file}.ndjson", *many(60))
        result = made.validate(validator, **settings)
        results.append(found(made))
        assert result.details["resources_with_findings"] == 3 * 18
    assert results[0] == results[1]
    assert len({(file, line) for file, line, *_ in results[0]}) == 3 * 18


def test_an_answer_points_at_entries_of_its_own_bundle_only(validator: str) -> None:
    """The step relies on this when it refuses a place behind the last entry."""
    entries = [{"fullUrl": f"https://example.org/Observation/o{n}", "resource": one} for n, one in enumerate(many(40))]
    sent = {"resourceType": "Bundle", "type": "collection", "entry": entries}
    with httpx.Client(trust_env=False, timeout=60) as http:
        answer = http.post(
            f"{validator}/validateResource", json=sent,
            headers={"Content-Type": "application/fhir+json", "Accept": "application/fhir+json"},
        )  # fmt: skip
    assert len(keys(json.dumps(sent).encode())) == 40
    places = [place for issue in answer.json()["issue"] for place in issue.get("expression", ())]
    numbers = {int(place.partition("entry[")[2].partition("]")[0]) for place in places}
    assert numbers == {n for n in range(40) if n % 10 < 3}


ASKED = {
    "Condition": ("recordedDate",), "Observation": ("status", "effective[x]"), "Encounter": ("status", "period"),
    "MedicationAdministration": ("status", "dosage"), "Procedure": ("status",), "DiagnosticReport": ("status",),
    "MedicationRequest": ("status", "intent"), "Consent": ("status", "policy"), "Medication": ("form",),
    "Organization": ("name",), "Patient": ("birthDate",),
}  # fmt: skip
"""Some elements of each type of the demo's data. What is asked for of the required ones are codes of required bindings:
masked ones the validator does not take."""
LITTLE = crtdl(
    *(group(f"of {kind}", kind, *(attribute(f"{kind}.{name}") for name in asked)) for kind, asked in ASKED.items())
)


@pytest.mark.parametrize("query", [DEMO_CRTDL.read_bytes(), LITTLE], ids=["the demo's query", "little of each type"])
def test_what_the_sandbox_extracts_of_its_own_data_is_valid(
    validator: str, tmp_path: Path, query: Any, figure: Measure
) -> None:
    made = ValidationJob(tmp_path)
    options = ExtractionOptions(data=DATA, batchsize=5)
    with serve_in_thread(extraction_service(options)) as served, ExtractionServerClient(served.url) as client:
        texts = client.extract(query).texts
    for name, text in texts.items():
        made.write(name, *(line.encode() for line in text.splitlines()))
    what = f"sandbox data, extracted with {'a small query' if query is LITTLE else 'the demo query'}"
    result = figure("validator", what, lambda: made.validate(validator))
    assert result.resources_in is not None
    assert result.resources_in > 100
    assert found(made) == set()
