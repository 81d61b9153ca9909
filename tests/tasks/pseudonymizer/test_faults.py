"""Behavior of the step when the service or the network misbehaves (document 3 §1 and §4).

What every step does then is in tests/tasks/test_faults.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.shared.errors import NetworkError, ReconciliationError, ServiceBusyError, ServiceError
from tests.peers.pseudonymization import RULES, PseudonymizationRequest, bundle, patient, pseudonyms
from tests.peers.scenes import OUTCOME, StepScene, playing
from tests.peers.server import Raw, Reply, SeenRequest, loopback
from tests.peers.validation import CANARY


@pytest.fixture
def scene(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StepScene]:
    with playing("pseudonymizer", tmp_path, caplog) as scene:
        yield scene


@pytest.mark.parametrize("reset", ["before", "after"])
def test_a_reset_is_repeated_and_then_transient(scene: StepScene, reset: str) -> None:
    scene.job.write("core.ndjson", patient("core"))  # alone: of two threads any may come first
    scene.service.refuses = lambda _: reset == "before"
    scene.service.script = lambda *_: Reply(reset=True)
    error = scene.fails(NetworkError)
    assert (error.exit_code, error.reference) == (3, "connection-broken")
    assert "core.ndjson:1 Patient" in (error.context or "")
    assert scene.job.slept == [0.1, 0.2]
    scene.service.refuses = lambda _: False
    scene.then_succeeds(for_less=False)


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
def test_an_answer_with_200_that_is_not_the_resource_is_terminal(scene: StepScene, body: bytes) -> None:
    scene.goes_wrong(Reply(body=body))
    error = scene.fails(ServiceError)
    assert (error.exit_code, error.reference, error.status) == (1, "pseudonymizer-answer", 200)
    assert error.context == "a.ndjson:5 Observation"
    assert len(scene.tries()) == 1
    scene.check_kept_answer(error, body)
    scene.then_succeeds()


def test_a_wrong_number_of_entries_is_terminal(scene: StepScene) -> None:
    fewer = Reply(body=json.dumps(bundle("b", patient("p0"))).encode())
    scene.service.script = lambda _, request: fewer if b'"Bundle"' in request.resource else None
    error = scene.fails(ReconciliationError)
    assert (error.exit_code, error.reference) == (1, "pseudonymizer-entries")
    assert error.context == "a.ndjson:4 Bundle"
    scene.then_succeeds()


def test_what_came_back_before_the_error_is_not_asked_for_again_in_a_plain_file(scene: StepScene) -> None:
    scene.goes_wrong(Reply(400))
    with pytest.raises(ServiceError):
        scene.run()
    scene.service.script = None
    scene.service.requests.clear()
    scene.run()
    assert json.loads(scene.service.requests[0].resource)["resourceType"] == "Observation"


def test_an_error_ends_the_wait_of_the_others(scene: StepScene) -> None:
    """A line in its long wait for a busy service does not hold up the end."""
    waiting = threading.Event()

    def script(number: int, request: PseudonymizationRequest) -> Reply | None:
        if b'"Observation"' in request.resource:
            assert waiting.wait(60)
            return Reply(401)
        if b'"p0"' in request.resource:
            waiting.set()
            return Reply(503, headers={"Retry-After": "3000"})
        return None

    scene.service.script = script
    with pytest.raises(ServiceError) as caught:
        scene.run(real_sleep=True, max_concurrent_requests=4)
    assert caught.value.status == 401  # the one that waited only followed


def test_a_token_that_expires_in_the_middle_is_renewed(scene: StepScene) -> None:
    tokens: list[str] = []
    used: list[str] = []

    def answer(seen: SeenRequest) -> Reply | Raw:
        if seen.method == "GET":
            body = json.dumps({"issuer": server.url, "token_endpoint": f"{server.url}/token"}).encode()
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
        result = scene.job.run(server.url, auth={**auth, "oauth_issuer_uri": server.url}, max_concurrent_requests=1)
    assert result.lines_out == 14
    assert tokens == ["t0", "t1"]
    assert used == ["Bearer t0"] * 8 + ["Bearer t1"] * 7


def test_credentials_and_rules_show_nowhere(scene: StepScene) -> None:
    rules = RULES.replace(b"cryptoHashKey: k", f"cryptoHashKey: {CANARY}".encode())
    scene.goes_wrong(Reply(500, b"x"))
    with pytest.raises(ServiceBusyError) as caught:
        scene.run(rules=rules, auth={"username": "u", "password": CANARY})
    assert CANARY not in caught.value.render()
    assert CANARY.encode() not in scene.job.ledger.read_bytes()
