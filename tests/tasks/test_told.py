"""Errors for a wrong answer (document 3 §1): by each step, for each kind of answer that the step refuses.

The error names service, place, what came and what to do; nothing of the answer is in message, log or artifact; the
answer itself is kept in ``<step>/failed/`` (0600) without the credentials that it quotes. That each lie is noticed is
said beside each step (``test_liar.py``).
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.pseudonymizer.client import service as pseudonymizer_service
from tasks.shared.blanked import MARK, SECRETS
from tasks.shared.errors import SluiceError
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.http.answer import Answer, RefusedError
from tasks.shared.prefect_task import proved
from tests.peers import asking, fhir, flattening, job, pseudonymization, validation
from tests.peers.asking import is_request
from tests.peers.s3 import scripted
from tests.peers.server import Loopback, Reply, SeenRequest
from tests.peers.transfer import Endpoint
from tests.peers.validation import CANARY

PASSWORD, KEY = "canary-password-4711", "canary-key-0815"
AUTH = {"username": "loader", "password": PASSWORD, "api_key": KEY}
JSON = {"Content-Type": "application/fhir+json"}


def quoting(seen: SeenRequest) -> str:
    """Return a gateway's error page for a request: all of the request, besides data of a patient."""
    known = {"password": PASSWORD, "x-api-key": KEY, "basic": base64.b64encode(f"loader:{PASSWORD}".encode()).decode()}
    return json.dumps({"about": CANARY, "headers": seen.headers, "cookie": f"session={KEY}", "known": known})


def outcome(seen: SeenRequest) -> bytes:
    issue = {"severity": "error", "code": "processing", "diagnostics": quoting(seen)}
    return json.dumps({"resourceType": "OperationOutcome", "issue": [issue]}).encode()


KINDS: dict[str, Callable[[SeenRequest], Reply]] = {
    "refused": lambda seen: Reply(403, outcome(seen), JSON),
    "busy": lambda seen: Reply(503, outcome(seen), JSON),
    "a promise": lambda seen: Reply(202, outcome(seen), JSON),
    "another kind of resource": lambda seen: Reply(
        200, json.dumps({"resourceType": "Basic", "x": quoting(seen)}).encode(), JSON
    ),
    "no JSON": lambda seen: Reply(200, f"<html>{quoting(seen)}</html>".encode(), {"Content-Type": "text/html"}),
    "broken JSON": lambda seen: Reply(200, outcome(seen)[:-2], JSON),
}


@dataclass(frozen=True)
class ToldStep:
    """A step with a service; ``place`` is the part of the input in its errors, ``run`` returns the job's directory."""

    key: str
    serving: Callable[[], Loopback]
    run: Callable[[Path, str], Any]
    place: str
    victim: Callable[[SeenRequest], bool] = lambda seen: seen.method == "POST"
    takes: tuple[str, ...] = ()
    """Kinds that are right for it."""


def _probe(directory: Path, url: str) -> None:
    config = job.configuration({"pseudonymizer": {"url": url, "auth": AUTH}}, attempts=1)
    list(proved([pseudonymizer_service(config)], job.context(directory, "pseudonymizer", config)))


PSEUDONYMIZER, TRANSFER = partial(asking.pseudonymizer, auth=AUTH), partial(asking.transfer, auth=AUTH)
STEPS = {
    "pseudonymizer": ToldStep("pseudonymizer", pseudonymization.FakePseudonymizer, PSEUDONYMIZER, "a.ndjson:1 Patient"),
    "pseudonymizer, made up": ToldStep(
        "pseudonymizer", pseudonymization.FakePseudonymizer, _probe, "/fhir/$de-identify", takes=("a promise",)
    ),
    "validation": ToldStep("validation", validation.FakeValidation, asking.validator, "a.ndjson:1"),
    "flattening": ToldStep(
        "flattening", flattening.FakeFlattening, asking.flattener, "group Patient, batch 1",
        lambda seen: b'"resource":"Patient"' in seen.body,
    ),
    "direct load": ToldStep("send", fhir.FakeFhir, partial(asking.load, auth=AUTH), "a.ndjson:1"),
    "transfer: search": ToldStep("send", Endpoint, TRANSFER, "/fhir/DocumentReference", is_request("GET")),
    "transfer: upload": ToldStep(
        "send", Endpoint, TRANSFER, "/fhir/Binary/", is_request("PUT", "Binary"), takes=tuple(KINDS)[2:]
    ),  # what it is answered with is not read: what is there then is looked at
    "S3": ToldStep("send", scripted, asking.upload, "a.ndjson", is_request("PUT")),
}  # fmt: skip


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        pytest.param(step, kind, id=f"{name}: {kind}")
        for name, step in STEPS.items()
        for kind in KINDS
        if kind not in step.takes
    ],
)
def test_what_is_told_of_a_wrong_answer(
    step: ToldStep, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for secret in (PASSWORD, KEY):
        SECRETS.text(secret)  # as a step does with those of all services
    SECRETS.pair("loader", PASSWORD)
    asked: list[SeenRequest] = []
    with step.serving() as server, caplog.at_level(logging.DEBUG):
        honest = server.handle

        def handle(seen: SeenRequest) -> Any:
            if not step.victim(seen):
                return honest(seen)
            asked.append(seen)
            return KINDS[kind](seen)

        server.handle = handle  # type: ignore[method-assign]
        with pytest.raises(SluiceError) as caught:
            step.run(tmp_path, server.url)
    error = caught.value
    assert error.message.startswith(f"{step.key}: ")
    assert step.place in (error.context or "")
    assert error.hint

    shown = error.render() + repr(error) + caplog.text
    kept = sorted((tmp_path / step.key / "failed").glob("*.txt"))
    told = [path for path in kept if path.relative_to(tmp_path).as_posix() in error.hint]
    assert len(told) == 1
    written = told[0].read_bytes()
    assert CANARY.encode() in written  # the answer, for the person who may read it
    assert MARK in written
    assert told[0].stat().st_mode & 0o777 == 0o600

    sent = {asked[-1].headers.get(name, "") for name in ("authorization", "x-api-key")} - {""}
    for secret in (PASSWORD, KEY, *sent, *(one.rpartition("Signature=")[2] for one in sent)):
        assert secret.encode() not in written
        assert secret not in shown
    assert CANARY not in shown
    for path in tmp_path.rglob("*"):
        if path.is_file() and path not in told and "import" not in path.parts:
            assert CANARY.encode() not in path.read_bytes(), path

    about = [path for path in kept[0].parent.iterdir() if path.name.endswith(".request.json")]
    if step.run is PSEUDONYMIZER:
        (request,) = [json.loads(path.read_bytes()) for path in about]
        assert request == {"place": step.place, "sha256": hashlib.sha256(asked[-1].body).hexdigest()}
        assert about[0].stat().st_mode & 0o777 == 0o600
    else:
        assert not about


def test_what_one_run_kept_goes_with_the_next_one(tmp_path: Path) -> None:
    FailedAnswers(tmp_path).begin().save_answer(b"an answer", request=("a.ndjson:1 Patient", b"a request"))
    assert len(list((tmp_path / "failed").iterdir())) == 2
    FailedAnswers(tmp_path).begin()
    assert list((tmp_path / "failed").iterdir()) == []


def test_an_answer_that_cannot_be_kept_does_not_hide_what_went_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failed = FailedAnswers(tmp_path / "gone")
    error = RefusedError("x-answer", "x: no result").made_from(Answer(200, httpx.Headers(), CANARY.encode()))
    with pytest.raises(RefusedError) as caught, failed.saving_answers():
        raise error
    assert (caught.value, caught.value.hint) == (error, None)
    assert "cannot be kept" in caplog.text
    assert CANARY not in caplog.text
