"""What goes wrong at the service is a failure of the step, not a finding (document 3 §1 and §6).

What every step does then is in tests/tasks/test_faults.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.shared.errors import NetworkError, ServiceError, SluiceError
from tasks.validation.validation import Bounds
from tests.conftest import wait_until
from tests.peers.server import Reply
from tests.peers.validation import CANARY, Job, Script, bundle, issue, outcome, patient, serving

NO_ANSWERS = {
    "truncated JSON": outcome(issue(entry=0))[:-4],
    "HTML": b"<!DOCTYPE html><html>Canary-Erika-Mustermann</html>",
    "nothing": b"",
    "another resource": b'{"resourceType":"Bundle","id":"Canary-Erika-Mustermann"}',
    "no resource": b'{"valid":true}',
    "no severity": b'{"resourceType":"OperationOutcome","issue":[{"code":"Canary-Erika-Mustermann"}]}',
}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = Job(tmp_path)
    job.write("a.ndjson", *[patient(f"a{n}", bad=1, x="y" * 600) for n in range(2)])
    job.write("b.ndjson", *[patient(f"b{n}", bad=1, x="y" * 600) for n in range(4)])
    return job


def times(count: int) -> Callable[[object], bool]:
    """True so often."""
    left = iter([True] * count)
    return lambda _: next(left, False)


def about(identifier: str, reply: Reply) -> Script:
    """That reply to whatever holds this resource, always."""
    return lambda _, body: reply if f'"{identifier}"'.encode() in body else None


def fails(job: Job, url: str, kind: type[SluiceError], **options: object) -> SluiceError:
    with pytest.raises(kind) as caught:
        job.validate(url, chunk_bytes=1000, **options)  # type: ignore[arg-type]
    assert CANARY not in caught.value.render()
    assert caught.value.__cause__ is None
    return caught.value


def everything_again(job: Job) -> None:
    """Continue with a service in good health: what was not asked about is, and nothing is lost."""
    with serving() as server:
        result = job.validate(server.url, chunk_bytes=1000)
    assert result.details["findings"] == 6
    assert sorted(job.reports()) == ["a.validation.ndjson", "b.validation.ndjson"]
    assert [row["resource"] for row in job.summary() if row["severity"] == "error"] == [
        *(f"Patient/a{n}" for n in range(2)),
        *(f"Patient/b{n}" for n in range(4)),
    ]
    assert not job.failed()


@pytest.mark.parametrize("what", NO_ANSWERS)
def test_an_answer_that_is_no_operation_outcome_is_a_failure_and_no_finding(
    job: Job, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(about("b1", Reply(200, NO_ANSWERS[what]))) as server:
        error = fails(job, server.url, ServiceError, max_concurrent_requests=1)
    assert (error.reference, error.exit_code) == ("validation-answer", 1)
    assert error.context == "b.ndjson:2 Patient"
    assert len(server.bodies) == 4
    assert CANARY not in caplog.text
    everything_again(job)


@pytest.mark.parametrize("status", [201, 202, 204])
def test_another_success_than_200_is_no_result(job: Job, status: int) -> None:
    body = b"" if status == 204 else outcome()
    with serving(lambda *_: Reply(status, body)) as server:
        assert fails(job, server.url, ServiceError).reference == "validation-answer"


def test_a_reset_before_the_body_was_read_is_repeated_as_often_as_the_retry_block_says(job: Job) -> None:
    job.write("c.ndjson", patient("large", x="y" * 3_000_000))
    with serving() as server:
        server.refuses = times(2)
        assert job.validate(server.url, max_concurrent_requests=1).details["findings"] == 6
        assert job.slept == [0.1, 0.2]
        job.write("c.ndjson", patient("larger", x="y" * 3_000_000))
        server.refuses = times(3)
        error = fails(job, server.url, NetworkError)
    assert error.exit_code == 3
    assert (error.context or "").startswith("c.ndjson:1 Patient")


def test_the_timeout_covers_a_queue_of_all_requests_under_way(job: Job) -> None:
    with serving(lambda *_: Reply(seconds=0.8)) as server:
        bounds = Bounds(timeout=0.6, mebibyte=1000)
        assert job.validate(server.url, bounds=bounds, max_concurrent_requests=3).details["findings"] == 6


def test_413_for_a_single_resource_is_terminal_and_names_file_line_and_type(job: Job) -> None:
    job.write("c.ndjson", bundle(patient("c0"), patient("c1", x="y" * 2000)))
    with serving(limit=1500) as server:
        error = fails(job, server.url, ServiceError)
    assert (error.reference, error.status) == ("validation-too-large", 413)
    assert error.context == "c.ndjson:1 entry 1 Patient"


def test_of_several_failures_the_first_in_order_is_told_and_what_came_before_it_is_kept(job: Job) -> None:
    def script(_: int, body: bytes) -> Reply | None:
        if b'"b1"' in body:
            return Reply(403, seconds=0.2)
        if b'"b3"' not in body:
            return None
        wait_until(lambda: len(server.bodies) == 6)  # all are under way, none is kept from beginning
        return Reply(404)

    with serving(script) as server:
        error = fails(job, server.url, ServiceError, max_concurrent_requests=8)
    assert error.status == 403
    assert sorted(job.reports()) == ["a.validation.ndjson"]
    with serving() as server:
        job.validate(server.url, chunk_bytes=1000)
    assert sorted(server.validated) == ["Patient/b1", "Patient/b2", "Patient/b3"]


def test_a_broken_input_file_is_named_and_files_before_it_keep_their_reports(job: Job) -> None:
    (job.input / "c.ndjson.zst").write_bytes(b"\x28\xb5\x2f\xfd\x04")
    with serving() as server:
        error = fails(job, server.url, SluiceError)
    assert error.reference == "zst-truncated"
    assert "c.ndjson.zst" in (error.context or "")
    assert sorted(job.reports()) == ["a.validation.ndjson", "b.validation.ndjson"]
