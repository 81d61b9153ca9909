"""Every step when its service or the network misbehaves, and what is told of it.

What only one of them does beyond this stands beside its other tests.
"""

from __future__ import annotations

import base64
import functools
import json
import logging
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.shared.errors import NetworkError, ServiceBusyError, ServiceError, SluiceError, Stopped
from tests.peers.data import CANARY
from tests.peers.server import Reply, SeenRequest, closed_port
from tests.peers.services import JSON, issue, outcome
from tests.peers.steps import ATTEMPTS, CASES, StepPlace

pytestmark = pytest.mark.slow
"""All of it together: some hundred small ones."""

OUTCOME = outcome(issue())
TRANSIENT = (408, 429, 500, 502, 503, 504)
TERMINAL = (400, 401, 403, 404, 410, 422)
OF_CONTENT = {("direct load", status) for status in (400, 404, 410, 422)}
"""What a FHIR server says of resources: others are sent on."""
ASKED = [name for name in CASES if name != "local_import"]
FETCHES = ("extractor", "http_import")
SLOWLY: dict[str, dict[str, Any]] = {
    "extractor": {"extractor": {"download_stall_timeout": "200ms"}},
    "http_import": {"http_import": {"stall_timeout": "200ms"}},
    "pseudonymizer": {"pseudonymizer": {"timeout": "200ms"}},
    "direct load": {"send": {"timeout": "200ms"}},
}
PASSWORD, KEY = "canary-password-4711", "canary-key-0815"
AUTH = {"username": "loader", "password": PASSWORD, "api_key": KEY}


class Scene(StepPlace):
    """A step over its service, in which one request can go wrong."""

    def __init__(self, name: str, directory: Path, caplog: pytest.LogCaptureFixture) -> None:
        super().__init__(name, directory)
        self.name, self.log = name, caplog
        self.fill()
        self.service = self.serve()

    def goes_wrong(self, reply: Reply | Callable[[SeenRequest], Reply], times: int = 1_000_000) -> None:
        left = iter(range(times))
        said = reply if callable(reply) else lambda _: reply
        self.service.script = lambda seen: (
            said(seen) if self.case.victim(seen) and next(left, None) is not None else None
        )

    def tries(self) -> list[bytes]:
        """Return the bodies of all attempts at the first request that went wrong."""
        seen = [one for one in self.service.seen if self.case.victim(one)]
        return [one.body for one in seen if (one.target, one.body) == (seen[0].target, seen[0].body)]

    def completes(self, **more: Any) -> None:
        self.run(self.service.url, **more)
        assert self.made(self.service) == undisturbed(self.name)

    def fails(self, kind: type[SluiceError], **more: Any) -> SluiceError:
        """Assert that the step ends in an error, and that nothing of the data is in what it tells or leaves."""
        with pytest.raises(kind) as caught:
            self.run(self.service.url, **more)
        assert caught.value.__cause__ is None
        self.check_told(caught.value, CANARY)
        return caught.value

    def check_told(self, error: SluiceError, *secrets: str) -> None:
        told = error.render() + repr(error) + "".join(traceback.format_exception(error)) + self.log.text
        for secret in secrets:
            assert secret not in told
            for path in self.job.rglob("*"):
                if path.is_file() and not {"import", *self.case.private} & set(path.relative_to(self.job).parts):
                    assert secret.encode() not in path.read_bytes(), path

    def then_completes(self) -> None:
        self.service.script = None
        self.completes()


@functools.cache
def undisturbed(name: str) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as directory:
        place = StepPlace(name, Path(directory)).fill()
        with place.serve() as service:
            place.run(service.url)
            return place.made(service)


@pytest.fixture(params=ASKED)
def scene(request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Scene]:
    undisturbed(request.param)
    made = Scene(request.param, tmp_path, caplog)
    with caplog.at_level(logging.DEBUG), made.service:
        yield made
    assert CANARY not in caplog.text


def over(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("scene", names, indirect=True)


def on(statuses: tuple[int, ...], *but: tuple[str, int]) -> pytest.MarkDecorator:
    pairs = [(name, status) for name in ASKED for status in statuses if (name, status) not in but]
    return pytest.mark.parametrize(("scene", "status"), pairs, indirect=["scene"])


@on(TRANSIENT)
def test_a_transient_status_is_repeated_with_the_same_bytes(scene: Scene, status: int) -> None:
    scene.goes_wrong(Reply(status, OUTCOME), times=1)
    scene.completes()
    first, second = scene.tries()
    assert first == second


# A 500 with an issue that stays while other resources work is about the resource; flattening takes any for terminal
@on(TRANSIENT, *[(name, 500) for name in ("flattening", "pseudonymizer", "validation", "direct load")])
def test_a_transient_status_that_stays_is_exit_code_3(scene: Scene, status: int) -> None:
    scene.goes_wrong(Reply(status, OUTCOME))
    error = scene.fails(ServiceBusyError)
    assert (error.exit_code, error.status) == (3, status)
    assert len(scene.tries()) == ATTEMPTS
    assert scene.case.place in (error.context or "")
    scene.then_completes()


@on(TERMINAL, *OF_CONTENT)
def test_any_other_status_is_terminal_at_once(scene: Scene, status: int) -> None:
    scene.goes_wrong(Reply(status, OUTCOME))
    error = scene.fails(ServiceError)
    assert (error.exit_code, error.status) == (1, status)
    assert len(scene.tries()) == 1
    assert scene.case.place in (error.context or "")
    scene.then_completes()


# of S3 a redirect is about the region
@over(*[name for name in ASKED if name not in (*FETCHES, "S3")])
@pytest.mark.parametrize("status", [301, 302, 307])
def test_a_redirect_of_what_is_sent_is_refused(scene: Scene, status: int) -> None:
    scene.goes_wrong(Reply(status, headers={"Location": "/elsewhere"}))
    error = scene.fails(ServiceError)
    assert (error.exit_code, error.reference) == (1, "redirect-refused")
    assert len(scene.tries()) == 1
    scene.then_completes()


@over(*FETCHES)
def test_a_redirect_of_a_download_is_followed(scene: Scene) -> None:
    scene.goes_wrong(Reply(307, headers={"Location": "/elsewhere/batch-1.ndjson.zst"}), times=1)
    scene.completes()


BROKEN = {"reset": Reply(reset=True), "cut": Reply(body=b'{"resourceType":"%b"}\n' % CANARY.encode() * 50, cut=700)}
"""An upload is not cut: its answer is not read. What is cut of a download has been looked at before."""
UNREAD = ("transfer", *FETCHES)
BREAKS = pytest.mark.parametrize(
    ("scene", "how"),
    [(name, how) for name in ASKED for how in BROKEN if how == "reset" or name not in UNREAD],
    indirect=["scene"],
)


@BREAKS
def test_an_answer_that_breaks_off_once_is_not_noticed(scene: Scene, how: str) -> None:
    scene.goes_wrong(BROKEN[how], times=1)
    scene.completes()


@over(*FETCHES)
def test_a_download_that_breaks_off_once_is_not_noticed(scene: Scene) -> None:
    scene.goes_wrong(lambda seen: replace(scene.service.answer(seen), cut=100), times=1)
    scene.completes()


@BREAKS
def test_when_that_goes_on_it_is_exit_code_3(scene: Scene, how: str) -> None:
    scene.goes_wrong(BROKEN[how])
    error = scene.fails(NetworkError)
    assert (error.exit_code, error.reference) == (3, "connection-broken")
    assert len(scene.tries()) == ATTEMPTS
    assert scene.case.place in (error.context or "")
    scene.then_completes()


@over(*SLOWLY)
def test_a_service_that_stalls_is_exit_code_3(scene: Scene) -> None:
    scene.goes_wrong(Reply(stall=True))
    error = scene.fails(NetworkError, services=SLOWLY[scene.name])
    assert error.exit_code == 3
    scene.then_completes()


def test_nobody_there_is_exit_code_3(scene: Scene) -> None:
    url, scene.service.url = scene.service.url, f"http://127.0.0.1:{closed_port()}"
    error = scene.fails(NetworkError)
    assert (error.exit_code, error.reference) == (3, "connect-failed")
    scene.service.url = url
    scene.completes()


def test_a_stop_ends_the_step_and_another_run_goes_on(scene: Scene) -> None:
    def script(seen: SeenRequest) -> None:
        if scene.case.victim(seen):
            scene.context.stop.request("SIGTERM")

    scene.service.script = script
    with pytest.raises(Stopped):
        scene.run(scene.service.url)
    scene.then_completes()


@over("flattening")
def test_a_500_of_the_flattening_that_stays_is_terminal(scene: Scene) -> None:
    scene.goes_wrong(Reply(500, OUTCOME))
    error = scene.fails(ServiceError)
    assert (error.exit_code, error.reference) == (1, "flattening-failed")
    assert len(scene.tries()) == ATTEMPTS
    assert "batch_size_mb" in (error.hint or "")
    scene.then_completes()


@over("flattening")
def test_a_timeout_of_the_flattening_is_not_asked_again(scene: Scene) -> None:
    scene.goes_wrong(Reply(stall=True))
    error = scene.fails(SluiceError, services={"flattening": {"timeout": "200ms"}})
    assert error.reference == "flattening-timeout"
    assert len(scene.tries()) == 1
    scene.then_completes()


@over("direct load")
@pytest.mark.parametrize("status", [409, 412])
def test_a_conflict_at_a_fhir_server_is_transient(scene: Scene, status: int) -> None:
    scene.goes_wrong(Reply(status, outcome(issue(code="conflict"))), times=2)
    scene.completes()


def quoting(seen: SeenRequest) -> str:
    """Return a gateway's error page about a request: all of it, besides data of a patient."""
    basic = base64.b64encode(f"loader:{PASSWORD}".encode()).decode()
    return json.dumps({"about": CANARY, "headers": seen.headers, "known": [PASSWORD, KEY, basic]})


WRONG: dict[str, Callable[[SeenRequest], Reply]] = {
    "refused": lambda seen: Reply(403, outcome(issue(diagnostics=quoting(seen))), JSON),
    "busy": lambda seen: Reply(503, outcome(issue(diagnostics=quoting(seen))), JSON),
    "another kind": lambda seen: Reply(200, b'{"resourceType":"Basic","x":%b}' % quoting(seen).encode(), JSON),
    "no JSON": lambda seen: Reply(200, b"<html>%b</html>" % quoting(seen).encode(), {"Content-Type": "text/html"}),
    "broken JSON": lambda seen: Reply(200, outcome(issue(diagnostics=quoting(seen)))[:-2], JSON),
}  # fmt: skip
TAKEN = {
    ("http_import", "another kind"),
    ("extractor", "another kind"),
    *(("transfer", kind) for kind in list(WRONG)[2:]),
}
"""What is imported may be of any kind, and what an upload is answered with is not read."""


@pytest.mark.parametrize(
    ("scene", "kind"), [(name, kind) for name in ASKED for kind in WRONG if (name, kind) not in TAKEN],
    indirect=["scene"],
)  # fmt: skip
def test_a_wrong_answer_is_refused_and_no_secret_is_told(scene: Scene, kind: str) -> None:
    key = {"direct load": "send", "transfer": "send", "S3": "send"}.get(scene.name, scene.name)
    auth = {"username": "loader", "password": PASSWORD} if scene.name == "S3" else AUTH
    has_auth = scene.name in ("extractor", "pseudonymizer", "direct load", "transfer", "S3")
    scene.goes_wrong(WRONG[kind])
    error = scene.fails(SluiceError, **({"services": {key: {"auth": auth}}} if has_auth else {}))
    assert error.hint
    scene.check_told(error, *([PASSWORD, KEY] if has_auth else []))
    for kept in (path for path in scene.job.rglob("failed/*") if path.is_file()):
        assert kept.stat().st_mode & 0o777 == 0o600
        assert not has_auth or PASSWORD.encode() not in kept.read_bytes()
