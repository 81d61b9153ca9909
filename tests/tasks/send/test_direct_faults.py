"""Behavior of a load when the server or the network misbehaves (document 3 §1 and §7).

What every step does then is in tests/tasks/test_faults.py.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.shared.errors import ServiceBusyError, ServiceError, SluiceError, Stopped
from tests.peers.fhir import DirectLoadJob, FhirReply, Script, observation, outcome, patient_line, response, serving


@pytest.fixture
def job(tmp_path: Path) -> DirectLoadJob:
    job = DirectLoadJob(tmp_path)
    job.write("a.ndjson", *[observation(f"o{n}") for n in range(20)])
    return job


def once(reply: FhirReply, at: int = 0) -> Script:
    return lambda number, _: reply if number == at else None


@pytest.mark.parametrize(
    "conflict",
    [
        outcome("processing", "HAPI-0823: The operation has failed with a version constraint failure."),
        outcome("conflict"),
        outcome("lock-error"),
    ],
)
@pytest.mark.parametrize("status", [409, 412])
def test_version_and_lock_conflicts_are_transient(job: DirectLoadJob, status: int, conflict: bytes) -> None:
    def script(number: int, _: dict[str, Any]) -> FhirReply | None:
        return FhirReply(status, conflict, headers={"Retry-After": "3"}, apply=False) if number == 0 else None

    with serving(script) as server:
        assert job.send(server.url).resources_out == 20
    assert job.slept == [3.0]
    assert server.bundles[0] == server.bundles[1]


def test_a_conflict_that_stays_fails_the_step_transiently(job: DirectLoadJob) -> None:
    reply = FhirReply(409, outcome("conflict", "canary"), apply=False)
    with serving(lambda *_: reply) as server, pytest.raises(ServiceBusyError) as caught:
        job.send(server.url)
    assert caught.value.reference == "send-conflict"
    assert caught.value.context == "a.ndjson:1 Observation"
    assert len(server.bundles) == 3
    assert "canary" not in caught.value.render()


def test_conflicts_and_busy_answers_count_together_as_attempts(job: DirectLoadJob) -> None:
    busy = FhirReply(503, headers={"Retry-After": "3"}, apply=False)
    conflict = FhirReply(409, outcome("conflict"), headers={"Retry-After": "5"}, apply=False)
    with serving(lambda number, _: (busy, conflict)[number % 2]) as server, pytest.raises(ServiceBusyError) as caught:
        job.send(server.url, attempts=4)
    assert caught.value.reference == "send-conflict"
    assert len(server.bundles) == 4
    assert len({str(one) for one in server.bundles}) == 1
    assert job.slept == [3.0, 5.0, 3.0]
    assert job.context.meter.retries == 3


def test_what_was_sent_before_a_fatal_answer_is_not_sent_again(job: DirectLoadJob) -> None:
    with serving(lambda number, _: FhirReply(401, apply=False) if number == 2 else None) as server:
        with pytest.raises(ServiceError):
            job.send(server.url, batch_size=5)
        result = job.send(server.url, batch_size=4)
    assert result.resources_out == 20
    assert server.history == [f"Observation/o{n}" for n in range(20)]


@pytest.mark.parametrize("applied", [False, True])
def test_a_reset_before_or_after_the_server_stored_it_is_repeated(job: DirectLoadJob, applied: bool) -> None:
    with serving(once(FhirReply(reset=True, apply=applied))) as server:
        assert job.send(server.url).resources_out == 20
    assert len(server.stored) == 20
    assert server.bundles[0] == server.bundles[1]


@pytest.mark.parametrize(
    "body",
    [
        b"<html><body>Please log in, canary</body></html>",
        b'{"resourceType":"Bundle","type":"transaction-response","entry":[{"response":{"status":"20',
        b"",
        response([{"response": {"status": "200"}}] * 19),
        response([{"response": {"status": "200"}}] * 21),
        b'{"resourceType":"Bundle","type":"searchset","entry":[]}',
    ],
)
def test_a_200_without_a_transaction_response_is_an_error_and_counts_nothing_sent(
    job: DirectLoadJob, body: bytes
) -> None:
    with serving(lambda *_: FhirReply(200, body)) as server:
        with pytest.raises(ServiceError) as caught:
            job.send(server.url)
        assert caught.value.reference == "send-answer"
        assert "canary" not in caught.value.render()
        assert len(server.bundles) == 1
        server.script = None
        assert job.send(server.url).resources_out == 20
    assert len(server.bundles) == 2


@pytest.mark.parametrize("status", [408, 503])
def test_a_failure_in_one_thread_keeps_what_the_others_sent(tmp_path: Path, status: int) -> None:
    job = DirectLoadJob(tmp_path)
    job.write("a.ndjson", *[patient_line(n, 5) for n in range(12)])

    def script(_: int, content: dict[str, Any]) -> FhirReply | None:
        if any(entry["request"]["url"] == "Patient/p5" for entry in content["entry"]):
            return FhirReply(status, apply=False)
        return None

    with serving(script) as server:
        with pytest.raises(ServiceBusyError):
            job.send(server.url, batch_size=5, max_concurrent_requests=3)
        server.script = None
        job.send(server.url, batch_size=5, max_concurrent_requests=3)
    assert len(server.stored) == 60
    assert len(server.history) == 60


@pytest.mark.slow
def test_a_stop_does_not_wait_for_a_server_that_never_answers(job: DirectLoadJob) -> None:
    def script(number: int, _: dict[str, Any]) -> FhirReply | None:
        job.context.stop.request("SIGINT")
        return FhirReply(stall=True, apply=False)

    with serving(script) as server:
        started = time.monotonic()
        with pytest.raises(Stopped):
            job.send(server.url)
        assert time.monotonic() - started < 10  # what 4-product.md §4 allows


@pytest.mark.slow
def test_a_refusal_does_not_wait_for_the_requests_that_are_never_answered(tmp_path: Path) -> None:
    job = DirectLoadJob(tmp_path)
    patients = [{"resourceType": "Patient", "id": f"p{n}"} for n in range(2)]
    bundles = [{"resourceType": "Bundle", "type": "collection", "entry": [{"resource": one}]} for one in patients]
    job.write("a.ndjson", *bundles)
    asked = threading.Event()

    def script(number: int, _: dict[str, Any]) -> FhirReply | None:
        if number == 0:
            asked.set()
            return FhirReply(stall=True, apply=False)
        assert asked.wait(60)
        return FhirReply(401, apply=False)

    with serving(script) as server:
        started = time.monotonic()
        with pytest.raises(ServiceError) as caught:
            job.send(server.url, batch_size=1, max_concurrent_requests=2)
        assert time.monotonic() - started < 10
    assert caught.value.status == 401


def test_a_broken_compressed_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    import zstandard

    job = DirectLoadJob(tmp_path)
    data = zstandard.compress(b'{"resourceType":"Observation","id":"o"}\n' * 500)
    (job.input / "a.ndjson.zst").write_bytes(data[:-10])
    with serving() as server, pytest.raises(SluiceError) as caught:
        job.send(server.url)
    assert caught.value.reference.startswith("zst-")


def test_a_job_directory_that_cannot_be_written_is_a_storage_error(job: DirectLoadJob) -> None:
    (job.directory / "send").write_text("in the way")
    with serving() as server, pytest.raises(SluiceError) as caught:
        job.send(server.url)
    assert not caught.value.transient
    assert server.bundles == []
