"""A job of a step over its scripted service, in which one request can go wrong."""

from __future__ import annotations

import functools
import logging
import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tasks.flattening import flattening as flattening_step
from tasks.shared.errors import SluiceError
from tasks.shared.report import StepReport
from tasks.validation import validation as validation_step
from tests.peers import fhir, flattening, pseudonymization, validation
from tests.peers.job import StepJob
from tests.peers.server import Reply, ScriptedService
from tests.peers.validation import CANARY

OUTCOME = validation.outcome(validation.issue())
REFUSED = {301: "service-unexpected", 401: "service-unauthorized", 403: "service-forbidden", 404: "service-not-found"}
REFUSED |= {405: "service-refused", 415: "service-refused"}
OF_DATA = {400: "service-refused", 409: "service-refused", 413: "service-too-large", 422: "service-refused"}
OF_DATA |= {501: "service-failed"}
"""What can be about the data; ``send`` looks further there."""


@dataclass(frozen=True)
class StepKind:
    """A step, and one of its requests, which can go wrong: not its first, not its last."""

    job: Callable[[Path], StepJob]
    serving: Callable[[], ScriptedService[Any]]
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


def _pseudonymizer(job: pseudonymization.PseudonymizerJob) -> None:
    people = [pseudonymization.patient(f"p{n}", name=[{"family": CANARY}]) for n in range(9)]
    job.write("a.ndjson", *people[:3], pseudonymization.bundle("b", *people[3:5]), pseudonymization.observation(CANARY))
    job.write("b.ndjson", *people)


def _validation(job: validation.ValidationJob) -> None:
    job.write("a.ndjson", *[validation.patient(f"a{n}", bad=1, x="y" * 600) for n in range(2)])
    job.write("b.ndjson", *[validation.patient(f"b{n}", bad=1, x="y" * 600) for n in range(4)])


def _flattening(job: flattening.FlatteningJob) -> None:
    job.write("a.ndjson", *[flattening.patient_line(n, 6) for n in range(4)])
    job.write("b.ndjson", *[flattening.patient_line(n, 6, size=3) for n in range(4, 8)])


def _send(job: fhir.DirectLoadJob) -> None:
    job.write("a.ndjson", *[fhir.observation(f"o{n}", text=CANARY) for n in range(20)])


KINDS = {
    "pseudonymizer": StepKind(
        pseudonymization.PseudonymizerJob, lambda: pseudonymization.serving(pseudonymization.pseudonyms),
        functools.partial(pseudonymization.PseudonymizerJob.run, max_concurrent_requests=1),
        _pseudonymizer, lambda request: b'"Observation"' in request.body, "a.ndjson:5 Observation",
        lambda job, _: {path.name: path.read_bytes() for path in job.output.iterdir()},
        {"timeout": "1s"}, ("failed", "pseudonymized"), "pseudonymizer/failed/*.txt", (413,),
        OF_DATA | {302: "service-unexpected", 413: "pseudonymizer-too-large"},
    ),
    "validation": StepKind(
        validation.ValidationJob, validation.serving,
        functools.partial(validation.ValidationJob.validate, chunk_bytes=1000, max_concurrent_requests=1),
        _validation, lambda body: b'"b1"' in body, "b.ndjson:2 Patient",
        lambda job, _: job.files(), {"bounds": validation_step.ValidationBounds(timeout=1.0, mebibyte=1000)},
        ("validation", ".state", "failed"), "validation/failed/*", (),
        OF_DATA | {302: "service-unexpected", 410: "service-refused", 413: "validation-too-large"},
    ),
    "flattening": StepKind(
        flattening.FlatteningJob, flattening.serving,
        functools.partial(
            flattening.FlatteningJob.run, bounds=flattening_step.FlatteningBounds(mebibyte=900), batch_size_mb=3
        ),
        _flattening, lambda request: "p1-o0" in request.ids, "group Labor, batch 3",
        lambda job, _: job.tables(), {}, ("failed",), "flattening/failed/*", (202, 204),
        OF_DATA | {202: "flattening-answer", 204: "flattening-answer"},
    ),
    "send": StepKind(
        fhir.DirectLoadJob, fhir.serving, functools.partial(fhir.DirectLoadJob.send, batch_size=5),
        _send, lambda bundle: "Observation/o10" in [entry["request"]["url"] for entry in bundle["entry"]],
        "a.ndjson:11-15", lambda _, service: (sorted(service.stored.items()), sorted(service.history)),
        {"timeout": "1s"}, ("failed",), "send/failed/*.txt",
        refused={302: "service-unexpected", 410: "service-refused"},
    ),
}  # fmt: skip


class StepScene:
    """A job of a step over its service."""

    def __init__(self, kind: StepKind, directory: Path, service: ScriptedService[Any]) -> None:
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
        """Return the bodies of all attempts at that request."""
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

    def kept_answers(self) -> list[Path]:
        return sorted(self.job.directory.glob(self.kind.keeps)) if self.kind.keeps else []

    def check_kept_answer(self, error: SluiceError, body: bytes) -> None:
        """Assert that the answer is in a private file that the hint names."""
        if not self.kind.keeps:
            return
        (kept,) = self.kept_answers()
        assert kept.read_bytes() == body
        assert kept.stat().st_mode & 0o777 == 0o600
        assert str(kept.relative_to(self.job.directory)) in (error.hint or "")

    def then_succeeds(self, *, for_less: bool = True) -> None:
        """Assert that the next run gives the output of an undisturbed one with fewer requests."""
        self.service.script = None
        before = len(self.service.requests)
        self.run()
        asked = len(self.service.requests) - before
        assert self.kept_answers() == []
        made = self.kind.made(self.job, self.service)
        given = {path.name: path.read_bytes() for path in self.job.input.iterdir()}
        shutil.rmtree(self.job.directory)
        with self.kind.serving() as service:
            whole = StepScene(self.kind, self.job.directory, service)
            for name, content in given.items():
                whole.job.put(name, content)
            whole.run()
            assert made == self.kind.made(whole.job, service)
            assert asked < len(service.requests) + (not for_less)


@contextmanager
def playing(name: str, directory: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StepScene]:
    """Yield the scene of a step; afterwards its log must contain none of the data."""
    kind = KINDS[name]
    with caplog.at_level(logging.DEBUG), kind.serving() as service:
        yield StepScene(kind, directory, service)
    assert CANARY not in caplog.text
