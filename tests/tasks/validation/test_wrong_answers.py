"""Wrong answers of a validation service (document 3 §6): to the made-up resource, and to a chunk of the data.

What is wrong with JSON of any service is in ``tests/tasks/shared/http/test_json_answer.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.shared.errors import SluiceError
from tasks.validation.client import service as declared_service
from tests.peers import job
from tests.peers.server import Reply, SeenRequest, loopback
from tests.peers.services import JSON
from tests.peers.validation import CANARY, FakeValidation, ValidationJob, issue, outcome, patient

ANSWER = "validation-answer"


def about(place: str) -> bytes:
    return outcome(issue(expression=[place]))


WRONG: dict[str, Callable[[bytes], Reply]] = {
    "HTML": lambda _: Reply(200, f"<html>{CANARY}</html>".encode(), {"Content-Type": "text/html"}),
    "nothing": lambda _: Reply(200, b""),
    "half of the JSON": lambda _: Reply(200, outcome(issue())[:-4]),
    "no resourceType": lambda _: Reply(200, b'{"valid":true}'),
    "the Bundle as it was sent": lambda body: Reply(200, body),
    "no issue": lambda _: Reply(200, b'{"resourceType":"OperationOutcome"}'),
    "an empty list of issues": lambda _: Reply(200, outcome()),
    "an issue that is null": lambda _: Reply(200, b'{"resourceType":"OperationOutcome","issue":[null]}'),
    "a severity that FHIR does not know": lambda _: Reply(200, outcome(issue("harmless"))),
    "an issue about the entry behind the last": lambda body: Reply(
        200, about(f"Bundle.entry[{len(json.loads(body)['entry'])}].resource")
    ),
    "201": lambda _: Reply(201, outcome(issue())),
    "202 of a gateway": lambda _: Reply(202, b""),
    "an empty 204": lambda _: Reply(204, b""),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_ends_the_step_with_file_and_lines(name: str, tmp_path: Path) -> None:
    job = ValidationJob(tmp_path)
    job.write("a.ndjson", patient("a0", bad=1))
    job.write("b.ndjson", patient("b0"), patient("b1"))

    def script(_: int, body: bytes) -> Reply | None:
        return WRONG[name](body) if b'"b1"' in body else None

    with FakeValidation(script) as service, pytest.raises(SluiceError) as caught:
        job.validate(service.url, max_concurrent_requests=1, attempts=1)
    assert caught.value.reference == ANSWER
    assert (caught.value.context or "").startswith("b.ndjson:1-2")
    assert CANARY not in caught.value.render()
    assert sorted(job.reports()) == ["a.validation.ndjson"]


@pytest.mark.parametrize("name", [*WRONG, "nothing wrong"])
def test_a_wrong_answer_to_the_made_up_resource_is_found_before_a_job_exists(name: str) -> None:
    def answer(seen: SeenRequest) -> Reply:
        reply = WRONG[name](seen.body) if name in WRONG else Reply(200, outcome(issue("warning")))
        return Reply(reply.status, reply.body, {**JSON, **reply.headers})

    with loopback(answer) as server:
        config: Any = job.configuration({"validation": {"url": server.url}}, attempts=1)
        (found,) = job.probed(declared_service(config), config)
    assert (found.reference, found.transient, len(server.seen)) == ("wrong-service", False, 1)
