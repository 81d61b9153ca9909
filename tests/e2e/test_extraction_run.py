"""Whole runs with an extraction, as processes: kill -9 anywhere, one submission, the same files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Commands
from tests.peers.extraction import PatientExtraction, extraction_server, project
from tests.peers.lines import compressed_contents
from tests.peers.server import Reply


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PatientExtraction]:
    with extraction_server(PatientExtraction()) as running:
        project(tmp_path, running.url)
        yield running


def imported(project: Path, job: str) -> dict[str, bytes]:
    return compressed_contents(project / "jobs" / job / "import")


def test_a_run_ends_with_the_files_and_the_handle_in_the_record(
    sluice: Commands, server: PatientExtraction, tmp_path: Path
) -> None:
    ran = sluice("pipeline", "start", "config.yaml", "query.json")
    assert ran.code == 0, ran.err
    assert imported(tmp_path, ran.job) == server.files
    shown = sluice.status(ran.job)
    (extraction,) = server.tasks
    assert shown["extraction"] == {"status_url": f"{server.url}/fhir/__status/{extraction}", "job_id": extraction}
    job = tmp_path / "jobs" / ran.job
    assert shown["crtdl"] == str(job / "crtdl.json")
    assert (job / "crtdl.json").read_bytes() == (tmp_path / "query.json").read_bytes()
    assert (job / "extraction" / "manifest.json").exists()
    for path in job.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


RULES = """
  crtdl_preprocessing:
    enabled: true
    enrichments:
      - group_reference: http://hl7.org/fhir/StructureDefinition/Patient
        attributes_to_add: [{attribute_ref: Patient.identifier}]
      - group_reference: https://example.org/none
"""


@pytest.mark.slow
def test_the_enriched_crtdl_is_the_one_that_is_submitted(
    sluice: Commands, server: PatientExtraction, tmp_path: Path
) -> None:
    project(tmp_path, server.url, extra=RULES)
    ran = sluice("pipeline", "start", "config.yaml", "query.json")
    assert ran.code == 0, ran.err
    import base64

    (submission,) = [seen for seen in server.seen if seen.target.endswith("$extract-data")]
    sent = base64.b64decode(json.loads(submission.body)["parameter"][0]["valueBase64Binary"])
    job = tmp_path / "jobs" / ran.job
    assert sent == (job / "enriched-crtdl.json").read_bytes()
    assert b"Patient.identifier" in sent
    assert not (job / "crtdl.json").exists()
    assert sluice.status(ran.job)["crtdl"] == str(job / "enriched-crtdl.json")
    assert "enrichment rule 2 did nothing" in ran.err
    assert "enrichment rule 2 did nothing" in (job / "job.log").read_text()


@pytest.mark.slow
def test_the_url_of_a_result_is_imported_without_a_submission(
    sluice: Commands, server: PatientExtraction, tmp_path: Path
) -> None:
    server.polls = 0
    server.submit()
    (extraction,) = server.tasks
    ran = sluice("pipeline", "start", "config.yaml", f"{server.url}/fhir/__status/{extraction}")
    assert ran.code == 0, ran.err
    assert imported(tmp_path, ran.job) == server.files
    assert server.count("POST", "$extract-data") == 0


def test_a_failed_extraction_is_exit_code_1_and_continue_asks_the_same_job(
    sluice: Commands, server: PatientExtraction, tmp_path: Path
) -> None:
    server.override = lambda seen: Reply(500, b"CANARY") if "__status" in seen.target else None
    ran = sluice("pipeline", "start", "config.yaml", "query.json")
    assert ran.code == 1
    assert "error[extraction-failed]" in ran.err
    server.override = lambda _: None
    # The query of a job that was submitted is what it was, whatever becomes of the file.
    before = (tmp_path / "jobs" / ran.job / "crtdl.json").read_bytes()
    (tmp_path / "query.json").write_text(json.dumps(json.loads(before) | {"display": "changed"}))
    again = sluice("pipeline", "continue", "config.yaml", ran.job)
    assert again.code == 0, again.err
    assert server.count("POST", "$extract-data") == 1
    assert (tmp_path / "jobs" / ran.job / "crtdl.json").read_bytes() == before
    assert b"CANARY" not in (tmp_path / "jobs" / ran.job / "job.log").read_bytes()


@pytest.mark.slow
def test_a_person_says_what_became_of_a_submission_whose_answer_was_lost(
    sluice: Commands, server: PatientExtraction, tmp_path: Path
) -> None:
    server.override = lambda seen: Reply(reset=True) if "$extract-data" in seen.target else None
    ran = sluice("pipeline", "start", "config.yaml", "query.json")
    assert (ran.code, "error[submission-unanswered]" in ran.err) == (3, True), ran.err
    server.override = lambda _: None
    server.polls = 0
    server.submit()
    (extraction,) = server.tasks
    asked = sluice("pipeline", "continue", "config.yaml", ran.job)
    assert (asked.code, "error[submission-unknown]" in asked.err) == (2, True), asked.err
    wrong = sluice("pipeline", "continue", "config.yaml", ran.job, "--extraction", "a/b")
    assert (wrong.code, "--extraction" in wrong.err) == (2, True), wrong.err
    again = sluice("pipeline", "continue", "config.yaml", ran.job, "--extraction", extraction)
    assert again.code == 0, again.err
    assert imported(tmp_path, ran.job) == server.files
    assert server.count("POST", "$extract-data") == 1
    known = sluice("pipeline", "continue", "config.yaml", ran.job, "--extraction", "new")
    assert (known.code, "error[submission-known]" in known.err) == (2, True), known.err


@pytest.mark.slow
def test_from_the_extractor_submits_anew(sluice: Commands, server: PatientExtraction, tmp_path: Path) -> None:
    ran = sluice("pipeline", "start", "config.yaml", "query.json")
    again = sluice("pipeline", "continue", "config.yaml", ran.job, "--from", "extractor", "--yes")
    assert again.code == 0, again.err
    assert server.count("POST", "$extract-data") == 2
    assert imported(tmp_path, ran.job) == server.files


@pytest.mark.slow
def test_a_continue_does_not_need_the_files_the_job_was_started_with(
    sluice: Commands, server: PatientExtraction, tmp_path: Path
) -> None:
    (tmp_path / "patients.txt").write_text("p1\n")
    server.override = lambda seen: Reply(401) if "__status" in seen.target else None
    ran = sluice("pipeline", "start", "config.yaml", "query.json", "--patients", "patients.txt")
    assert ran.code == 1
    server.override = lambda _: None
    (tmp_path / "query.json").unlink()
    (tmp_path / "patients.txt").unlink()
    # The server has lost the job: what was asked once is asked again.
    server.tasks.clear()
    again = sluice("pipeline", "continue", "config.yaml", ran.job)
    assert again.code == 0, again.err
    first, second = (seen.body for seen in server.seen if seen.target.endswith("$extract-data"))
    assert first == second
    assert imported(tmp_path, ran.job) == server.files
