"""Realistic data from the command line: complete, in small transactions, ``core.ndjson`` first and alone.

The large sample is not part of the project: where it lies beside the checkout the campaign uses it, else it is skipped.
"""

import io
import json
import tarfile
from collections import Counter
from pathlib import Path

import pytest
import zstandard

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.data import ANONYMIZATION_RULES, DEMO_CRTDL
from deployments.sandbox.extraction.app import ExtractionOptions, extraction_service
from deployments.sandbox.fhir.app import FhirOptions, fhir_service
from deployments.sandbox.pseudonymization.app import pseudonymization_service
from tasks.release_report.page import files
from tests.conftest import ROOT
from tests.peers.sandbox import Sandboxed

SAMPLE = ROOT.parent / "shared" / "data" / "synthea-r4-100-profiled.tar.zst"
RESOURCES = 24_447


def write_config(directory: Path, url: str, **send: object) -> None:
    extra = "".join(f", {key}: {value}" for key, value in send.items())
    (directory / "config.yaml").write_text(
        f"""
services:
  local_import: {{dir: data}}
  send: {{send_as: direct_resource_load, url: "{url}"{extra}}}
pipeline: {{enabled_steps: [local_import, send]}}
jobs_dir: jobs
"""
    )


def key(line: bytes) -> str:
    resource = json.loads(line)
    return f"{resource['resourceType']}/{resource['id']}"


@pytest.mark.slow
@pytest.mark.parametrize("manners", ["hapi", "blaze"])
def test_core_ndjson_is_loaded_first_and_alone(sluice, tmp_path, manners):
    """Documents 2 and 3 §7: every other transaction begins after the last one of ``core.ndjson`` has been answered."""
    (tmp_path / "data").mkdir()
    core = [{"resourceType": "Medication", "id": f"m{n}"} for n in range(250)]
    (tmp_path / "data" / "core.ndjson").write_text("".join(json.dumps(line) + "\n" for line in core))
    for file in ("a", "b", "z"):
        patients = [
            {
                "resourceType": "Bundle", "type": "transaction", "entry": [
                    {"resource": {"resourceType": "Patient", "id": f"{file}{n}"}},
                    {"resource": {
                        "resourceType": "MedicationStatement", "id": f"{file}{n}", "status": "active",
                        "medicationReference": {"reference": f"Medication/m{n}"},
                        "subject": {"reference": f"Patient/{file}{n}"},
                    }},
                ],
            }
            for n in range(120)
        ]  # fmt: skip
        (tmp_path / "data" / f"{file}.ndjson").write_text("".join(json.dumps(line) + "\n" for line in patients))
    with serve_in_thread(fhir_service(FhirOptions(manners=manners))) as served:
        write_config(tmp_path, served.url)
        ran = sluice("pipeline", "start", "config.yaml")
        assert ran.code == 0, ran.err
        log = Sandboxed(served.url).call_sandbox("GET", "requests").json()
        assert len(Sandboxed(served.url).resources()) == 250 + 3 * 240
    posts = [request for request in log["requests"] if request["method"] == "POST"]
    of_core = [post for post in posts if "Medication" in post["types"]]
    others = [post for post in posts if "Medication" not in post["types"]]
    assert all(set(post["types"]) == {"Medication"} for post in of_core)
    assert sum(post["entries"] for post in of_core) == 250
    assert max(post["ended"] for post in of_core) <= min(post["started"] for post in others)
    assert log["max_entries"] <= 100
    assert [post["status"] for post in posts] == [200] * len(posts)


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Path:
    """Return the unpacked sample."""
    if not SAMPLE.exists():
        pytest.skip(f"the sample {SAMPLE.name} is not beside this checkout")
    directory = tmp_path_factory.mktemp("sample")
    with SAMPLE.open("rb") as packed, zstandard.ZstdDecompressor().stream_reader(packed) as stream:
        content = io.BytesIO(stream.read())
    with tarfile.open(fileobj=content) as archive:
        archive.extractall(directory, filter="data")
    (found,) = {path.parent for path in directory.rglob("*.ndjson")}
    return found


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "zst"])
@pytest.mark.parametrize("manners", ["hapi", "blaze"])
def test_the_synthea_sample_loads_completely(sluice, tmp_path, sample, manners, packed):
    (tmp_path / "data").mkdir()
    expected: dict[str, bytes] = {}
    for path in sample.glob("*.ndjson"):
        content = path.read_bytes()
        expected |= {key(line): line for line in content.splitlines()}
        target = tmp_path / "data" / (path.name + (".zst" if packed else ""))
        target.write_bytes(zstandard.compress(content) if packed else content)
    assert len(expected) == RESOURCES
    with serve_in_thread(fhir_service(FhirOptions(manners=manners, state=tmp_path / "fhir"))) as served:
        write_config(tmp_path, served.url, batch_size=100)
        ran = sluice("pipeline", "start", "config.yaml", "--json", timeout=800)
        assert ran.code == 0, ran.err
        stored = Sandboxed(served.url).resources()
        log = Sandboxed(served.url).call_sandbox("GET", "requests").json()
    assert stored.keys() == expected.keys()
    assert [name for name, line in expected.items() if stored[name] != line] == []
    assert log["max_entries"] <= 100
    status = json.loads(ran.out)
    assert [step["resources_out"] for step in status["steps"]] == [RESOURCES, RESOURCES]
    statuses = Counter(request["status"] for request in log["requests"] if request["method"] == "POST")
    print(
        f"{manners}, {'zst' if packed else 'plain'}: {RESOURCES} resources in {sum(statuses.values())} transactions "
        f"({dict(statuses)}), send {status['steps'][1]['seconds']:.1f} s, import {status['steps'][0]['seconds']:.1f} s"
    )


MAIDEN = "Patient.extension(http://hl7.org/fhir/StructureDefinition/patient-mothersMaidenName).valueString"
ASKED = ("g-patient", "g-condition")
"""The groups of the demo's query that are asked for; the demo has them of German profiles."""


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_the_sample_mothers_maiden_names_come_first_and_a_rule_removes_them(sluice, tmp_path, sample):
    query = json.loads(DEMO_CRTDL.read_text())
    groups = [one for one in query["dataExtraction"]["attributeGroups"] if one["id"] in ASKED]
    for group in groups:
        kind = group["attributes"][0]["attributeRef"].partition(".")[0]
        group["groupReference"] = f"http://hl7.org/fhir/StructureDefinition/{kind}"
        group["attributes"] = [one for one in group["attributes"] if not one.get("linkedGroups")]
    assert "Patient.extension" in [one["attributeRef"] for one in groups[0]["attributes"]]
    query["dataExtraction"]["attributeGroups"] = groups
    (tmp_path / "query.json").write_text(json.dumps(query))
    rules = ANONYMIZATION_RULES.read_text()
    extraction = extraction_service(ExtractionOptions(data=sample))
    with serve_in_thread(extraction) as server, serve_in_thread(pseudonymization_service()) as pseudonymizer:
        (tmp_path / "config.yaml").write_text(f"""
services:
  extractor: {{base_url: "{server.url}", polling_interval: 1s, file_ready_interval: 50ms}}
  pseudonymizer: {{url: "{pseudonymizer.url}", anonymization_config: rules.yaml}}
pipeline: {{enabled_steps: [extractor, pseudonymizer, wait]}}
jobs_dir: jobs
""")
        pages: list[str] = []
        for first in ("", "  - {path: Patient.extension, method: redact}\n"):
            (tmp_path / "rules.yaml").write_text(rules.replace("fhirPathRules:\n", f"fhirPathRules:\n{first}", 1))
            ran = sluice("pipeline", "start", "config.yaml", "query.json", timeout=300)
            assert ran.code == 0, ran.err
            job = tmp_path / "jobs" / ran.job
            report = files.read(job, 3)
            assert report is not None
            stops = [one.about for one in report.findings if one.level == "stop"]
            assert (stops[:1] == [MAIDEN]) is (first == "")
            assert not (first and stops)
            pages.append(files.page(job, 3).read_text())
            print(f"{len(stops)} stops, {report.tiles.patients} patients, {report.tiles.resources} resources, "
                  f"{report.seconds:.1f} s, page {len(pages[-1]) / 1000:.0f} kB")  # fmt: skip
    assert max(map(len, pages)) <= 150_000
