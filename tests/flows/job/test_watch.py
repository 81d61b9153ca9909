"""Progress as a person reads it, and a cancel or suspend in the UI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flows.job.record import RecordWriter
from flows.job.watch import CANCEL, SUSPEND, Watch, describe, stop_asked
from tasks.shared.meter import Held, Meter, Snapshot
from tasks.shared.stop import Stop
from tests.conftest import wait_until
from tests.peers.prefect import FakePrefect, prefect_in_memory

JOB = "0b2c4a5e-1111-4222-8333-444455556666"


@pytest.fixture
def prefect() -> Iterator[FakePrefect]:
    with prefect_in_memory() as known:
        yield known


def test_the_progress_of_each_step_is_shown_recorded_and_one_artifact(
    prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.job.watch.SHOW_EVERY", 0.01)
    monkeypatch.setattr("flows.job.watch.CALL_EVERY", 0.02)
    of_an_earlier_process = {"id": "left", "type": "progress", "description": "Step 1, local_import: 1 file"}
    prefect.artifacts["left"] = of_an_earlier_process
    shown: list[str] = []
    written: list[Any] = []
    writer = RecordWriter(prefect.api, JOB)
    monkeypatch.setattr(writer, "write", lambda changes, by: written.append(changes["progress"]))
    watch = Watch(writer, Stop(), lambda name, _: shown.append(name))
    meter = Meter()
    meter.expect(files=4, bytes=4)
    meter.add(files=4, bytes=4)
    with watch.running():
        for position, name in ((1, "local_import"), (2, "send")):
            with watch.step(position, name, meter):
                before = len(written)
                wait_until(lambda before=before: len(written) > before + 1)  # type: ignore[misc]
        before = len(written)
    assert len(written) == before, "nothing is recorded once the step has ended"
    assert set(shown) == {"local_import", "send"}
    (artifact,) = prefect.artifacts.values()
    assert (artifact["type"], artifact["data"]) == ("progress", 100)
    assert artifact["description"] == "Step 2, send: ended"


@pytest.mark.parametrize(("kind", "reason"), [("CANCELLING", CANCEL), ("PAUSED", SUSPEND)])
def test_a_cancel_or_suspend_in_the_ui_stops_the_run_even_without_a_terminal(
    prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch, kind: str, reason: str
) -> None:
    monkeypatch.setattr("flows.job.watch.SHOW_EVERY", 0.01)
    monkeypatch.setattr("flows.job.watch.CALL_EVERY", 0.02)
    stop = Stop()

    def gone(*_: object) -> None:
        raise OSError(5, "the terminal is gone")

    watch = Watch(RecordWriter(prefect.api, JOB), stop, gone)
    with watch.running(), watch.step(1, "send", Meter()):
        assert not stop.requested
        prefect.run = {"state_type": kind}
        wait_until(lambda: stop.requested)
    assert stop.reason == reason


@pytest.mark.parametrize(
    ("run", "asked"),
    [({"state_type": "RUNNING"}, None), ({"state_type": "CANCELLING"}, CANCEL), ({"state_type": "CANCELLED"}, CANCEL),
     (None, CANCEL), ({"state_type": "PAUSED", "state_name": "Suspended"}, SUSPEND)],
)  # fmt: skip
def test_a_cancel_or_suspend_in_the_ui_or_a_run_that_was_removed_stops_the_job(prefect, run, asked):
    prefect.run = run
    assert stop_asked(prefect.api, JOB) == asked


def test_how_long_it_still_takes_is_not_known_while_nothing_moves():
    progress = Meter(clock=iter(range(100)).__next__)
    progress.set_status("batch 3 of 7", fraction=0.4)
    progress.set_status("batch 4 of 7", fraction=0.5)
    assert progress.snapshot().eta_seconds is not None
    progress.set_status("PAUSED", fraction=0.5, stands=True)
    assert progress.snapshot().eta_seconds is None
    assert describe(progress.snapshot()) == "PAUSED"
    progress.set_status("batch 5 of 7", fraction=0.6)
    assert progress.snapshot().eta_seconds is not None


def test_a_rate_of_zero_for_ten_seconds_is_shown_without_a_time_left():
    now = [0.0]
    progress = Meter(clock=lambda: now[0])
    progress.expect(files=4, bytes=1000)
    now[0] = 5.0
    progress.add(files=1, bytes=250)
    assert describe(progress.snapshot()) == "1/4 files, 250 B at 50 B/s, 15 s left"
    now[0] = 15.0
    assert describe(progress.snapshot()) == "1/4 files, 250 B, 0 B/s for 10 s"


def test_when_all_is_read_it_is_not_known_how_long_the_last_answers_take():
    now = [0.0]
    progress = Meter(clock=lambda: now[0])
    progress.expect(files=1, bytes=100)
    now[0] = 5.0
    progress.add(bytes=100)
    progress.retry(Held("send", "503", 4.0, 2, 5))
    said = "send: 503, next try in 4 s, attempt 2 of 5, 0/1 file, 100 B at 20 B/s"
    assert describe(progress.snapshot()) == said


def test_a_retried_request_is_on_the_line_of_its_step_until_the_next_progress():
    now = [0.0]
    progress = Meter(clock=lambda: now[0])
    progress.retry(Held("send", "503", 4.0, 2, 5))
    now[0] = 0.4
    assert describe(progress.snapshot()) == "send: 503, next try in 4 s, attempt 2 of 5"
    now[0] = 4.5
    assert describe(progress.snapshot()).startswith("send: 503, trying again, attempt 2 of 5")
    progress.add(resources=1)
    assert describe(progress.snapshot()) == "1 resource"


def test_retries_of_every_meter_of_a_step_are_on_its_line():
    now = [0.0]
    progress = Meter(clock=lambda: now[0])
    probe = Meter(shown_by=progress)
    for meter in (progress, probe):
        meter.retry(Held("pseudonymizer", "connect-failed", 2.0, 2, 3))
        said = "pseudonymizer: connect-failed, next try in 2 s, attempt 2 of 3"
        assert describe(progress.snapshot()).startswith(said)
        progress.add(bytes=1)
        now[0] += 3
        progress.add(bytes=1)
        assert "connect-failed" not in describe(progress.snapshot())


def test_nothing_known_yet_is_said_as_started():
    empty = Snapshot()
    assert describe(empty) == "started"
