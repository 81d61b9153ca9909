"""What the step does when the service or the network misbehaves (document 3 §1 and §5).

What every step does then is in tests/tasks/test_faults.py.
"""

from __future__ import annotations

import itertools
import json
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.flattening.flattening import Bounds
from tasks.shared.errors import NetworkError, ServiceError, SluiceError, StalledError
from tests.conftest import wait_until
from tests.peers.flattening import FakeService, Job, Request, Script, patient_line, serving
from tests.peers.server import Reply

CANARY = "CANARY-Mustermann"
OUTCOME = json.dumps(
    {
        "resourceType": "OperationOutcome",
        "issue": [{"severity": "error", "code": "exception", "diagnostics": f"at Line 7: {CANARY} born 1950"}],
    }
).encode()
SMALL: dict[str, Any] = {"bounds": Bounds(mebibyte=900), "batch_size_mb": 3}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = Job(tmp_path)
    job.write("a.ndjson", *[patient_line(n, 6) for n in range(4)])
    job.write("b.ndjson", *[patient_line(n, 6, size=3) for n in range(4, 8)])
    return job


@pytest.fixture
def service() -> Iterator[FakeService]:
    with serving() as service:
        yield service


def third(reply: Reply, times: int = 1_000_000) -> Script:
    """``reply`` to the third batch of the group of observations, so many times."""
    bodies: list[bytes] = []
    left = [times]

    def script(_: int, request: Request) -> Reply | None:
        if request.view.get("resource") != "Observation":
            return None
        if request.body not in bodies:
            bodies.append(request.body)
        if len(bodies) == 3 and left[0]:
            left[0] -= 1
            return reply
        return None

    return script


def attempts(service: FakeService) -> list[bytes]:
    """The bodies of all attempts at the third batch of observations."""
    bodies = [request.body for request in service.requests if request.type == "Observation"]
    wanted = list(dict.fromkeys(bodies))[2]
    return [body for body in bodies if body == wanted]


def fails(
    job: Job, service: FakeService, kind: type[SluiceError], caplog: pytest.LogCaptureFixture, **settings: Any
) -> SluiceError:
    with caplog.at_level(logging.DEBUG), pytest.raises(kind) as caught:
        job.run(service.url, **SMALL | settings)
    error = caught.value
    for text in (error.render(), repr(error), caplog.text, "".join(traceback.format_exception(error))):
        assert CANARY not in text
    for path in job.directory.rglob("*"):
        if path.is_file() and path.parent.name not in {"import", "failed"}:
            assert CANARY.encode() not in path.read_bytes()
    assert not any(name.endswith(".csv") for name in job.tables())
    return error


def then_succeeds(job: Job, service: FakeService, tmp_path: Path) -> None:
    """Nothing was lost: the next run without the fault gives what an undisturbed one gives, and asks for less."""
    service.script = None
    service.requests.clear()
    job.run(service.url, **SMALL)
    asked = len(service.requests)
    other = Job(tmp_path / "undisturbed")
    for path in job.input.iterdir():
        (other.input / path.name).write_bytes(path.read_bytes())
    service.requests.clear()
    other.run(service.url, **SMALL)
    assert job.tables() == other.tables()
    assert asked < len(service.requests)
    assert job.failed() == []


def test_of_a_batch_that_is_too_large_the_setting_is_named(
    job: Job, service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    service.script = third(Reply(413, OUTCOME))
    assert "batch_size_mb" in (fails(job, service, ServiceError, caplog).hint or "")


def test_a_500_is_retried_once_and_then_terminal(
    job: Job, service: FakeService, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    service.script = third(Reply(500, OUTCOME))
    error = fails(job, service, ServiceError, caplog, attempts=5)
    assert (error.exit_code, error.status, error.reference) == (1, 500, "flattening-failed")
    assert len(attempts(service)) == 2
    assert "batch_size_mb" in (error.hint or "")
    assert "group Labor, batch 3" in (error.context or "")
    (kept,) = job.failed()
    assert kept.read_bytes() == OUTCOME
    then_succeeds(job, service, tmp_path)


def test_a_503_between_two_500s_does_not_give_a_third_chance(
    job: Job, service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    statuses = [500, 503, 500]
    mark: list[bytes] = []

    def script(_: int, request: Request) -> Reply | None:
        if request.view.get("resource") == "Patient" and statuses and request.body in (mark or [request.body]):
            mark.append(request.body)
            return Reply(statuses.pop(0))
        return None

    service.script = script
    error = fails(job, service, ServiceError, caplog, attempts=5)
    assert (error.reference, statuses) == ("flattening-failed", [])


def test_a_reset_before_the_request_was_read_is_repeated_and_then_transient(
    job: Job, service: FakeService, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    service.refuses = lambda _: len(service.requests) >= 4
    error = fails(job, service, NetworkError, caplog)
    assert (error.exit_code, error.reference) == (3, "connection-broken")
    service.refuses = lambda _: False
    then_succeeds(job, service, tmp_path)


def test_what_came_before_an_answer_broke_off_is_not_in_the_table(job: Job, service: FakeService) -> None:
    service.script = third(Reply(body=b'{"id":"%b"}\n' % CANARY.encode() * 50, cut=700), times=1)
    result = job.run(service.url, **SMALL)
    assert result.details["rows"] == 8 + 8 + 48
    assert all(CANARY.encode() not in table for table in job.tables().values())


@pytest.mark.slow
@pytest.mark.parametrize(("begun", "drips"), [(b"", 0), (b'{"id":"1"}\n', 0), (b'{"id":"1"}\n', 60)])
def test_the_timeout_of_a_request_is_not_retried_also_while_rows_still_come(
    job: Job, service: FakeService, begun: bytes, drips: int, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    service.script = third(Reply(stall=True, chunks=[begun] * (1 + drips) if begun else []))
    error = fails(job, service, StalledError, caplog, timeout="1500ms")
    assert (error.exit_code, error.reference) == (1, "flattening-timeout")
    assert error.hint == "lower services.flattening.batch_size_mb, or raise services.flattening.timeout"
    assert "1.5 s" in error.message
    assert len(attempts(service)) == 1
    then_succeeds(job, service, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_service_that_stops_answering_is_given_up_after_three_looks(
    job: Job, service: FakeService, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    stalls = third(Reply(stall=True))

    def script(number: int, request: Request) -> Reply | None:
        reply = stalls(number, request)
        if reply is not None:
            service.metadata = lambda: Reply(503, OUTCOME)
        return reply

    service.script = script
    error = fails(job, service, NetworkError, caplog, attempts=1, bounds=Bounds(mebibyte=900, interval=0.02))
    assert (error.exit_code, error.reference) == (3, "flattening-silent")
    assert "stopped answering" in error.message
    assert service.looks >= 3
    then_succeeds(job, service, tmp_path)


@pytest.mark.parametrize("status", [200, 404, 401, 503])
def test_a_long_request_is_left_alone_while_the_service_gives_signs_of_life(
    job: Job, service: FakeService, status: int
) -> None:
    answers = itertools.cycle([status, status, 200])  # never three 503 in a row
    service.metadata = lambda: Reply(next(answers))

    def script(*_: object) -> None:
        enough = service.looks + 4
        wait_until(lambda: service.looks >= enough)

    service.script = script
    result = job.run(service.url, bounds=Bounds(interval=0.02))
    assert result.details["rows"] == 8 + 8 + 48


@pytest.mark.parametrize(
    ("body", "number"),
    [
        (b"<html><body>Anmelden: %b</body></html>", 1),
        (OUTCOME.replace(b"}", b"}\n"), 1),
        (b"[]", 1),
        (b'{"id":"1"}\n{"id":"2"}\n{"id":"%b"', 3),
        (b'{"id":"1"}\n"%b"\n{"id":"2"}\n', 2),
        (b'{"id":"1"}\n{"id":"\xff"}\n', 2),
    ],
    ids=["html", "pretty", "array", "truncated", "text", "latin-1"],
)
def test_a_row_that_is_no_json_object_is_an_error_that_names_its_number_and_the_group(
    job: Job, service: FakeService, body: bytes, number: int, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    service.script = third(Reply(body=body.replace(b"%b", CANARY.encode())))
    error = fails(job, service, ServiceError, caplog)
    assert (error.exit_code, error.reference) == (1, "flattening-row")
    assert f"row {number} of" in error.message
    assert "group Labor, batch 3" in (error.context or "")
    assert ("is services.flattening.service_url" in (error.hint or "")) == (number == 1)
    assert len(attempts(service)) == 1
    (kept,) = job.failed()
    assert kept.stat().st_mode & 0o777 == 0o600
    then_succeeds(job, service, tmp_path)


def test_columns_in_another_order_change_nothing(job: Job, service: FakeService, tmp_path: Path) -> None:
    job.run(service.url, **SMALL)
    before = job.tables()
    plain = service.rows
    service.rows = lambda view, resource: [
        b"{" + b",".join(reversed(row[1:-1].split(b","))) + b"}" for row in plain(view, resource)
    ]
    other = Job(tmp_path / "other")
    for path in job.input.iterdir():
        (other.input / path.name).write_bytes(path.read_bytes())
    other.run(service.url, **SMALL)
    assert other.tables() == before
