"""Behavior of every step when its service or the network misbehaves (document 3 §1).

What only one of them does stands beside its other tests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.shared.errors import NetworkError, ServiceBusyError, ServiceError, Stopped
from tests.peers.scenes import KINDS, OUTCOME, REFUSED, StepScene, playing
from tests.peers.server import Reply, closed_port
from tests.peers.validation import CANARY

pytestmark = pytest.mark.slow
"""All of it together: a hundred and more small ones."""

TRANSIENT = [408, 429, 500, 502, 503, 504]


@pytest.fixture(params=list(KINDS))
def scene(request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StepScene]:
    with playing(request.param, tmp_path / "job", caplog) as scene:
        yield scene


def on(*pairs: tuple[str, object], name: str) -> pytest.MarkDecorator:
    """Parametrize a test over steps, each with another value of ``name``."""
    return pytest.mark.parametrize(("scene", name), pairs, indirect=["scene"])


EACH = [(kind, status) for kind in KINDS for status in TRANSIENT]


@on(*EACH, name="status")
def test_a_transient_status_is_repeated_with_the_same_bytes(scene: StepScene, status: int) -> None:
    scene.goes_wrong(Reply(status, OUTCOME), times=1)
    scene.run()
    first, second = scene.tries()
    assert first == second
    assert scene.job.slept == [0.1]
    assert scene.job.context.meter.retries == 1


# flattening takes a 500 that stays for terminal
@on(*[one for one in EACH if one != ("flattening", 500)], name="status")
def test_a_transient_status_that_stays_fails_the_step_with_exit_code_3(scene: StepScene, status: int) -> None:
    scene.goes_wrong(Reply(status, OUTCOME))
    error = scene.fails(ServiceBusyError)
    assert (error.exit_code, error.status, error.reference) == (3, status, "service-busy")
    assert len(scene.tries()) == 3
    assert scene.job.slept == [0.1, 0.2]
    assert scene.kind.place in (error.context or "")
    scene.check_kept_answer(error, OUTCOME)
    scene.then_succeeds()


@on(*[(name, status) for name, kind in KINDS.items() for status in REFUSED | kind.refused], name="status")
def test_any_other_status_is_terminal_at_once(scene: StepScene, status: int) -> None:
    body = b"" if status == 204 else OUTCOME
    scene.goes_wrong(Reply(status, body))
    error = scene.fails(ServiceError)
    reference = (REFUSED | scene.kind.refused)[status]
    assert (error.exit_code, error.status, error.reference) == (1, status, reference)
    assert len(scene.tries()) == 1
    assert scene.job.slept == []
    assert scene.kind.place in (error.context or "")
    if status not in scene.kind.unkept:
        scene.check_kept_answer(error, body)
    scene.then_succeeds()


@pytest.mark.parametrize("status", [301, 302])
def test_a_redirect_is_refused(scene: StepScene, status: int) -> None:
    scene.goes_wrong(Reply(status, headers={"Location": "/elsewhere"}))
    error = scene.fails(ServiceError)
    assert (error.exit_code, error.status, error.reference) == (1, status, "redirect-refused")
    assert len(scene.tries()) == 1


@pytest.mark.parametrize("header", ["7", "0"])
def test_retry_after_lengthens_the_wait(scene: StepScene, header: str) -> None:
    scene.goes_wrong(Reply(429, headers={"Retry-After": header}), times=1)
    scene.run()
    assert scene.job.slept == [max(0.1, float(header))]


BROKEN = {"reset": Reply(reset=True), "cut": Reply(body=b'{"resourceType":"%b"}\n' % CANARY.encode() * 50, cut=700)}


@pytest.mark.parametrize("how", BROKEN)
def test_an_answer_that_does_not_come_or_breaks_off_once_is_not_noticed(scene: StepScene, how: str) -> None:
    scene.goes_wrong(BROKEN[how], times=1)
    scene.run()
    first, second = scene.tries()
    assert first == second
    assert scene.job.slept == [0.1]


@pytest.mark.parametrize("how", BROKEN)
def test_when_that_goes_on_the_step_fails_transiently(scene: StepScene, how: str) -> None:
    scene.goes_wrong(BROKEN[how])
    with pytest.raises(NetworkError) as caught:
        scene.run()
    error = caught.value
    assert CANARY not in error.render()
    assert (error.exit_code, error.reference) == (3, "connection-broken")
    assert len(scene.tries()) == 3
    assert scene.kind.place in (error.context or "")
    scene.then_succeeds()


# flattening does not ask again: there a timeout means that the batch is too large
@pytest.mark.slow
@pytest.mark.parametrize("scene", [kind for kind in KINDS if kind != "flattening"], indirect=True)
def test_a_service_that_stalls_is_asked_again_after_the_timeout(scene: StepScene) -> None:
    scene.goes_wrong(Reply(stall=True))
    error = scene.fails(NetworkError, attempts=2, **scene.kind.slowly)
    assert (error.exit_code, error.reference) == (3, "timeout")
    assert len(scene.tries()) == 2
    scene.then_succeeds()


def test_nobody_there_is_transient(scene: StepScene) -> None:
    url, scene.service.url = scene.service.url, f"http://127.0.0.1:{closed_port()}"
    error = scene.fails(NetworkError)
    assert (error.exit_code, error.reference) == (3, "connect-failed")
    assert scene.job.slept[:2] == [0.1, 0.2]
    scene.service.url = url
    scene.run()


def test_a_stop_ends_the_step_and_another_run_goes_on(scene: StepScene) -> None:
    def script(_: int, request: Any) -> None:
        if scene.kind.goes_wrong(request):
            scene.job.context.stop.request("SIGTERM")

    scene.service.script = script
    started = time.monotonic()
    with pytest.raises(Stopped):
        scene.run()
    assert time.monotonic() - started < 10  # what 4-product.md §4 allows
    scene.then_succeeds(for_less=False)  # a stop does not wait for the answers to what is under way
