"""What the step does when the service or the network misbehaves (document 3 §1 and §4).

What every step does then is in tests/tasks/test_faults.py.
"""

from __future__ import annotations

import json
import logging
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.shared.errors import NetworkError, ReconciliationError, ServiceBusyError, ServiceError, SluiceError
from tests.peers.pseudonymization import (
    RULES,
    FakeService,
    Job,
    Request,
    Script,
    bundle,
    observation,
    patient,
    pseudonyms,
    serving,
)
from tests.peers.server import Raw, Reply, Seen, loopback

CANARY = "CANARY-Mustermann"
OUTCOME = json.dumps(
    {
        "resourceType": "OperationOutcome",
        "issue": [{"severity": "error", "code": "exception", "diagnostics": f"at Line 7: {CANARY} born 1950"}],
    }
).encode()


LINES = [patient(f"p{n}", name=[{"family": CANARY}]) for n in range(9)]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = Job(tmp_path)
    job.write("a.ndjson", *LINES[:3], bundle("b", *LINES[3:5]), observation(CANARY), *LINES[5:])
    job.write("b.ndjson", *LINES)
    return job


@pytest.fixture
def service() -> Iterator[FakeService]:
    with serving(pseudonyms) as service:
        yield service


def at_the_bad_line(reply: Reply, times: int = 1_000_000) -> Script:
    """``reply`` to line 5 of ``a.ndjson``, so many times."""
    left = [times]

    def script(number: int, request: Request) -> Reply | None:
        if b'"Observation"' in request.resource and left[0]:
            left[0] -= 1
            return reply
        return None

    return script


def fails(
    job: Job, url: str, kind: type[SluiceError], caplog: pytest.LogCaptureFixture, **settings: Any
) -> SluiceError:
    with caplog.at_level(logging.DEBUG), pytest.raises(kind) as caught:
        job.run(url, **settings)
    error = caught.value
    for text in (error.render(), repr(error), caplog.text, "".join(traceback.format_exception(error))):
        assert CANARY not in text
    for path in job.directory.rglob("*"):
        if path.is_file() and path.parent.name not in {"import", "failed", "pseudonymized"}:
            assert CANARY.encode() not in path.read_bytes()
    return error


def then_succeeds(job: Job, service: FakeService) -> None:
    """Nothing was lost: the next run without the fault gives what an undisturbed one gives."""
    service.script = None
    job.run(service.url)
    for name in ("a.ndjson", "b.ndjson"):
        given = (job.input / name).read_bytes().splitlines()
        assert job.lines(name) == [pseudonyms(line) for line in given]


@pytest.mark.parametrize("reset", ["before", "after"])
def test_a_reset_is_repeated_and_then_transient(
    job: Job, service: FakeService, reset: str, caplog: pytest.LogCaptureFixture
) -> None:
    job.write("core.ndjson", patient("core"))  # alone: of two threads any may come first
    service.refuses = lambda _: reset == "before"
    service.script = lambda *_: Reply(reset=True)
    error = fails(job, service.url, NetworkError, caplog, max_concurrent_requests=1)
    assert (error.exit_code, error.reference) == (3, "connection-broken")
    assert "core.ndjson:1 Patient" in (error.context or "")
    assert job.slept == [0.1, 0.2]
    service.refuses = lambda _: False
    then_succeeds(job, service)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"resourceType":"Observation","id":"' + CANARY.encode(),
        f"<html><body>Anmelden: {CANARY}</body></html>".encode(),
        OUTCOME,
        json.dumps(patient(CANARY)).encode(),
        b"[]",
        b'{"resourceType":"Observation","id":"\xff"}',
        b'{"resourceType":"Observation"}{"resourceType":"Observation"}',
        f'{{"resourceType":"{CANARY}"}}'.encode(),
    ],
    ids=["empty", "truncated", "html", "outcome", "other-type", "array", "latin-1", "two", "no-type"],
)
def test_an_answer_with_200_that_is_not_the_resource_is_terminal(
    job: Job, service: FakeService, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    service.script = at_the_bad_line(Reply(body=body))
    error = fails(job, service.url, ServiceError, caplog)
    assert (error.exit_code, error.reference, error.status) == (1, "pseudonymizer-answer", 200)
    assert error.context == "a.ndjson:5 Observation"
    assert sum(b'"Observation"' in request.body for request in service.requests) == 1
    (kept,) = job.failed()
    assert kept.read_bytes() == body
    then_succeeds(job, service)


def test_a_wrong_number_of_entries_is_terminal(
    job: Job, service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    def script(number: int, request: Request) -> Reply | None:
        if b'"Bundle"' in request.resource:
            return Reply(body=json.dumps(bundle("b", *LINES[:1])).encode())
        return None

    service.script = script
    error = fails(job, service.url, ReconciliationError, caplog)
    assert (error.exit_code, error.reference) == (1, "pseudonymizer-entries")
    assert error.context == "a.ndjson:4 Bundle"
    then_succeeds(job, service)


def test_what_came_back_before_the_error_is_not_asked_for_again_in_a_plain_file(job: Job, service: FakeService) -> None:
    service.script = at_the_bad_line(Reply(400))
    with pytest.raises(ServiceError):
        job.run(service.url, max_concurrent_requests=1)
    service.script = None
    service.requests.clear()
    job.run(service.url, max_concurrent_requests=1)
    assert json.loads(service.requests[0].resource)["resourceType"] == "Observation"


def test_an_error_ends_the_wait_of_the_others(job: Job, service: FakeService) -> None:
    """A line in its long wait for a busy service does not hold up the end."""
    waiting = threading.Event()

    def script(number: int, request: Request) -> Reply | None:
        if b'"Observation"' in request.resource:
            assert waiting.wait(60)
            return Reply(401)
        if b'"p0"' in request.resource:
            waiting.set()
            return Reply(503, headers={"Retry-After": "3000"})
        return None

    service.script = script
    with pytest.raises(ServiceError) as caught:
        job.run(service.url, real_sleep=True)
    assert caught.value.status == 401  # the one that waited only followed


def test_a_token_that_expires_in_the_middle_is_renewed(job: Job) -> None:
    tokens: list[str] = []
    used: list[str] = []

    def answer(seen: Seen) -> Reply | Raw:
        if seen.method == "GET":
            body = json.dumps({"token_endpoint": f"{server.url}/token"}).encode()
            return Reply(200, body, {"Content-Type": "application/json"})
        if seen.target == "/token":
            tokens.append(f"t{len(tokens)}")
            body = json.dumps({"access_token": tokens[-1], "token_type": "Bearer", "expires_in": 3600}).encode()
            return Reply(200, body, {"Content-Type": "application/json"})
        used.append(seen.authorization or "")
        if len(used) > 7 and seen.authorization == "Bearer t0":
            return Reply(401)
        return Reply(200, pseudonyms(seen.body), {"Content-Type": "application/fhir+json"})

    auth = {"oauth_client_id": "c", "oauth_client_secret": "s"}
    with loopback(answer) as server:
        result = job.run(server.url, auth={**auth, "oauth_issuer_uri": server.url}, max_concurrent_requests=1)
    assert result.lines_out == 18
    assert tokens == ["t0", "t1"]
    assert used == ["Bearer t0"] * 8 + ["Bearer t1"] * 11


def test_credentials_and_rules_show_nowhere(job: Job, service: FakeService, caplog: pytest.LogCaptureFixture) -> None:
    rules = RULES.replace(b"cryptoHashKey: k", f"cryptoHashKey: {CANARY}".encode())
    auth = {"username": "u", "password": CANARY}
    service.script = at_the_bad_line(Reply(500, b"x"))
    with caplog.at_level(logging.DEBUG), pytest.raises(ServiceBusyError) as caught:
        job.run(service.url, rules=rules, auth=auth)
    assert CANARY not in caught.value.render() + caplog.text
    assert CANARY.encode() not in job.ledger.read_bytes()
