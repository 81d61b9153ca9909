"""What every step does when the service that it asks or the network misbehaves (document 3 §1).

What only one of them does stands beside its other tests.
"""

from __future__ import annotations

import functools
import logging
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tasks.flattening import flattening as flattening_step
from tasks.shared.errors import NetworkError, ServiceBusyError, ServiceError, SluiceError, Stopped
from tasks.shared.report import StepReport
from tasks.validation import validation as validation_step
from tests.peers import fhir, flattening, pseudonymization, validation
from tests.peers.job import Job
from tests.peers.server import Reply, Service, closed_port
from tests.peers.validation import CANARY

pytestmark = pytest.mark.slow
"""All of it together: a hundred and more small ones."""

OUTCOME = validation.outcome(validation.issue())
TRANSIENT = [408, 429, 500, 502, 503, 504]
REFUSED = {301: "service-unexpected", 401: "service-unauthorized", 403: "service-forbidden", 404: "service-not-found"}
REFUSED |= {405: "service-refused", 415: "service-refused"}
OF_DATA = {400: "service-refused", 409: "service-refused", 413: "service-too-large", 422: "service-refused"}
OF_DATA |= {501: "service-failed"}
"""What can be about the data; ``send`` looks further there."""


@dataclass(frozen=True)
class Kind:
    """A step, and one of its requests, which can go wrong: not its first, not its last."""

    job: Callable[[Path], Job]
    serving: Callable[[], Service[Any]]
    run: Callable[..., StepReport]
    fill: Callable[[Any], object]
    goes_wrong: Callable[[Any], bool]
    """Whether a request is that one."""
    place: str
    """How an error names it."""
    made: Callable[[Any, Any], object]
    """What must be there in the end, of the job and its service."""
    slowly: dict[str, Any] = field(default_factory=dict)
    """Options with which it gives up a request after a second."""
    private: tuple[str, ...] = ()
    """Folders that may hold data, beside what is read."""
    keeps: str = ""
    """Where it keeps an answer that made it fail, if it does."""
    unkept: tuple[int, ...] = ()
    """Statuses whose answer says nothing that is worth keeping."""
    refused: dict[int, str] = field(default_factory=dict)
    """What its errors are called, beyond ``REFUSED``."""


def _pseudonymizer(job: pseudonymization.Job) -> None:
    people = [pseudonymization.patient(f"p{n}", name=[{"family": CANARY}]) for n in range(9)]
    job.write("a.ndjson", *people[:3], pseudonymization.bundle("b", *people[3:5]), pseudonymization.observation(CANARY))
    job.write("b.ndjson", *people)


def _validation(job: validation.Job) -> None:
    job.write("a.ndjson", *[validation.patient(f"a{n}", bad=1, x="y" * 600) for n in range(2)])
    job.write("b.ndjson", *[validation.patient(f"b{n}", bad=1, x="y" * 600) for n in range(4)])


def _flattening(job: flattening.Job) -> None:
    job.write("a.ndjson", *[flattening.patient_line(n, 6) for n in range(4)])
    job.write("b.ndjson", *[flattening.patient_line(n, 6, size=3) for n in range(4, 8)])


def _send(job: fhir.Job) -> None:
    job.write("a.ndjson", *[fhir.observation(f"o{n}", text=CANARY) for n in range(20)])


KINDS = {
    "pseudonymizer": Kind(
        pseudonymization.Job, lambda: pseudonymization.serving(pseudonymization.pseudonyms),
        functools.partial(pseudonymization.Job.run, max_concurrent_requests=1),
        _pseudonymizer, lambda request: b'"Observation"' in request.body, "a.ndjson:5 Observation",
        lambda job, _: {path.name: path.read_bytes() for path in job.output.iterdir()},
        {"timeout": "1s"}, ("failed", "pseudonymized"), "pseudonymizer/failed/*.txt", (413,),
        OF_DATA | {302: "service-unexpected", 413: "pseudonymizer-too-large"},
    ),
    "validation": Kind(
        validation.Job, validation.serving,
        functools.partial(validation.Job.validate, chunk_bytes=1000, max_concurrent_requests=1),
        _validation, lambda body: b'"b1"' in body, "b.ndjson:2 Patient",
        lambda job, _: job.files(), {"bounds": validation_step.Bounds(timeout=1.0, mebibyte=1000)},
        ("validation", ".state", "failed"), "validation/failed/*", (),
        OF_DATA | {302: "service-unexpected", 410: "service-refused", 413: "validation-too-large"},
    ),
    "flattening": Kind(
        flattening.Job, flattening.serving,
        functools.partial(flattening.Job.run, bounds=flattening_step.Bounds(mebibyte=900), batch_size_mb=3),
        _flattening, lambda request: "p1-o0" in request.ids, "group Labor, batch 3",
        lambda job, _: job.tables(), {}, ("failed",), "flattening/failed/*", (202, 204),
        OF_DATA | {202: "flattening-answer", 204: "flattening-answer"},
    ),
    "send": Kind(
        fhir.Job, fhir.serving, functools.partial(fhir.Job.send, batch_size=5),
        _send, lambda bundle: "Observation/o10" in [entry["request"]["url"] for entry in bundle["entry"]],
        "a.ndjson:11-15", lambda _, service: (sorted(service.stored.items()), sorted(service.history)),
        {"timeout": "1s"}, ("failed",), "send/failed/*.txt",
        refused={302: "service-unexpected", 410: "service-refused"},
    ),
}  # fmt: skip


class Scene:
    """A job of a step over its service."""

    def __init__(self, kind: Kind, directory: Path, service: Service[Any]) -> None:
        self.kind, self.service = kind, service
        self.job = kind.job(directory)
        kind.fill(self.job)

    def run(self, **options: Any) -> StepReport:
        return self.kind.run(self.job, self.service.url, **options)

    def goes_wrong(self, reply: Reply, times: int = 1_000_000) -> None:
        """``reply`` to one request, so many times."""
        left = iter([reply] * times if times < 9 else iter(lambda: reply, None))
        self.service.script = lambda _, request: next(left, None) if self.kind.goes_wrong(request) else None

    def tries(self) -> list[bytes]:
        """The bodies of all attempts at that request."""
        seen = zip(self.service.requests, self.service.seen, strict=True)
        return [one.body for request, one in seen if self.kind.goes_wrong(request)]

    def fails(self, kind: type[SluiceError], **options: Any) -> SluiceError:
        with pytest.raises(kind) as caught:
            self.run(**options)
        assert caught.value.__cause__ is None
        shown = caught.value.render() + repr(caught.value) + "".join(traceback.format_exception(caught.value))
        assert CANARY not in shown
        for path in self.job.directory.rglob("*"):
            if path.is_file() and path.parent.name not in {"import", *self.kind.private}:
                assert CANARY.encode() not in path.read_bytes(), path
        return caught.value

    def kept(self) -> list[Path]:
        return sorted(self.job.directory.glob(self.kind.keeps)) if self.kind.keeps else []

    def keeps(self, error: SluiceError, body: bytes) -> None:
        """The answer lies in a private file, which the hint names."""
        if not self.kind.keeps:
            return
        (kept,) = self.kept()
        assert kept.read_bytes() == body
        assert kept.stat().st_mode & 0o777 == 0o600
        assert str(kept.relative_to(self.job.directory)) in (error.hint or "")

    def then_succeeds(self, *, for_less: bool = True) -> None:
        """Nothing was lost: the next run gives what an undisturbed one gives, and asks for less."""
        self.service.script = None
        before = len(self.service.requests)
        self.run()
        asked = len(self.service.requests) - before
        assert self.kept() == []
        made = self.kind.made(self.job, self.service)
        shutil.rmtree(self.job.directory)
        with self.kind.serving() as service:
            whole = Scene(self.kind, self.job.directory, service)
            whole.run()
            assert made == self.kind.made(whole.job, service)
            assert asked < len(service.requests) + (not for_less)


@pytest.fixture(params=list(KINDS))
def scene(request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Scene]:
    kind = KINDS[request.param]
    with caplog.at_level(logging.DEBUG), kind.serving() as service:
        yield Scene(kind, tmp_path / "job", service)
    assert CANARY not in caplog.text


def on(*pairs: tuple[str, object], name: str) -> pytest.MarkDecorator:
    """The step, and something else."""
    return pytest.mark.parametrize(("scene", name), pairs, indirect=["scene"])


EACH = [(kind, status) for kind in KINDS for status in TRANSIENT]


@on(*EACH, name="status")
def test_a_transient_status_is_repeated_with_the_same_bytes(scene: Scene, status: int) -> None:
    scene.goes_wrong(Reply(status, OUTCOME), times=1)
    scene.run()
    first, second = scene.tries()
    assert first == second
    assert scene.job.slept == [0.1]
    assert scene.job.context.meter.retries == 1


# flattening takes a 500 that stays for terminal
@on(*[one for one in EACH if one != ("flattening", 500)], name="status")
def test_a_transient_status_that_stays_fails_the_step_with_exit_code_3(scene: Scene, status: int) -> None:
    scene.goes_wrong(Reply(status, OUTCOME))
    error = scene.fails(ServiceBusyError)
    assert (error.exit_code, error.status, error.reference) == (3, status, "service-busy")
    assert len(scene.tries()) == 3
    assert scene.job.slept == [0.1, 0.2]
    assert scene.kind.place in (error.context or "")
    scene.keeps(error, OUTCOME)
    scene.then_succeeds()


@on(*[(name, status) for name, kind in KINDS.items() for status in REFUSED | kind.refused], name="status")
def test_any_other_status_is_terminal_at_once(scene: Scene, status: int) -> None:
    body = b"" if status == 204 else OUTCOME
    scene.goes_wrong(Reply(status, body))
    error = scene.fails(ServiceError)
    reference = (REFUSED | scene.kind.refused)[status]
    assert (error.exit_code, error.status, error.reference) == (1, status, reference)
    assert len(scene.tries()) == 1
    assert scene.job.slept == []
    assert scene.kind.place in (error.context or "")
    if status not in scene.kind.unkept:
        scene.keeps(error, body)
    scene.then_succeeds()


@pytest.mark.parametrize("status", [301, 302])
def test_a_redirect_is_refused(scene: Scene, status: int) -> None:
    scene.goes_wrong(Reply(status, headers={"Location": "/elsewhere"}))
    error = scene.fails(ServiceError)
    assert (error.exit_code, error.status, error.reference) == (1, status, "redirect-refused")
    assert len(scene.tries()) == 1


@pytest.mark.parametrize("header", ["7", "0"])
def test_retry_after_lengthens_the_wait(scene: Scene, header: str) -> None:
    scene.goes_wrong(Reply(429, headers={"Retry-After": header}), times=1)
    scene.run()
    assert scene.job.slept == [max(0.1, float(header))]


BROKEN = {"reset": Reply(reset=True), "cut": Reply(body=b'{"resourceType":"%b"}\n' % CANARY.encode() * 50, cut=700)}


@pytest.mark.parametrize("how", BROKEN)
def test_an_answer_that_does_not_come_or_breaks_off_once_is_not_noticed(scene: Scene, how: str) -> None:
    scene.goes_wrong(BROKEN[how], times=1)
    scene.run()
    first, second = scene.tries()
    assert first == second
    assert scene.job.slept == [0.1]


@pytest.mark.parametrize("how", BROKEN)
def test_when_that_goes_on_the_step_fails_transiently(scene: Scene, how: str) -> None:
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
def test_a_service_that_stalls_is_asked_again_after_the_timeout(scene: Scene) -> None:
    scene.goes_wrong(Reply(stall=True))
    error = scene.fails(NetworkError, attempts=2, **scene.kind.slowly)
    assert (error.exit_code, error.reference) == (3, "timeout")
    assert len(scene.tries()) == 2
    scene.then_succeeds()


def test_nobody_there_is_transient(scene: Scene) -> None:
    url, scene.service.url = scene.service.url, f"http://127.0.0.1:{closed_port()}"
    error = scene.fails(NetworkError)
    assert (error.exit_code, error.reference) == (3, "connect-failed")
    assert scene.job.slept[:2] == [0.1, 0.2]
    scene.service.url = url
    scene.run()


def test_a_stop_ends_the_step_and_another_run_goes_on(scene: Scene) -> None:
    def script(_: int, request: Any) -> None:
        if scene.kind.goes_wrong(request):
            scene.job.context.stop.request("SIGTERM")

    scene.service.script = script
    started = time.monotonic()
    with pytest.raises(Stopped):
        scene.run()
    assert time.monotonic() - started < 10  # what 4-product.md §4 allows
    scene.then_succeeds(for_less=False)  # a stop does not wait for the answers to what is under way
