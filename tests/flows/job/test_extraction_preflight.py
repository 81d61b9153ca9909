"""Preflight findings about an extraction before a job exists."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config import load_config
from flows.job.inputs import gather
from flows.job.preflight import preflight
from flows.job.problem import exit_code
from tasks.shared.errors import SluiceError
from tests.peers.extraction import PatientExtraction, crtdl, extraction_server, project
from tests.peers.server import closed_port
from tests.peers.services import JOB


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PatientExtraction]:
    monkeypatch.chdir(tmp_path)
    with extraction_server(PatientExtraction()) as running:
        project(tmp_path, running.url)
        yield running


def findings(*arguments: str, **more: Any) -> list[SluiceError]:
    inputs, _ = gather("config.yaml", arguments, **more)
    return preflight(load_config(Path("config.yaml")), inputs)


def references(*arguments: str, **more: Any) -> list[str]:
    return [finding.reference for finding in findings(*arguments, **more)]


def test_a_crtdl_and_a_server_that_answers_are_enough(server: PatientExtraction) -> None:
    assert findings("query.json") == []
    assert server.count("GET", "/fhir/metadata") == 1
    Path("patients.txt").write_text("p1\n")
    assert references("query.json", patients="patients.txt") == []
    assert server.count("POST", "") == 0


def test_all_findings_of_the_crtdl_are_told_with_those_of_the_server(server: PatientExtraction) -> None:
    project(Path(), f"http://127.0.0.1:{closed_port()}")
    document = crtdl()
    document["dataExtraction"] = {"attributeGroups": [*document["dataExtraction"]["attributeGroups"]] * 2}
    Path("query.json").write_text(json.dumps(document))
    found = findings("query.json")
    assert [finding.reference for finding in found] == ["crtdl-duplicate-group", "connect-failed"]
    assert exit_code(found) == 2


def test_what_enrichment_makes_of_it_is_checked(server: PatientExtraction) -> None:
    rules = """
  crtdl_preprocessing:
    enabled: true
    enrichments:
      - group_reference: http://hl7.org/fhir/StructureDefinition/Patient
        attributes_to_add: [{attribute_ref: Patient.identifier, linked_groups: ["https://example.org/nowhere"]}]
"""
    project(Path(), server.url, extra=rules)
    assert references("query.json") == ["enrichment-linked-group"]


@pytest.mark.parametrize("path", [f"/fhir/__status/{JOB}", "/fhir/result/x", "/prefix/fhir/extraction/a/b"])
def test_the_url_of_a_result_needs_no_crtdl(server: PatientExtraction, path: str) -> None:
    assert references(f"{server.url}{path}") == []


def test_another_url_is_a_finding(server: PatientExtraction) -> None:
    assert references(f"{server.url}/data/Patient.ndjson") == ["result-url-unknown"]


def test_a_directory_is_a_finding(server: PatientExtraction) -> None:
    Path("data").mkdir()
    assert references("query.json", "data") == ["input-is-directory"]


class TestJobThatGoesOn:
    """Once a job rests on its copies, they are what is checked."""

    @pytest.fixture
    def job(self, server: PatientExtraction, tmp_path: Path) -> Path:
        directory = tmp_path / "jobs" / "job"
        (directory / "extraction").mkdir(parents=True)
        (directory / "crtdl.json").write_bytes(Path("query.json").read_bytes())
        (directory / "patients.txt").write_text("p1\n")
        Path("patients.txt").write_text("p1\n")
        return directory

    def found(self, job: Path, **changed: str | None) -> list[str]:
        """The findings of a continue after the named files were changed, or removed."""
        inputs, _ = gather("config.yaml", ["query.json"], patients="patients.txt")
        for name, content in changed.items():
            path = Path(f"{name}.json" if name == "query" else f"{name}.txt")
            path.unlink() if content is None else path.write_text(content)
        found = preflight(load_config(Path("config.yaml")), inputs, job_dir=job)
        return [finding.reference for finding in found]

    @pytest.mark.parametrize("content", [None, "\x00CANARY"])
    def test_after_a_submission_it_does_not_matter_what_became_of_the_originals(
        self, job: Path, content: str | None
    ) -> None:
        (job / "extraction" / "submission.txt").write_text("{}")
        assert self.found(job, query=content, patients=content) == []

    def test_after_a_complete_step_it_does_not_matter_what_became_of_the_crtdl(self, job: Path) -> None:
        assert self.found(job, query="CANARY") == []

    def test_copies_that_are_damaged_are_findings(self, job: Path) -> None:
        (job / "extraction" / "submission.txt").write_text("{}")
        (job / "crtdl.json").write_text("CANARY")
        (job / "patients.txt").write_text("")
        assert self.found(job) == ["crtdl-not-json", "patients-empty"]

    def test_before_that_originals_that_vanished_are_replaced_by_the_copies(self, job: Path) -> None:
        assert self.found(job, query=None, patients=None) == []

    def test_an_enriched_copy_is_not_enriched_again(self, job: Path, server: PatientExtraction) -> None:
        (job / "extraction" / "submission.txt").write_text("{}")
        (job / "crtdl.json").rename(job / "enriched-crtdl.json")
        rule = '{group_reference: "https://x", attributes_to_add: [{attribute_ref: A.b, linked_groups: ["https://y"]}]}'
        create = rule.replace("attributes_to_add", "create_if_not_exists: {group_name: x}, attributes_to_add")
        project(Path(), server.url, extra=f"\n  crtdl_preprocessing: {{enabled: true, enrichments: [{create}]}}\n")
        Path("query.json").unlink()
        Path("query.json").write_text("CANARY")
        inputs = gather("config.yaml")[0].model_copy(update={"crtdl": str(Path("query.json").absolute())})
        assert preflight(load_config(Path("config.yaml")), inputs, job_dir=job) == []


@pytest.mark.parametrize("named", ["crtdl", "patients"])
def test_a_pipe_is_not_waited_for(server: PatientExtraction, tmp_path: Path, named: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    inputs = gather("config.yaml", ["query.json"])[0].model_copy(update={named: str(tmp_path / "pipe")})
    found = preflight(load_config(Path("config.yaml")), inputs)
    assert [finding.reference for finding in found] == [f"{named}-unreadable"]


def test_a_crtdl_that_a_deployment_names_and_that_is_not_there_is_a_finding(server: PatientExtraction) -> None:
    inputs, _ = gather("config.yaml", ["query.json"])
    Path("query.json").unlink()
    found = preflight(load_config(Path("config.yaml")), inputs)
    assert [finding.reference for finding in found] == ["crtdl-unreadable"]
