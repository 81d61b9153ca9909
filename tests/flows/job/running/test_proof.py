"""The proof that the machine which had a job is dead: one whole lease watched without a gap (4-product.md §6)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.engine.api import Json
from flows.job.running.proof import HEARTBEAT, Heartbeat, LeaseTakenError, LeaseTimes, beats, watch_for_silence
from tasks.shared.errors import NetworkError

TIMES = LeaseTimes()
FIRST: Json = {"id": "a", "updated": "2026-01-01T00:00:00Z"}


class World:
    """A clock, a server and a heartbeat; ``at`` maps times to what happens then."""

    def __init__(self, directory: Path, row: Json | None = FIRST) -> None:
        self.now = 0.0
        self.row = row
        self.away = False
        self.looks = 0
        self.heartbeat = Heartbeat(directory)
        self.heartbeat.beat("holder")
        self._events: list[tuple[float, Callable[[], None]]] = []

    def at(self, second: float, event: Callable[[], None]) -> None:
        self._events.append((second, event))

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for second, event in [*self._events]:
            if second <= self.now:
                self._events.remove((second, event))
                event()

    def read_row(self) -> Json | None:
        self.looks += 1
        if self.away:
            raise NetworkError("prefect-unreachable", "made up")
        return self.row

    def watched(self, *, patience: float = 900.0) -> Json | None:
        return watch_for_silence(
            self.row, self.read_row, self.heartbeat, TIMES, patience=patience, clock=lambda: self.now, sleep=self.sleep
        )

    def set(self, **what: object) -> Callable[[], None]:
        return lambda: self.__dict__.update(what)


@pytest.mark.parametrize("row", [FIRST, None], ids=["a limit", "none, as after a restore of the database"])
def test_who_gives_no_sign_for_one_whole_lease_is_dead(tmp_path: Path, row: Json | None) -> None:
    world = World(tmp_path, row)
    assert world.watched() == row
    assert TIMES.lease <= world.now <= TIMES.lease + TIMES.look
    assert world.looks >= TIMES.lease / (TIMES.look + 1)


def test_a_heartbeat_is_seen_within_a_second_and_the_lease_with_the_next_look(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.at(5, lambda: world.heartbeat.beat("holder"))
    with pytest.raises(LeaseTakenError):
        world.watched()
    assert world.now == 5
    world.now = 0.0
    world.at(15, world.set(row=FIRST | {"updated": "2026-01-01T00:00:15Z"}))
    with pytest.raises(LeaseTakenError):
        world.watched()
    assert 15 <= world.now <= 15 + TIMES.look


def test_a_sign_in_the_last_second_counts(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.at(TIMES.lease, lambda: world.heartbeat.beat("holder"))
    with pytest.raises(LeaseTakenError):
        world.watched()


def test_the_last_renewal_of_a_dead_holder_may_be_seen_late(tmp_path: Path) -> None:
    """A server under load carries it out seconds after the death. A living holder renews again."""
    late = FIRST | {"updated": "2026-01-01T00:00:05Z"}
    world = World(tmp_path)
    world.at(5, world.set(row=late))
    assert world.watched() == late
    assert 5 + TIMES.lease <= world.now <= 5 + TIMES.lease + 2 * TIMES.look
    world.now = 0.0
    world.at(5, world.set(row=FIRST))
    world.at(5 + TIMES.renew, world.set(row=late))
    with pytest.raises(LeaseTakenError):
        world.watched()
    assert world.now <= 5 + TIMES.renew + TIMES.look


def test_while_the_server_is_away_no_lease_runs_out(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.at(58, world.set(away=True))
    world.at(600, world.set(away=False))
    assert world.watched() == FIRST
    assert world.now >= 600 + TIMES.lease


def test_a_watcher_that_slept_begins_anew(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.at(50, world.set(now=650.0))
    assert world.watched() == FIRST
    assert world.now >= 650 + TIMES.lease


def test_a_command_does_not_wait_for_a_server_that_is_away(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.at(10, world.set(away=True))
    with pytest.raises(NetworkError):
        world.watched(patience=12)
    assert world.now < 30


def test_a_limit_that_is_made_or_goes_meanwhile_is_somebody_at_work(tmp_path: Path) -> None:
    for before, after in ((None, FIRST), (FIRST, None), (FIRST, FIRST | {"id": "b"})):
        world = World(tmp_path, before)
        world.at(5, world.set(row=after))
        with pytest.raises(LeaseTakenError):
            world.watched()


def test_a_heartbeat_is_a_private_file_of_one_length(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path)
    sizes = set()
    for _ in range(12):
        heartbeat.beat("1f6d3a0e-0000-4000-8000-000000000000")
        sizes.add(heartbeat.path.stat().st_size)
    assert len(sizes) == 1
    assert heartbeat.path.stat().st_mode & 0o777 == 0o600
    heartbeat.remove()
    assert heartbeat.read() is None


@pytest.mark.parametrize(("ago", "lives"), [(0, True), (50, True), (70, False), (-300, False)])
def test_for_display_a_heartbeat_of_the_last_minute_counts_but_not_a_future_one(
    tmp_path: Path, ago: float, lives: bool
) -> None:
    Heartbeat(tmp_path).beat("holder")
    os.utime(tmp_path / HEARTBEAT, (time.time() - ago,) * 2)
    assert beats(tmp_path, TIMES.lease) is lives
