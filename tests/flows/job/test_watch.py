"""Progress as a person reads it, a cancel in the UI, and exit codes of signals."""

import pytest

from flows.engine.artifacts import Artifacts
from flows.job.record import RecordWriter
from flows.job.watch import Watcher, cancel_asked, describe, record_end
from flows.signals import exit_code_of
from tasks.shared.meter import Meter, Snapshot
from tasks.shared.stop import Stop
from tasks.shared.units import human_bytes, human_seconds
from tests.peers.prefect import prefect_in_memory

JOB = "0b2c4a5e-1111-4222-8333-444455556666"


@pytest.fixture
def prefect():
    with prefect_in_memory() as known:
        yield known


def recorded(prefect, *snapshots, over=False):
    """Let the watcher of a step write these; the one artifact it leaves."""
    watcher = Watcher(
        RecordWriter(prefect.api, JOB), Artifacts(prefect.api, JOB), Stop(), lambda _step, _snapshot: None
    )
    for snapshot in snapshots:
        watcher._record("http_import", 1, snapshot, over=over)
    (artifact,) = prefect.artifacts.values()
    return artifact


def test_the_progress_artifact_is_named_after_the_step_and_says_files_bytes_rate_and_the_time_left(prefect):
    artifact = recorded(prefect, Snapshot(1, 4, 2_500_000, None, 9, 10.0, None, 0.25))
    assert artifact["key"] == f"progress-1-http-import-{JOB[:8]}"
    assert artifact["data"] == 25.0
    assert artifact["description"] == "http_import: 1/4 files, 9 resources, 2.5 MB at 250.0 kB/s, 30 s left"


def test_a_step_that_is_done_again_goes_on_in_its_progress_artifact(prefect):
    recorded(prefect, Snapshot(1, 4, 0, None, 9, 10.0, None, 0.25), Snapshot(2, 4, 0, None, 9, 10.0, None, 0.5))
    assert recorded(prefect, Snapshot(3, 4, 0, None, 9, 10.0, None, 0.75))["data"] == 75.0


def test_a_step_that_has_read_everything_is_not_at_100_percent_before_it_is_over(prefect):
    read = Snapshot(1, 2, 0, None, 9, 10.0, None, 1.0)
    assert recorded(prefect, read)["data"] == 99.0
    done = recorded(prefect, read, over=True)
    assert done["data"] == 100.0
    assert "left" not in done["description"]


def test_what_a_service_says_of_its_progress_stands_there_as_it_is(prefect):
    said = Snapshot(0, None, 0, None, 0, 1.0, "<img src='http://outside.example/a.png'>", None)
    assert recorded(prefect, said)["description"] == r"http_import: \<img src='http\://outside.example/a.png'\>"


@pytest.mark.parametrize(
    ("run", "asked"),
    [({"state_type": "RUNNING"}, False), ({"state_type": "CANCELLING"}, True), ({"state_type": "CANCELLED"}, True),
     (None, True)],
)  # fmt: skip
def test_a_cancel_in_the_ui_or_a_run_that_was_removed_stops_the_job(prefect, run, asked):
    prefect.run = run
    assert cancel_asked(prefect.api, JOB) is asked


@pytest.mark.parametrize(
    ("before", "after", "reason"), [("RUNNING", "Stopped", "SIGTERM"), ("CANCELLING", "Cancelled", "cancel")]
)
def test_a_process_that_ends_in_a_hurry_records_whether_it_was_stopped_or_its_job_cancelled(
    prefect, before, after, reason
):
    prefect.run = {"state_type": before}
    assert record_end(prefect.api, JOB, "SIGTERM") == reason
    assert prefect.states == [after]


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2_500_000, "2.5 MB"), (3.2e12, "3.2 TB")]
)
def test_bytes(size, text):
    assert human_bytes(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (61, "1 min 1 s"), (7322, "2 h 2 min")])
def test_seconds(seconds, text):
    assert human_seconds(seconds) == text


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), (None, 130), ("nonsense", 130)])
def test_exit_codes_of_signals(name, code):
    assert exit_code_of(name) == code


def test_a_snapshot_knows_rate_fraction_and_the_time_left():
    now = [0.0]
    progress = Meter(clock=lambda: now[0])
    progress.expect(files=4, bytes=1000)
    progress.add(files=1, bytes=250, resources=9)
    now[0] = 10.0
    snapshot = progress.snapshot()
    assert (snapshot.rate, snapshot.fraction, snapshot.eta_seconds) == (25.0, 0.25, 30.0)
    assert describe(snapshot) == "1/4 files, 9 resources, 250 B at 25 B/s, 30 s left"


def test_a_fraction_reported_by_a_service_wins():
    progress = Meter(clock=lambda: 0.0)
    progress.expect(bytes=10)
    progress.say("batch 3 of 7", fraction=0.4)
    assert progress.snapshot().fraction == 0.4
    assert progress.snapshot().message == "batch 3 of 7"


def test_nothing_known_yet_is_said_as_started():
    empty = Snapshot(0, None, 0, None, 0, 0.0, None, None)
    assert describe(empty) == "started"


def test_percentiles_are_right_to_five_percent_and_memory_does_not_grow():
    stats = Meter()
    for number in range(1, 1001):
        stats.request(number / 1000)
    assert stats.requests == 1000
    assert stats.percentile(0.5) == pytest.approx(0.5, rel=0.06)
    assert stats.percentile(0.95) == pytest.approx(0.95, rel=0.06)
    assert len(stats._buckets) < 200
