"""Whole runs through validation and pseudonymization against the sandbox services, as a user starts them.

After every disturbance: nothing lost, nothing doubled, the outputs those of an undisturbed run, nothing of a patient in
what a person or a log sees.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deployments.sandbox.data import ANONYMIZATION_RULES
from deployments.sandbox.fhir.app import fhir_service
from deployments.sandbox.pseudonymization.app import pseudonymization_service
from deployments.sandbox.validation import validation_service
from tests.conftest import Commands, Ran, started, wait_until
from tests.peers.lines import all_lines
from tests.peers.prefect import page_of
from tests.peers.project import allowed, write_input
from tests.peers.sandbox import Sandboxed, sandboxed

FAMILY = "Umläut"
LEAK = "Kanarienvogel"
OUTCOME = {
    "resourceType": "OperationOutcome",
    "issue": [{"severity": "error", "code": "processing", "diagnostics": f"{LEAK} in Patient/p3"}],
}
PATIENTS = 24
"""With three resources each, in two files; ``core.ndjson`` has one more."""


Services = dict[str, Sandboxed]


def held(services: Services) -> list[bytes]:
    """Return all resources of the FHIR server, in an order of their own."""
    return sorted(services["send"].resources().values())


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """Yield the three services that such a run talks to, by the name of their block."""
    with sandboxed(
        validation=validation_service(), pseudonymizer=pseudonymization_service(),
        send=fhir_service(state=tmp_path / "fhir-state"),
    ) as served:  # fmt: skip
        yield served


@dataclass
class PseudonymizeProject:
    """A working directory with ``config.yaml``, ``rules.yaml`` and the input in ``data/``."""

    directory: Path
    resources: int

    def job(self, ran: Ran | str) -> Path:
        return self.directory / "jobs" / (ran if isinstance(ran, str) else ran.job)

    def outputs(self, ran: Ran | str) -> dict[str, str]:
        """Return names and digests of all that the two steps made."""
        job = self.job(ran)
        return {
            str(path.relative_to(job)): hashlib.sha256(path.read_bytes()).hexdigest()
            for folder in ("pseudonymized", "validation")
            for path in (job / folder).rglob("*")
            if path.is_file()
        }

    def change(self, old: str, new: str) -> None:
        """Edit the configuration."""
        path = self.directory / "config.yaml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


@pytest.fixture
def project(tmp_path: Path, services: Services) -> PseudonymizeProject:
    resources = write_input(tmp_path / "data", patients=PATIENTS)
    (tmp_path / "rules.yaml").write_bytes(ANONYMIZATION_RULES.read_bytes())
    (tmp_path / "config.yaml").write_text(
        f"""
services:
  local_import: {{dir: data}}
  validation: {{url: "{services["validation"].url}"}}
  pseudonymizer: {{url: "{services["pseudonymizer"].url}", anonymization_config: rules.yaml}}
  send: {{send_as: direct_resource_load, url: "{services["send"].url}"}}
pipeline: {{enabled_steps: [local_import, validation, pseudonymizer, send]}}
retry: {{max_attempts: 2, initial_backoff_ms: 10, max_backoff_ms: 20}}
jobs_dir: jobs
"""
    )
    return PseudonymizeProject(tmp_path, resources)


def shown(project: PseudonymizeProject, job: str, *outputs: str) -> list[str]:
    """Return names and ids of patients in what a run prints, logs and records (not in its data and private reports)."""
    texts = dict(enumerate(output.encode() for output in outputs)) | {
        path: path.read_bytes()
        for path in project.job(job).rglob("*")
        if path.is_file()
        and path.relative_to(project.job(job)).parts[0] not in {"import", "pseudonymized", "validation"}
        and "failed" not in path.parts
    }
    traces = [FAMILY.encode(), LEAK.encode(), *(rf"\b{kind}{n}\b".encode() for kind in "pb" for n in range(PATIENTS))]
    return [f"{place}: {trace!r}" for place, text in texts.items() for trace in traces if re.search(trace, text)]


def sent_once(project: PseudonymizeProject, services: Services, ran: Ran | str) -> None:
    """Assert that the FHIR server holds each pseudonymized resource once."""
    lines = [json.loads(line) for line in all_lines(project.job(ran) / "pseudonymized")]
    resources = [entry["resource"] for line in lines for entry in line.get("entry", ())]
    resources += [line for line in lines if line["resourceType"] != "Bundle"]
    keys = sorted((each["resourceType"], each["id"]) for each in resources)
    kept = [json.loads(text) for text in held(services)]
    assert sorted((each["resourceType"], each["id"]) for each in kept) == keys
    assert len(set(keys)) == project.resources


@pytest.mark.slow
def test_disturbed_in_either_service_a_run_ends_as_an_undisturbed_one(
    sluice: Commands, project: PseudonymizeProject, services: Services
) -> None:
    undisturbed = sluice("pipeline", "start", "config.yaml")
    assert undisturbed.code == 0, undisturbed.err
    sent_once(project, services, undisturbed)
    whole, kept = project.outputs(undisturbed), held(services)
    assert FAMILY.encode() not in b"".join(kept)
    assert b"1.50" in b"".join(kept)

    busy = {"action": "status", "status": 503, "body": OUTCOME, "method": "POST", "skip": 18, "times": None}
    services["pseudonymizer"].faults(busy)
    services["validation"].faults({**busy, "skip": 3})
    ran = sluice("pipeline", "start", "config.yaml")
    assert ran.code == 3, ran.err
    assert "error[service-busy]: validation" in ran.err
    services["validation"].faults()
    again = sluice("pipeline", "continue", "config.yaml", ran.job)
    assert again.code == 3, again.err
    assert "error[service-busy]: pseudonymizer" in again.err
    services["pseudonymizer"].faults()
    last = sluice("pipeline", "continue", "config.yaml", ran.job)
    assert last.code == 0, last.err
    assert project.outputs(ran) == whole
    assert held(services) == kept
    texts = [text for each in (undisturbed, ran, again, last) for text in (each.out, each.err)]
    assert shown(project, undisturbed.job) + shown(project, ran.job, *texts) == []


@pytest.mark.e2e
def test_a_run_that_ends_in_the_middle_of_a_request_goes_on_where_it_was(
    sluice: Commands, project: PseudonymizeProject, services: Services
) -> None:
    """Until then, no second process works on its job or removes it."""
    services["pseudonymizer"].faults({"action": "delay", "seconds": 600, "method": "POST", "skip": 18, "times": None})
    child = sluice.start("pipeline", "start", "config.yaml")
    job = started(child)
    wait_until(lambda: len(services["pseudonymizer"].posts()) > 18, 150)
    for words in (("pipeline", "continue"), ("job", "delete", "--yes")):
        second = sluice(*words, "config.yaml", job)
        assert (second.code, "error[job-busy]" in second.err) == (4, True), second.err
    began = time.monotonic()
    child.terminate()
    out, err = child.communicate(timeout=120)
    assert child.returncode == 143
    assert time.monotonic() - began < allowed(10)
    services["pseudonymizer"].faults()
    last = sluice.here("pipeline", "continue", "config.yaml", job)
    assert last.code == 0, last.err
    log = (project.job(job) / "job.log").read_text()
    assert (log.count("step 2 validation begins"), log.count("step 3 pseudonymizer begins")) == (1, 2)
    sent_once(project, services, job)
    assert shown(project, job, out, err, last.out, last.err) == []


@pytest.mark.slow
def test_the_record_has_findings_by_severity_type_and_message_code_only(
    sluice: Commands, project: PseudonymizeProject, services: Services, prefect_api: str
) -> None:
    wrong = {"resourceType": "Patient", "id": "p99", "gender": LEAK, "name": [{"family": FAMILY, LEAK: 1}]}
    (project.directory / "data" / "batch-9.ndjson").write_text(json.dumps(wrong) + "\n")
    ran = sluice("pipeline", "start", "config.yaml")
    assert ran.code == 5, ran.err
    assert held(services) == []
    page = page_of(prefect_api, ran.job)
    status = sluice("pipeline", "status", "config.yaml", ran.job, "--json").out
    found = json.loads(status)["steps"][1]["details"]
    assert (found["severities"]["error"], found["types"]["Patient"]) == (found["findings"], found["findings"])
    assert "code-invalid Value_Code" in found["codes"]
    assert [trace for trace in (FAMILY, LEAK, "p99") if trace in page + status] == []
    assert shown(project, ran.job, ran.out, ran.err) == []


@pytest.mark.slow
def test_rules_that_became_unusable_or_others_are_noticed_when_a_job_is_continued(
    sluice: Commands, project: PseudonymizeProject, services: Services
) -> None:
    refused = {"action": "status", "status": 400, "body": OUTCOME, "method": "POST", "skip": 32, "times": None}
    services["pseudonymizer"].faults(refused)
    ran = sluice("pipeline", "start", "config.yaml")
    assert ran.code == 1, ran.err
    assert "error[service-refused]" in ran.err
    services["pseudonymizer"].faults()
    rules = project.directory / "rules.yaml"
    rules.write_text("services: {send: {auth: {password: Kanarienvogel}}}\n")
    asked = len(services["pseudonymizer"].posts())
    unusable = sluice("pipeline", "continue", "config.yaml", ran.job)
    assert unusable.code == 2, unusable.err
    assert "error[rules-not-yaml]" in unusable.err
    assert len(services["pseudonymizer"].posts()) == asked
    rules.write_text(ANONYMIZATION_RULES.read_text().replace("not-a-secret", "another-key"))
    last = sluice("pipeline", "continue", "config.yaml", ran.job)
    assert last.code == 0, last.err
    assert "finished files are done again" in last.err
    sent_once(project, services, ran)
    assert shown(project, ran.job, *(text for each in (ran, unusable, last) for text in (each.out, each.err))) == []
