"""Progress as a person reads it, a cancel in the UI, and exit codes of signals."""

import threading

import pytest
from flows.job.writer import RecordWriter

from flows.job.watch import CANCEL, SUSPEND, Watcher, describe, record_end, stop_asked
from flows.prefect.artifacts import Page
from flows.signals import exit_code_of
from tasks.shared.errors import NetworkError, ServiceBusyError
from tasks.shared.meter import Meter, Snapshot
from tasks.shared.stop import Stop
from tests.conftest import wait_until
from tests.peers.prefect import prefect_in_memory

JOB = "0b2c4a5e-1111-4222-8333-444455556666"


@pytest.fixture
def prefect():
    with prefect_in_memory() as known:
        yield known


def recorded(prefect, *snapshots, over=False):
    """Let the watcher of a step write these; the page it leaves."""
    watcher = Watcher(RecordWriter(prefect.api, JOB), Page(prefect.api, JOB), Stop(), lambda _step, _snapshot: None)
    for snapshot in snapshots:
        watcher._record("http_import", 1, snapshot, over=over)
    return prefect.page


def test_the_page_title_has_step_files_bytes_rate_and_time_left(prefect):
    artifact = recorded(prefect, Snapshot(1, 4, 2_500_000, 9, 10.0, 250_000.0, None, 0.25, eta_seconds=30.0))
    said = "1/4 files, 9 resources, 2.5 MB at 250 kB/s, 30 s left"
    assert artifact["description"] == f"**The page of the job**: running step 1, http_import, 25 %: {said}"


def test_a_step_that_is_done_again_goes_on_in_the_title(prefect):
    recorded(prefect, Snapshot(1, 4, 0, 9, 10.0, 0.0, None, 0.25), Snapshot(2, 4, 0, 9, 10.0, 0.0, None, 0.5))
    assert "75 %" in recorded(prefect, Snapshot(3, 4, 0, 9, 10.0, 0.0, None, 0.75))["description"]


def test_a_step_that_has_read_everything_is_not_at_100_percent_before_it_is_over(prefect):
    read = Snapshot(1, 2, 0, 9, 10.0, 0.0, None, 1.0)
    assert "99 %" in recorded(prefect, read)["description"]
    done = recorded(prefect, read, over=True)
    assert "100 %" in done["description"]
    assert "left" not in done["description"]


def test_what_a_service_says_of_its_progress_stands_there_as_it_is(prefect):
    said = Snapshot(0, None, 0, 0, 1.0, 0.0, "<img src='http://outside.example/a.png'>", None)
    title = recorded(prefect, said)["description"]
    assert title.endswith(
        r"running step 1, http_import: \<img src='http\://outside.example/a.png'\>, time left unknown"
    )


def test_a_watcher_waiting_for_an_answer_stops_when_the_next_step_begins(prefect, monkeypatch):
    asked, answered = threading.Event(), threading.Event()
    shown = []

    def show(step, _snapshot):
        shown.append(step)
        if step == "send" or answered.is_set():
            return
        asked.set()
        answered.wait(10)

    watcher = Watcher(RecordWriter(prefect.api, JOB), Page(prefect.api, JOB), Stop(), show)
    monkeypatch.setattr(threading.Thread, "join", lambda self, timeout=None: None)
    with watcher.watching("local_import", 1, Meter()):
        assert asked.wait(10)
    with watcher.watching("send", 2, Meter()):
        answered.set()
        wait_until(lambda: shown.count("send") >= 3)
        assert shown.count("local_import") == 1


@pytest.mark.parametrize(
    ("run", "asked"),
    [({"state_type": "RUNNING"}, None), ({"state_type": "CANCELLING"}, CANCEL), ({"state_type": "CANCELLED"}, CANCEL),
     (None, CANCEL), ({"state_type": "PAUSED", "state_name": "Suspended"}, SUSPEND)],
)  # fmt: skip
def test_a_cancel_or_suspend_in_the_ui_or_a_run_that_was_removed_stops_the_job(prefect, run, asked):
    prefect.run = run
    assert stop_asked(prefect.api, JOB) == asked


@pytest.mark.parametrize(
    ("before", "after", "reason"), [("RUNNING", "Stopped", "SIGTERM"), ("CANCELLING", "Cancelled", "cancel")]
)
def test_a_process_ended_at_once_records_a_stop_or_a_cancellation(prefect, before, after, reason):
    prefect.run = {"state_type": before}
    assert record_end(prefect.api, JOB, "SIGTERM") == reason
    assert prefect.states == [after]


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), (None, 130), ("nonsense", 130)])
def test_exit_codes_of_signals(name, code):
    assert exit_code_of(name) == code


def test_how_long_it_still_takes_is_not_known_while_nothing_moves():
    progress = Meter(clock=iter(range(100)).__next__)
    progress.set_status("batch 3 of 7", fraction=0.4)
    progress.set_status("batch 4 of 7", fraction=0.5)
    assert progress.snapshot().eta_seconds is not None
    progress.set_status("PAUSED", fraction=0.5, stands=True)
    assert progress.snapshot().eta_seconds is None
    assert describe(progress.snapshot()) == "PAUSED, time left unknown"
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
    assert describe(progress.snapshot()) == "1/4 files, 250 B, 0 B/s for 10 s, time left unknown"


def test_when_all_is_read_it_is_not_known_how_long_the_last_answers_take():
    now = [0.0]
    progress = Meter(clock=lambda: now[0])
    progress.expect(files=1, bytes=100)
    now[0] = 5.0
    progress.add(bytes=100)
    busy = ServiceBusyError("service-busy", "send: upload was answered 503", status=503)
    progress.retry("send", busy, attempt=1, attempts=5, seconds=4.0)
    said = "send: 503, next try in 4 s, attempt 2 of 5, 0/1 file, 100 B at 20 B/s, time left unknown"
    assert describe(progress.snapshot()) == said


def test_a_retried_request_is_on_the_line_of_its_step_until_the_next_progress():
    now = [0.0]
    progress = Meter(clock=lambda: now[0])
    busy = ServiceBusyError("service-busy", "send: upload was answered 503", status=503)
    progress.retry("send", busy, attempt=1, attempts=5, seconds=4.0)
    now[0] = 0.4
    assert describe(progress.snapshot()) == "send: 503, next try in 4 s, attempt 2 of 5, time left unknown"
    now[0] = 4.5
    assert describe(progress.snapshot()).startswith("send: 503, trying again, attempt 2 of 5")
    progress.add(resources=1)
    assert describe(progress.snapshot()) == "1 resource, time left unknown"


def test_retries_of_every_meter_of_a_step_are_on_its_line():
    now = [0.0]
    progress = Meter(clock=lambda: now[0])
    probe = Meter(shown_by=progress)
    away = NetworkError("connect-failed", "pseudonymizer: no connection")

    def elsewhere():
        probe.retry("pseudonymizer", away, attempt=2, attempts=3, seconds=30.0)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    progress.retry("pseudonymizer", away, attempt=1, attempts=3, seconds=2.0)
    said = "pseudonymizer: connect-failed, next try in 2 s, attempt 2 of 3, 1 more request waits"
    assert describe(progress.snapshot()) == f"{said}, time left unknown"


def test_nothing_known_yet_is_said_as_started():
    empty = Snapshot()
    assert describe(empty) == "started"
