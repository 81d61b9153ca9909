"""The made-up resource that goes to the validation service first (document 3 §6): what is believed of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.validation.app import ValidationOptions, validation_service
from tasks.validation.client import WRONG
from tasks.validation.client import service as declared_service
from tests.peers import job
from tests.peers.server import Reply, loopback
from tests.peers.services import JSON


def probe_service(url: str) -> list[Any]:
    config = job.configuration({"validation": {"url": url}})
    return job.probed(declared_service(config), config)


def outcome(*severities: str) -> bytes:
    issues = [{"severity": severity, "code": "invalid"} for severity in severities]
    return json.dumps({"resourceType": "OperationOutcome", "issue": issues}).encode()


@pytest.mark.parametrize("path", ["", "/validateResource", "/fhir/Patient/$validate"])
def test_a_probe_with_findings_passes_and_sends_only_made_up_data(path: str) -> None:
    with loopback([Reply(200, outcome("warning", "error"), JSON)]) as server:
        assert probe_service(server.url + path) == []
    (seen,) = server.seen
    assert (seen.method, seen.target) == ("POST", path or "/validateResource")
    assert [entry["resource"] for entry in json.loads(seen.body)["entry"]] == [WRONG]


def test_the_sandbox_service_passes() -> None:
    with serve_in_thread(validation_service(ValidationOptions(serial=True))) as served:
        assert probe_service(served.url) == []


@pytest.mark.parametrize(("status", "body", "words"), [
    (200, outcome("information"), "does not validate"), (200, outcome("warning"), "does not validate"),
    (200, outcome(), "without an issue"), (404, outcome("error"), "404"), (405, b"", "405"),
    (400, outcome("error"), "400"),
])  # fmt: skip
def test_a_service_that_answers_something_else_is_another_one(status: int, body: bytes, words: str) -> None:
    with loopback([Reply(status, body, JSON)]) as server:
        (found,) = probe_service(server.url)
    assert (found.reference, found.transient) == ("wrong-service", False)
    assert words in found.message
