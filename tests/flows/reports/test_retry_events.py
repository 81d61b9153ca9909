"""Every repeated request to any service is an event (docs/observability.md, ``request-retry``)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from deployments.sandbox.data import ANONYMIZATION_RULES, DEMO_CRTDL, DEMO_LOOKUP
from deployments.sandbox.extraction.app import extraction_service
from deployments.sandbox.fhir.app import fhir_service
from deployments.sandbox.flattening.app import flattening_service
from deployments.sandbox.pseudonymization.app import pseudonymization_service
from deployments.sandbox.validation.app import validation_service
from flows.job.record import Run
from flows.reports import events
from flows.reports.journal import Journal
from tasks.shared.events import RequestRetry
from tasks.shared.meter import Meter
from tests.conftest import Commands
from tests.peers.events import read_events
from tests.peers.s3 import S3Job, S3Request, scripted
from tests.peers.sandbox import Sandboxed, sandboxed
from tests.peers.server import Reply

CONFLICT = {
    "resourceType": "OperationOutcome",
    "issue": [{"severity": "error", "code": "conflict", "diagnostics": "version constraint failure of Canaryperson"}],
}


@pytest.fixture
def services() -> Iterator[dict[str, Sandboxed]]:
    with sandboxed(
        extraction=extraction_service(), pseudonymizer=pseudonymization_service(), validation=validation_service(),
        flattening=flattening_service(), fhir=fhir_service(),
    ) as all_of_them:  # fmt: skip
        yield all_of_them


def fail(service: Sandboxed, *rules: dict[str, Any]) -> None:
    """Let requests fail once each."""
    service.faults(*({"action": "status", "status": 503, "times": 1} | rule for rule in rules))


OF_THE_REPORT = ("reading the data", "measuring the data")
"""Statuses of the release report, which is made after a step and before ``send``."""


@pytest.mark.slow
def test_every_step_reports_its_repeated_requests_and_the_log_has_all_of_them(
    sluice: Commands, tmp_path: Path, services: dict[str, Sandboxed]
) -> None:
    shutil.copy(DEMO_CRTDL, tmp_path / "query.crtdl")
    (tmp_path / "config.yaml").write_text(f"""
services:
  extractor: {{base_url: "{services["extraction"].url}", polling_interval: 1s, max_polling_interval: 1s}}
  pseudonymizer: {{url: "{services["pseudonymizer"].url}", anonymization_config: {ANONYMIZATION_RULES}}}
  validation: {{url: "{services["validation"].url}", fail_on_error: false}}
  flattening: {{service_url: "{services["flattening"].url}", lookup_path: {DEMO_LOOKUP}}}
  send: {{send_as: direct_resource_load, url: "{services["fhir"].url}"}}
pipeline: {{enabled_steps: [extractor, pseudonymizer, validation, flattening, send]}}
retry: {{max_attempts: 4, initial_backoff_ms: 10, max_backoff_ms: 20}}
jobs_dir: jobs
""")
    fail(
        services["extraction"],
        {"path": "/fhir/__status/*"},
        {"path": "*core.ndjson", "method": "GET"},
        {"path": "*resource-exclusions.csv", "method": "GET"},
    )
    # The check before the start asks each service with something made-up, and so does each step: those go well.
    fail(services["pseudonymizer"], {"method": "POST", "skip": 4})
    fail(services["validation"], {"method": "POST", "skip": 2})
    fail(services["flattening"], {"method": "POST", "skip": 2}, {"method": "POST", "status": 500, "skip": 2})
    fail(services["fhir"], {"method": "POST"}, {"method": "POST", "status": 409, "body": CONFLICT})
    ran = sluice("pipeline", "start", "config.yaml", "query.crtdl")
    assert ran.code == 0, ran.err

    text = (tmp_path / "jobs" / ran.job / "events.ndjson").read_text(encoding="utf-8")
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    schema = Draft202012Validator(events.schema())
    for line in lines:
        schema.validate(line)
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    assert "Canaryperson" not in text

    retries = [line for line in lines if line["event"] == "request-retry"]
    assert sorted((line["step"], line["service"], line["operation"], line["status"]) for line in retries) == [
        ("extractor", "extractor", "download", 503),
        ("extractor", "extractor", "download", 503),
        ("flattening", "flattening", "$run", 500),
        ("flattening", "flattening", "$run", 503),
        ("pseudonymizer", "pseudonymizer", "$de-identify", 503),
        ("send", "send", "send transaction", 409),
        ("send", "send", "send transaction", 503),
        ("validation", "validation", "validate resources", 503),
    ]
    said = [line["message"] for line in lines if line["event"] == "status" and line["step"] == "extractor"]
    assert "extracting: the server answered 503, asking again" in said

    # The vocabulary, in the order in which things happen.
    ended = [line["step"] for line in lines if line["event"] == "step" and line["state"] == "completed"]
    assert ended == ["extractor", "pseudonymizer", "validation", "flattening", "send"]
    kinds = [line["event"] for line in lines]
    assert kinds[:3] == ["job", "job", "step"]
    assert [kind for kind in kinds if kind != "status"][-2:] == ["export", "job"]  # the report is made at the end
    assert kinds.count("kickoff") == 1
    assert kinds.index("kickoff") < kinds.index("download")
    assert [line["state"] for line in lines if line["event"] == "gate"] == ["open"]
    for step in ended:
        of_it = [line for line in lines if line["step"] == step and line["event"] not in ("gate", "export")]
        of_it = [line for line in of_it if line.get("message") not in OF_THE_REPORT]
        assert (of_it[0].get("state"), of_it[-1].get("state")) == ("running", "completed")
        told = sum(line["event"] == "request-retry" for line in of_it)
        assert of_it[-1]["retries"] >= told > 0, step


@pytest.mark.slow
def test_an_upload_tells_the_requests_that_it_repeats(tmp_path: Path) -> None:
    answers = iter([Reply(503, b"<Error><Code>SlowDown</Code></Error>")])

    def busy(asked: S3Request) -> Reply | None:
        return next(answers, None) if asked.name == "PutObject" else None

    job = S3Job(tmp_path)
    job.write("core.ndjson", b'{"resourceType":"Organization"}\n')
    run = Run(number=1, created="2026-01-01T00:00:00.000Z", began="2026-01-01T00:00:00.000Z")
    with scripted(busy) as store, Journal.opened(tmp_path, "job-1", ("send",), run) as journal:
        journal.at("send", 1)
        job.send(store.url, meter=Meter(collector=journal.record_event))
    (retry,) = [entry.event for entry in read_events(tmp_path) if isinstance(entry.event, RequestRetry)]
    assert (retry.service, retry.operation, retry.status) == ("send", "upload", 503)
