"""Progress of a step and its time left (``4-product.md`` §5)."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tasks.shared.meter import Meter
from tasks.shared.time_estimate import TimeEstimate

FIRST = 1.0
"""Seconds in which no time left is shown."""


def test_how_far_a_step_is_goes_by_sizes_on_disk_and_its_rate_by_content(tmp_path: Path) -> None:
    plain, other, last = tmp_path / "a.ndjson", tmp_path / "b.ndjson", tmp_path / "c.ndjson"
    for path in (plain, other, last):
        path.write_bytes(b"x" * 100)
    meter = Meter()
    meter.work_on([plain, other, last])

    def after(path: Path, content: int, *, whole: bool = False) -> tuple[float | None, int]:
        meter.within(path, content, whole=whole)
        snapshot = meter.snapshot()
        return snapshot.fraction, snapshot.bytes

    assert after(plain, 50) == (pytest.approx(50 / 300), 50)
    assert after(plain, 100, whole=True) == (pytest.approx(100 / 300), 100)
    assert after(other, 10**9) == (pytest.approx(200 / 300), 100 + 10**9)
    assert after(other, 100, whole=True) == (pytest.approx(200 / 300), 200)
    assert after(last, 100, whole=True) == (1.0, 300)


@pytest.mark.parametrize("digits", [2, 20, 400])
def test_a_compressed_file_moves_evenly_whatever_its_ratio(tmp_path: Path, digits: int) -> None:
    noise = random.Random(digits)
    lines = [b"%0*d%s" % (digits, noise.randrange(10**8), b"content" * 40) for _ in range(40_000)]
    content = b"\n".join(lines)
    path = tmp_path / "a.ndjson.zst"
    path.write_bytes(zstandard.compress(content))
    meter = Meter()
    meter.work_on([path])
    for tenth in range(1, 10):
        meter.within(path, len(content) * tenth // 10)
        assert meter.snapshot().fraction == pytest.approx(tenth / 10, abs=0.05)
        assert meter.snapshot().bytes == len(content) * tenth // 10


def test_what_was_read_and_not_yet_answered_is_not_done(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"x" * 1000)
    meter = Meter()
    meter.work_on([path])
    meter.hand_out(10)
    meter.within(path, 1000, whole=True)
    assert (meter.snapshot().fraction, meter.snapshot().bytes) == (0.0, 0)
    meter.hand_in(4)
    assert (meter.snapshot().fraction, meter.snapshot().bytes) == (0.4, 400)


@pytest.mark.parametrize(
    ("earlier", "one"),
    [
        (lambda meter: meter.advance(90, 90, earlier=True), lambda meter: meter.advance(1, 1)),
        (lambda meter: meter.add(bytes=90, earlier=True), lambda meter: meter.add(bytes=1)),
        (
            lambda meter: (meter.advance(90, 90), meter.hand_out(10), meter.advance(10, 10)),
            lambda meter: meter.hand_in(1),
        ),
    ],
    ids=["files", "downloads", "answers"],
)
def test_what_an_earlier_run_did_makes_neither_rate_nor_time_left(earlier: Any, one: Any) -> None:
    """A resumed step has 90 of 100 bytes at once; the last 10 take a second each."""
    now = [0.0]
    meter = Meter(clock=lambda: now[0])
    meter.expect(bytes=100)
    earlier(meter)
    assert meter.snapshot().fraction == pytest.approx(0.9)
    for second in range(1, 6):
        now[0] = float(second)
        one(meter)
        snapshot = meter.snapshot()
        assert snapshot.fraction == pytest.approx(0.9 + second / 100)
        assert snapshot.eta_seconds == pytest.approx(10.0 - second)
        assert (snapshot.rate, snapshot.content) == (1.0, second)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("parts", [8, 13, 100])
@pytest.mark.parametrize("seconds", [0.05, 0.5, 3.0, 20.0])
def test_at_a_constant_rate_the_time_left_never_grows(seconds: float, parts: int, threads: int) -> None:
    """As when every transaction takes 3 s, and 1 min 40 s, 3 min 22 s and 5 min 32 s were shown."""
    now = [0.0]
    meter = Meter(clock=lambda: now[0])
    meter.expect(bytes=parts)
    done, shown = 0, []
    whole = seconds * parts / threads
    for tick in range(int(whole / 0.05)):
        now[0] = tick * 0.05
        while done < int(now[0] / seconds + 1e-9) * threads and done < parts:
            meter.add(bytes=1)
            done += 1
        left = meter.snapshot().eta_seconds
        if left is not None:
            assert left <= whole + seconds
            shown.append(left)
    assert bool(shown) or whole <= max(FIRST, seconds) * 2
    assert all(later <= earlier + 1e-6 for earlier, later in itertools.pairwise(shown))


def test_the_first_small_part_of_a_step_gives_no_time_left_that_grows() -> None:
    now = [0.0]
    meter = Meter(clock=lambda: now[0])
    meter.expect(bytes=1000)
    now[0] = 0.1
    meter.add(bytes=2)
    for tick in range(1, 100):
        now[0] = tick * 0.1
        assert meter.snapshot().eta_seconds is None


def test_the_time_left_is_not_below_what_the_last_minute_allows() -> None:
    pace = TimeEstimate(0.0)
    for second in range(1, 61):
        pace.grow(float(second), second / 120)
    for second in range(61, 181):
        pace.grow(float(second), 0.5 + (second - 60) / 1200)
    assert pace.seconds_left(180.0) == pytest.approx(480, rel=0.05)


def test_the_time_left_counts_down_between_parts_and_is_unknown_after_a_pause() -> None:
    pace = TimeEstimate(0.0)
    for part in (1, 2, 3):
        pace.grow(part * 4.0, part / 10)
    assert [pace.seconds_left(12.0 + idle) for idle in (0, 2, 4)] == pytest.approx([28.0, 26.0, 24.0])
    assert pace.seconds_left(12.0 + 7.5) is None
