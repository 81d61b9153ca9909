"""Faults of the service are failures of the step, not findings (document 3 §1 and §6).

What every step does then is in tests/tasks/test_faults.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.shared.errors import NetworkError, ServiceError, SluiceError
from tasks.validation.validation import ValidationBounds
from tests.conftest import wait_until
from tests.peers.scenes import StepScene, playing
from tests.peers.server import Reply
from tests.peers.validation import bundle, issue, outcome, patient

NO_ANSWERS = {
    "truncated JSON": outcome(issue(entry=0))[:-4],
    "HTML": b"<!DOCTYPE html><html>Canary-Erika-Mustermann</html>",
    "nothing": b"",
    "another resource": b'{"resourceType":"Bundle","id":"Canary-Erika-Mustermann"}',
    "no resource": b'{"valid":true}',
    "no severity": b'{"resourceType":"OperationOutcome","issue":[{"code":"Canary-Erika-Mustermann"}]}',
}


@pytest.fixture
def scene(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StepScene]:
    with playing("validation", tmp_path, caplog) as scene:
        yield scene


def times(count: int) -> Callable[[object], bool]:
    """True so often."""
    left = iter([True] * count)
    return lambda _: next(left, False)


@pytest.mark.parametrize("what", NO_ANSWERS)
def test_an_answer_that_is_no_operation_outcome_is_a_failure_and_no_finding(scene: StepScene, what: str) -> None:
    scene.goes_wrong(Reply(200, NO_ANSWERS[what]))
    error = scene.fails(ServiceError)
    assert (error.reference, error.exit_code) == ("validation-answer", 1)
    assert error.context == "b.ndjson:2 Patient"
    assert len(scene.service.bodies) == 4
    scene.then_succeeds()


@pytest.mark.parametrize("status", [201, 202, 204])
def test_another_success_than_200_is_no_result(scene: StepScene, status: int) -> None:
    body = b"" if status == 204 else outcome()
    scene.service.script = lambda *_: Reply(status, body)
    assert scene.fails(ServiceError).reference == "validation-answer"


def test_a_reset_before_the_body_was_read_is_retried_as_configured(scene: StepScene) -> None:
    scene.job.write("c.ndjson", patient("large", x="y" * 3_000_000))
    scene.service.refuses = times(2)
    assert scene.run().details["findings"] == 6
    assert scene.job.slept == [0.1, 0.2]
    scene.job.write("c.ndjson", patient("larger", x="y" * 3_000_000))
    scene.service.refuses = times(3)
    error = scene.fails(NetworkError)
    assert error.exit_code == 3
    assert (error.context or "").startswith("c.ndjson:1 Patient")


def test_the_timeout_covers_a_queue_of_all_requests_under_way(scene: StepScene) -> None:
    scene.service.script = lambda *_: Reply(seconds=0.8)
    bounds = ValidationBounds(timeout=0.6, mebibyte=1000)
    assert scene.job.validate(scene.service.url, bounds=bounds, max_concurrent_requests=3).details["findings"] == 6


def test_413_for_a_single_resource_is_terminal_and_names_file_line_and_type(scene: StepScene) -> None:
    scene.job.write("c.ndjson", bundle(patient("c0"), patient("c1", x="y" * 2000)))
    scene.service.limit = 1500
    error = scene.fails(ServiceError)
    assert (error.reference, error.status) == ("validation-too-large", 413)
    assert error.context == "c.ndjson:1 entry 1 Patient"


def test_of_several_failures_the_first_in_order_is_reported_after_earlier_results(scene: StepScene) -> None:
    service = scene.service

    def script(_: int, body: bytes) -> Reply | None:
        if b'"b1"' in body:
            return Reply(403, seconds=0.2)
        if b'"b3"' not in body:
            return None
        wait_until(lambda: len(service.bodies) == 6)  # all are under way, none is kept from beginning
        return Reply(404)

    service.script = script
    assert scene.fails(ServiceError, max_concurrent_requests=8).status == 403
    assert sorted(scene.job.reports()) == ["a.validation.ndjson"]
    service.script = None
    service.accepted.clear()
    scene.run()
    assert sorted(service.validated) == ["Patient/b1", "Patient/b2", "Patient/b3"]


def test_a_broken_input_file_is_named_and_files_before_it_keep_their_reports(scene: StepScene) -> None:
    scene.job.put("c.ndjson.zst", b"\x28\xb5\x2f\xfd\x04")
    error = scene.fails(SluiceError)
    assert error.reference == "zst-truncated"
    assert "c.ndjson.zst" in (error.context or "")
    assert sorted(scene.job.reports()) == ["a.validation.ndjson", "b.validation.ndjson"]
