"""A few files at once: ``tasks/shared/parallel.py``."""

from __future__ import annotations

import threading

import pytest

from tasks.shared.errors import DataError, Stopped
from tasks.shared.parallel import SharedStop, for_each
from tasks.shared.stop import Stop


def test_every_item_is_worked_on_and_no_more_than_threads_at_once() -> None:
    lock = threading.Lock()
    running = most = 0
    done: list[int] = []
    pair = threading.Barrier(3)

    def work(item: int, _: Stop) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        pair.wait(60)
        with lock:
            running -= 1
            done.append(item)

    for_each(range(9), work, threads=3, stop=Stop())
    assert sorted(done) == list(range(9))
    assert most == 3


def test_the_first_error_ends_it_and_is_the_one_raised() -> None:
    begun: list[int] = []
    waiting = threading.Event()

    def work(item: int, stop: Stop) -> None:
        begun.append(item)
        if item == 0:
            waiting.wait(60)
            raise DataError("first", "the cause")
        waiting.set()
        while True:
            stop.sleep(0.001)  # ends because the other one failed

    with pytest.raises(DataError) as caught:
        for_each(range(100), work, threads=2, stop=Stop())
    assert caught.value.reference == "first"
    assert sorted(begun) == [0, 1]


def test_a_stop_of_the_run_is_raised_as_it_is() -> None:
    run = Stop()

    def work(_: int, stop: Stop) -> None:
        run.request("SIGTERM")
        stop.check()

    with pytest.raises(Stopped, match="SIGTERM"):
        for_each(range(3), work, threads=2, stop=run)


def test_a_shared_stop_sleeps_as_long_as_asked_and_not_when_the_run_stops() -> None:
    run = Stop()
    shared = SharedStop(run)
    shared.sleep(0.0)
    assert not shared.requested
    run.request("SIGINT")
    assert shared.requested
    with pytest.raises(Stopped, match="SIGINT"):
        shared.sleep(60.0)


def test_no_items_are_no_work() -> None:
    for_each([], lambda item, stop: None, threads=4, stop=Stop())
