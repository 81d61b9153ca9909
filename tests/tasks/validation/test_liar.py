"""A validation service that lies, in one way at a time (document 3 §6): what becomes of each lie.

Honest but for one request of six; every lie ends the step with an error that names file and line, or is listed with the
reason why it cannot be noticed. ``docs/lies.md`` is made from this table (``tests/docs/test_lies.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.shared.errors import SluiceError
from tasks.validation.client import service as declared_service
from tests.peers import job
from tests.peers.extraction import JSON
from tests.peers.lies import HonestAnswer, Lie
from tests.peers.server import Reply, SeenRequest, loopback
from tests.peers.validation import CANARY, FakeValidation, ValidationJob, issue, judged, outcome, patient

VICTIM = "b1"
"""The first resource of the request that is answered with a lie: lines 2 and 3 of b.ndjson."""
SENT = 2
ANSWER = "validation-answer"
NOTHING_WRONG = ("nothing wrong with what is wrong", "errors called warnings")


def one(**changes: Any) -> Callable[[HonestAnswer], Any]:
    """The last issue is another one."""
    return lambda asked: asked.answer | {"issue": [*asked.answer["issue"][:-1], asked.answer["issue"][-1] | changes]}


def about(place: str) -> Callable[[HonestAnswer], Any]:
    return one(expression=[place])


LIES: dict[str, Lie] = {
    # What it is
    "HTML": Lie(lambda _: f"<html>{CANARY}</html>", ANSWER),
    "nothing": Lie(lambda _: "", ANSWER),
    "half of the JSON": Lie(lambda asked: asked.text[:-20], ANSWER),
    "two documents": Lie(lambda asked: asked.text * 2, ANSWER),
    "a JSON list": Lie(lambda asked: [asked.answer], ANSWER),
    "null": Lie(lambda _: None, ANSWER),
    "true": Lie(lambda _: True, ANSWER),
    "valid: true": Lie(lambda _: {"valid": True}, ANSWER),
    "no resourceType": Lie(lambda asked: {"issue": asked.answer["issue"]}, ANSWER),
    "a resourceType that is a number": Lie(lambda asked: asked.answer | {"resourceType": 7}, ANSWER),
    "the Bundle as it was sent": Lie(lambda asked: asked.sent, ANSWER),
    "the Patient that was sent": Lie(lambda asked: asked.sent["entry"][0]["resource"], ANSWER),
    "Parameters around it": Lie(
        lambda asked: {"resourceType": "Parameters", "parameter": [{"name": "return", "resource": asked.answer}]},
        ANSWER,
    ),
    "a Bundle of outcomes": Lie(
        lambda asked: {"resourceType": "Bundle", "type": "collection", "entry": [{"resource": asked.answer}]}, ANSWER
    ),
    "text/html by its header": Lie(lambda asked: asked.answer, ANSWER, headers={"Content-Type": "text/html"}),
    "XML by its header": Lie(lambda asked: asked.answer, ANSWER, headers={"Content-Type": "application/fhir+xml"}),
    "an empty Content-Type": Lie(lambda asked: asked.answer, ANSWER, headers={"Content-Type": ""}),
    "no UTF-8": Lie(lambda asked: asked.text.encode().replace(b"about", b"\xff\xfe", 1), ANSWER),
    "nested too deeply": Lie(lambda asked: asked.text[:-1] + ',"x":' + "[" * 9000 + "]" * 9000 + "}", ANSWER),
    # Issues
    "no issue": Lie(lambda _: {"resourceType": "OperationOutcome"}, ANSWER),
    "an empty list of issues": Lie(lambda _: {"resourceType": "OperationOutcome", "issue": []}, ANSWER),
    "issue is null": Lie(lambda asked: asked.answer | {"issue": None}, ANSWER),
    "issue is an object": Lie(lambda asked: asked.answer | {"issue": asked.answer["issue"][0]}, ANSWER),
    "an issue that is null": Lie(lambda asked: asked.answer | {"issue": [*asked.answer["issue"], None]}, ANSWER),
    "an issue without severity": Lie(lambda asked: asked.answer | {"issue": [{"code": "structure"}]}, ANSWER),
    "a severity that FHIR does not know": Lie(one(severity="harmless"), ANSWER),
    "a severity that is a number": Lie(one(severity=0), ANSWER),
    # Other requests
    "an issue about the entry behind the last": Lie(about(f"Bundle.entry[{SENT}].resource"), ANSWER),
    "an issue about entry 999,999,999,999": Lie(about("Bundle.entry[999999999999].resource"), ANSWER),
    "an issue about an entry with a number of 20 digits": Lie(about(f"Bundle.entry[{'9' * 20}].resource"), ANSWER),
    "an issue beyond the Bundle in XPath": Lie(one(location=[f"/f:Bundle/f:entry[{SENT + 1}]/f:resource"]), ANSWER),
    "an issue about entry 0 in XPath, which counts from 1": Lie(one(location=["/f:Bundle/f:entry[0]"]), ANSWER),
    "an issue beyond the Bundle in its location alone": Lie(one(location=["Bundle.entry[7].resource"]), ANSWER),
    "a remark beyond the Bundle": Lie(one(severity="information", expression=["Bundle.entry[7]"]), ANSWER),
    "the result of a larger Bundle": Lie(lambda _: json.loads(outcome(*[issue(entry=n) for n in range(9)])), ANSWER),
    "the answer before": Lie(
        lambda asked: asked.before[-1],
        None,
        "a result names positions in the Bundle and no ids; those of a Bundle of the same size exist in both",
    ),
    "nothing wrong with what is wrong": Lie(
        lambda _: json.loads(outcome(issue("information", "informational"))),
        None,
        "the service decides what is valid; a synthetic resource has shown that it reports errors",
    ),
    "errors called warnings": Lie(
        one(severity="warning"), None, "the service decides what is valid and how severe an issue is"
    ),
    # Keys that stand twice
    "issue twice": Lie(lambda asked: asked.text[:-1] + ',"issue":[{"severity":"information"}]}', ANSWER),
    "resourceType twice": Lie(lambda asked: '{"resourceType":"Bundle",' + asked.text[1:], ANSWER),
    "issue twice, once escaped": Lie(lambda asked: '{"\\u0069ssue":[],' + asked.text[1:], ANSWER),
    "issue twice in a pretty answer": Lie(
        lambda asked: '{\n "issue": [],' + json.dumps(asked.answer, indent=2)[1:], ANSWER
    ),
    "severity twice in an issue": Lie(
        lambda asked: asked.text.replace('{"severity":"error"', '{"severity":"error","severity":"information"', 1),
        ANSWER,
    ),
    # HTTP
    "201": Lie(lambda asked: asked.answer, ANSWER, status=201),
    "202": Lie(lambda asked: asked.answer, ANSWER, status=202),
    "203 of a proxy": Lie(lambda asked: asked.answer, ANSWER, status=203),
    "an empty 204": Lie(lambda _: "", ANSWER, status=204),
    "206": Lie(lambda asked: asked.answer, ANSWER, status=206),
    "a Content-Length that is too long": Lie(lambda asked: asked.answer, "connection-broken", cut=True),
    "a redirect": Lie(
        lambda _: "", "redirect-refused", status=307, headers={"Location": "http://127.0.0.1:1/validateResource"}
    ),
}  # fmt: skip


MADE_UP = {name: replace(lie, reference="wrong-service") for name, lie in LIES.items() if lie.reference == ANSWER}
MADE_UP |= {name: replace(LIES[name], reference="wrong-service", because="") for name in NOTHING_WRONG}
"""Lies about the made-up resource, which goes first."""


@pytest.mark.parametrize("name", MADE_UP)
def test_a_lie_about_the_made_up_resource_is_noticed_before_a_job_exists(name: str) -> None:
    lie = MADE_UP[name]
    honest = json.loads(outcome(issue("information", "informational"), issue(entry=0)))

    def answer(seen: SeenRequest) -> Reply:
        reply = lie.reply(lie.tell(HonestAnswer(json.loads(seen.body), honest, [])))
        return replace(reply, headers={**JSON, **reply.headers})

    with loopback(answer) as server:
        config = job.configuration({"validation": {"url": server.url}}, attempts=1)
        (found,) = job.probed(declared_service(config), config)
    assert (found.reference, found.transient, len(server.seen)) == (lie.reference, False, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_noticed_before_the_next_step_or_listed(name: str, tmp_path: Path) -> None:
    lie = LIES[name]
    job = ValidationJob(tmp_path)
    padding = "y" * 350
    job.write("a.ndjson", *[patient(f"a{n}", x=padding, bad=1) for n in range(4)])
    job.write("b.ndjson", patient("b0", x="y" * 800), *[patient(f"b{n}", x=padding, bad=1) for n in range(1, 7)])
    before: list[dict[str, Any]] = []

    def script(_: int, body: bytes) -> Reply | None:
        answer = json.loads(judged(body))
        if f'"{VICTIM}"'.encode() in body:
            sent = json.loads(body)
            assert len(sent["entry"]) == SENT
            return lie.reply(lie.tell(HonestAnswer(sent, answer, before)))
        before.append(answer)
        return None

    with FakeValidation(script) as service:
        if lie.reference is None:
            job.validate(service.url, chunk_bytes=1200, max_concurrent_requests=1)
            return
        with pytest.raises(SluiceError) as caught:
            job.validate(service.url, chunk_bytes=1200, max_concurrent_requests=1, attempts=1)
    assert caught.value.reference == lie.reference
    assert (caught.value.context or "").startswith("b.ndjson:2-3")
    assert CANARY not in caught.value.render()
    assert sorted(job.reports()) == ["a.validation.ndjson"]  # of the file with the lie there is no report
    if lie.reference == ANSWER and lie.status != 204 and name != "nothing":
        (kept,) = job.failed()
        assert kept.stat().st_mode & 0o777 == 0o600
