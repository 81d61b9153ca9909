"""Behavior of the step when the service or the network misbehaves (document 3 §1 and §5).

What every step does then is in tests/tasks/test_faults.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.flattening.flattening import FlatteningBounds
from tasks.shared.errors import NetworkError, ServiceError, SluiceError, StalledError
from tests.conftest import wait_until
from tests.peers.flattening import FlatteningRequest
from tests.peers.scenes import OUTCOME, StepScene, playing
from tests.peers.server import Reply
from tests.peers.validation import CANARY


@pytest.fixture
def scene(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StepScene]:
    with playing("flattening", tmp_path / "job", caplog) as scene:
        yield scene


def fails(scene: StepScene, kind: type[SluiceError], **options: Any) -> SluiceError:
    error = scene.fails(kind, **options)
    assert not any(name.endswith(".csv") for name in scene.job.tables())
    return error


def test_of_a_batch_that_is_too_large_the_setting_is_named(scene: StepScene) -> None:
    scene.goes_wrong(Reply(413, OUTCOME))
    assert "batch_size_mb" in (fails(scene, ServiceError).hint or "")


def test_a_500_is_retried_once_and_then_terminal(scene: StepScene) -> None:
    scene.goes_wrong(Reply(500, OUTCOME))
    error = fails(scene, ServiceError, attempts=5)
    assert (error.exit_code, error.status, error.reference) == (1, 500, "flattening-failed")
    assert len(scene.tries()) == 2
    assert "batch_size_mb" in (error.hint or "")
    assert "group Labor, batch 3" in (error.context or "")
    scene.check_kept_answer(error, OUTCOME)
    scene.then_succeeds()


def test_a_503_between_two_500s_does_not_give_a_third_chance(scene: StepScene) -> None:
    statuses = [500, 503, 500]
    mark: list[bytes] = []

    def script(_: int, request: FlatteningRequest) -> Reply | None:
        if request.view.get("resource") == "Patient" and statuses and request.body in (mark or [request.body]):
            mark.append(request.body)
            return Reply(statuses.pop(0))
        return None

    scene.service.script = script
    error = fails(scene, ServiceError, attempts=5)
    assert (error.reference, statuses) == ("flattening-failed", [])


def test_a_reset_before_the_request_was_read_is_repeated_and_then_transient(scene: StepScene) -> None:
    scene.service.refuses = lambda _: len(scene.service.requests) >= 4
    error = fails(scene, NetworkError)
    assert (error.exit_code, error.reference) == (3, "connection-broken")
    scene.service.refuses = lambda _: False
    scene.then_succeeds()


def test_what_came_before_an_answer_broke_off_is_not_in_the_table(scene: StepScene) -> None:
    scene.goes_wrong(Reply(body=b'{"id":"%b"}\n' % CANARY.encode() * 50, cut=700), times=1)
    result = scene.run()
    assert result.details["rows"] == 8 + 8 + 48
    assert all(CANARY.encode() not in table for table in scene.job.tables().values())


@pytest.mark.slow
@pytest.mark.parametrize(("begun", "drips"), [(b"", 0), (b'{"id":"1"}\n', 0), (b'{"id":"1"}\n', 60)])
def test_the_timeout_of_a_request_is_not_retried_also_while_rows_still_come(
    scene: StepScene, begun: bytes, drips: int
) -> None:
    scene.goes_wrong(Reply(stall=True, chunks=[begun] * (1 + drips) if begun else []))
    error = fails(scene, StalledError, timeout="1500ms")
    assert (error.exit_code, error.reference) == (1, "flattening-timeout")
    assert error.hint == "lower services.flattening.batch_size_mb, or raise services.flattening.timeout"
    assert "1.5 s" in error.message
    assert len(scene.tries()) == 1
    scene.then_succeeds()


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_service_that_stops_answering_is_given_up_after_three_looks(scene: StepScene) -> None:
    def script(_: int, request: FlatteningRequest) -> Reply | None:
        if not scene.kind.goes_wrong(request):
            return None
        scene.service.metadata = lambda: Reply(503, OUTCOME)
        return Reply(stall=True)

    scene.service.script = script
    error = fails(scene, NetworkError, attempts=1, bounds=FlatteningBounds(mebibyte=900, interval=0.02))
    assert (error.exit_code, error.reference) == (3, "flattening-silent")
    assert "stopped answering" in error.message
    assert scene.service.looks >= 3
    scene.then_succeeds()


@pytest.mark.parametrize("status", [200, 404, 401, 503])
def test_a_long_request_is_left_alone_while_the_service_gives_signs_of_life(scene: StepScene, status: int) -> None:
    service = scene.service
    answers = itertools.cycle([status, status, 200])  # never three 503 in a row
    service.metadata = lambda: Reply(next(answers))

    def script(*_: object) -> None:
        enough = service.looks + 4
        wait_until(lambda: service.looks >= enough)

    service.script = script
    result = scene.run(bounds=FlatteningBounds(interval=0.02))
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
def test_a_row_that_is_no_json_object_is_an_error_with_its_number_and_group(
    scene: StepScene, body: bytes, number: int
) -> None:
    scene.goes_wrong(Reply(body=body.replace(b"%b", CANARY.encode())))
    error = fails(scene, ServiceError)
    assert (error.exit_code, error.reference) == (1, "flattening-row")
    assert f"row {number} of" in error.message
    assert "group Labor, batch 3" in (error.context or "")
    assert ("is services.flattening.service_url" in (error.hint or "")) == (number == 1)
    assert len(scene.tries()) == 1
    (kept,) = scene.kept_answers()
    assert kept.stat().st_mode & 0o777 == 0o600
    scene.then_succeeds()


def test_columns_in_another_order_change_nothing(scene: StepScene, tmp_path: Path) -> None:
    scene.run()
    service = scene.service
    plain = service.rows
    service.rows = lambda view, resource: [
        b"{" + b",".join(reversed(row[1:-1].split(b","))) + b"}" for row in plain(view, resource)
    ]
    other = StepScene(scene.kind, tmp_path / "other", service)
    other.run()
    assert other.job.tables() == scene.job.tables()
