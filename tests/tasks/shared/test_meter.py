"""Progress of a step, its rate and its time left."""

from __future__ import annotations

import pytest

from tasks.shared.meter import STILL, Held, Meter


class Clocked:
    """A meter with a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.meter = Meter(clock=lambda: self.now)

    def run(self, seconds: int, *, content: int = 100, stored: int = 10) -> None:
        for _ in range(seconds):
            self.now += 1
            self.meter.add(bytes=content, stored=stored)


@pytest.fixture
def clocked() -> Clocked:
    return Clocked()


def test_how_far_a_step_is_goes_by_sizes_on_disk_and_its_rate_by_content(clocked: Clocked) -> None:
    clocked.meter.expect(bytes=1000)
    clocked.run(25)
    snapshot = clocked.meter.snapshot()
    assert (snapshot.fraction, snapshot.bytes, snapshot.rate) == (0.25, 2500, 100.0)
    assert snapshot.eta_seconds == pytest.approx(75.0)


def test_rate_and_time_left_are_those_of_the_last_half_minute(clocked: Clocked) -> None:
    clocked.meter.expect(bytes=2000)
    clocked.run(60)
    clocked.run(40, content=10, stored=1)
    snapshot = clocked.meter.snapshot()
    assert snapshot.rate == pytest.approx(10.0)
    assert snapshot.eta_seconds == pytest.approx(1360.0)


def test_what_an_earlier_run_did_makes_neither_rate_nor_time_left(clocked: Clocked) -> None:
    """A resumed step has 90 of 100 bytes at once; the last 10 take a second each."""
    clocked.meter.expect(bytes=100)
    clocked.meter.skip(files=9, stored=90)
    assert clocked.meter.snapshot().fraction == pytest.approx(0.9)
    for second in range(1, 6):
        clocked.run(1, content=1, stored=1)
        snapshot = clocked.meter.snapshot()
        assert snapshot.fraction == pytest.approx(0.9 + second / 100)
        assert snapshot.eta_seconds == pytest.approx(10.0 - second)
        assert (snapshot.rate, snapshot.bytes) == (1.0, second)


def test_where_no_bytes_are_known_files_are_counted_and_what_a_service_tells_goes_first(clocked: Clocked) -> None:
    assert clocked.meter.snapshot().fraction is None
    clocked.meter.expect(files=4)
    clocked.meter.add(files=1)
    assert clocked.meter.snapshot().fraction == 0.25
    clocked.meter.set_status("working", fraction=0.5)
    clocked.now += 10
    clocked.meter.set_status(fraction=0.75)
    snapshot = clocked.meter.snapshot()
    assert (snapshot.fraction, snapshot.message) == (0.75, "working")
    assert snapshot.eta_seconds == pytest.approx(10.0)


def test_when_nothing_moves_there_is_no_rate_and_no_time_left(clocked: Clocked) -> None:
    clocked.meter.expect(bytes=1000)
    clocked.run(10)
    clocked.now += STILL
    snapshot = clocked.meter.snapshot()
    assert (snapshot.still, snapshot.rate, snapshot.eta_seconds) == (STILL, 0.0, None)


def test_a_new_phase_counts_anew_and_keeps_the_warnings(clocked: Clocked) -> None:
    clocked.meter.warn("look")
    clocked.run(5)
    clocked.meter.begin("downloading")
    snapshot = clocked.meter.snapshot()
    assert (snapshot.bytes, snapshot.seconds, snapshot.message, snapshot.warnings) == (0, 0.0, "downloading", ("look",))


def test_a_retry_shows_until_something_was_done_after_it(clocked: Clocked) -> None:
    probe = Meter(clock=lambda: clocked.now, shown_by=clocked.meter)
    probe.retry(Held("send", "503", 8.0, 2, 5))
    clocked.now += 3
    held = clocked.meter.snapshot().held
    assert held is not None
    assert (held.service, held.why, held.seconds, held.attempt, held.attempts) == ("send", "503", 5.0, 2, 5)
    clocked.run(6)
    assert clocked.meter.snapshot().held is None


def test_requests_are_counted_with_their_times() -> None:
    meter = Meter()
    assert meter.statistics() == {}
    for number in range(1, 101):
        meter.request(number / 100, repeated=number > 98)
    found = meter.statistics()
    assert (found["requests"], found["retries"]) == (100, 2)
    assert found["p50"] == pytest.approx(0.5, rel=0.06)
    assert found["p95"] == pytest.approx(0.95, rel=0.06)
