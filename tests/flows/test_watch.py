"""Progress as a person reads it, and exit codes of signals."""

import pytest

from flows.signals import exit_code_of
from flows.watch import describe, human_bytes, human_seconds
from tasks.shared.progress import Progress, RequestStats, Snapshot


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
    progress = Progress(clock=lambda: now[0])
    progress.expect(files=4, bytes=1000)
    progress.add(files=1, bytes=250, resources=9)
    now[0] = 10.0
    snapshot = progress.snapshot()
    assert (snapshot.rate, snapshot.fraction, snapshot.eta_seconds) == (25.0, 0.25, 30.0)
    assert describe(snapshot) == "1/4 files, 9 resources, 250 B at 25 B/s, 30 s left"


def test_a_fraction_reported_by_a_service_wins():
    progress = Progress(clock=lambda: 0.0)
    progress.expect(bytes=10)
    progress.say("batch 3 of 7", fraction=0.4)
    assert progress.snapshot().fraction == 0.4
    assert progress.snapshot().message == "batch 3 of 7"


def test_nothing_known_yet_is_said_as_started():
    empty = Snapshot(0, None, 0, None, 0, 0.0, None, None)
    assert describe(empty) == "started"


def test_percentiles_are_right_to_five_percent_and_memory_does_not_grow():
    stats = RequestStats()
    for number in range(1, 1001):
        stats.record(number / 1000)
    assert stats.requests == 1000
    assert stats.percentile(0.5) == pytest.approx(0.5, rel=0.06)
    assert stats.percentile(0.95) == pytest.approx(0.95, rel=0.06)
    assert len(stats._buckets) < 200
