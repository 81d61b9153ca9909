"""Several items at once: ``tasks/shared/work.py``."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterable, Iterator

import pytest

from tasks.shared.errors import DataError, Stopped
from tasks.shared.stop import SharedStop, Stop
from tasks.shared.work import for_each, in_order

SOON = 60.0
"""Seconds after which a test gives up waiting for what should happen at once."""


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert [thread.name for thread in threading.enumerate() if thread not in before] == []


def append_results(results: Iterable[int], kept: list[int]) -> None:
    """Append the results one by one: those before an error are kept."""
    for result in results:
        kept.append(result)


# in_order


@pytest.mark.parametrize("threads", [1, 2, 4, 16])
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    done: list[int] = []
    lock = threading.Lock()

    def work(item: int) -> str:
        with lock:
            done.append(item)
        return f"<{item}>"

    assert list(in_order(range(300), work, threads=threads, stop=Stop())) == [f"<{item}>" for item in range(300)]
    assert sorted(done) == list(range(300))


@pytest.mark.parametrize("threads", [1, 4, 16])
def test_all_threads_work_at_once_all_the_time_and_never_more_of_them(threads: int) -> None:
    together = threading.Barrier(threads, timeout=SOON)
    lock = threading.Lock()
    working = most = 0

    def work(_: int) -> None:
        nonlocal working, most
        with lock:
            working += 1
            most = max(most, working)
        together.wait()  # passes only if every thread has an item
        with lock:
            working -= 1

    assert len(list(in_order(range(20 * threads), work, threads=threads, stop=Stop()))) == 20 * threads
    assert most == threads


@pytest.mark.parametrize(("threads", "items"), [(1, 16), (3, 16), (4, 16), (5, 20), (16, 64)])
def test_while_the_first_is_slow_no_more_is_read_than_the_window_holds(threads: int, items: int) -> None:
    full = threading.Event()
    read = yielded = most = 0

    def source() -> Iterator[int]:
        nonlocal read, most
        for item in range(5 * items):
            read += 1
            most = max(most, read - yielded)
            if read - yielded >= items:
                full.set()
            yield item

    def work(item: int) -> int:
        assert item != 0 or full.wait(SOON)
        return item

    for _ in in_order(source(), work, threads=threads, stop=Stop()):
        yielded += 1
    assert yielded == 5 * items
    assert most == items


def test_items_are_read_in_the_callers_thread_and_only_when_asked_for() -> None:
    readers: set[int] = set()

    def source() -> Iterator[int]:
        for item in range(40):
            readers.add(threading.get_ident())
            yield item

    results = in_order(source(), abs, threads=4, stop=Stop())
    assert readers == set()
    assert list(results) == list(range(40))
    assert readers == {threading.get_ident()}


@pytest.mark.parametrize(("weight", "budget"), [(10, 25), (10, 30), (1, 1), (100, 25), (5, 0)])
def test_another_item_is_read_only_while_the_window_weighs_less_than_its_budget(weight: int, budget: int) -> None:
    expected = max(1, -(-budget // weight))
    full = threading.Event()
    read = yielded = most = 0

    def source() -> Iterator[int]:
        nonlocal read, most
        for item in range(40):
            read += 1
            most = max(most, read - yielded)
            if read - yielded >= expected:
                full.set()
            yield item

    def work(item: int) -> int:
        assert item != 0 or full.wait(SOON)
        return item

    for _ in in_order(source(), work, threads=4, stop=Stop(), weigh=lambda _: weight, budget=budget):
        yielded += 1
    assert yielded == 40
    assert most == expected


@pytest.mark.slow
def test_what_was_yielded_is_not_kept() -> None:
    class LargeItem:
        pass

    alive: weakref.WeakSet[LargeItem] = weakref.WeakSet()
    most = 0

    def source() -> Iterator[LargeItem]:
        nonlocal most
        for _ in range(200):
            large = LargeItem()
            alive.add(large)
            most = max(most, len(alive))
            yield large
            del large

    for large in in_order(source(), lambda item: item, threads=2, stop=Stop()):
        del large
    assert most <= 18  # the window of 16, the one just read, the one just yielded
    gc.collect()
    assert len(alive) == 0


# Errors


@pytest.mark.parametrize("threads", [1, 4])
def test_after_an_error_nothing_more_is_read(threads: int) -> None:
    failed = threading.Event()
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 3:
            failed.set()
            raise DataError("bad", "the cause")
        if item == 0 and threads > 1:
            assert failed.wait(SOON)  # the error happens first, and is still raised in its turn
        return item

    with pytest.raises(DataError) as caught:
        list(in_order(range(1000), work, threads=threads, stop=Stop()))
    assert caught.value.reference == "bad"
    assert max(begun) < 3 + 16  # what the window held


def test_the_results_before_an_error_are_yielded() -> None:
    failed = threading.Event()
    results: list[int] = []

    def work(item: int) -> int:
        if item == 2:
            failed.set()
            raise DataError("bad", "the cause")
        assert failed.wait(SOON)
        return item

    with pytest.raises(DataError):
        append_results(in_order(range(100), work, threads=3, stop=Stop()), results)
    assert results == [0, 1]


def test_closing_it_early_ends_the_threads_and_begins_nothing() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        return item

    results = in_order(range(1000), work, threads=2, stop=Stop())
    assert next(iter(results)) == 0
    results.close()
    count = len(begun)
    assert count <= 16
    assert list(results) == []
    assert len(begun) == count


# A run that is to stop


def test_a_run_that_is_to_stop_ends_what_sleeps_on_its_stop() -> None:
    run = Stop()
    asleep = threading.Barrier(4, timeout=SOON)

    def work(item: int) -> None:
        run.check()
        asleep.wait()
        if item == 2:
            run.request("SIGTERM")
        run.sleep(3600)

    with pytest.raises(Stopped, match="SIGTERM"):
        list(in_order(range(100), work, threads=4, stop=run))


def test_a_run_that_is_to_stop_is_stopped_also_if_work_failed_because_of_it() -> None:
    run = Stop()

    def work(_: int) -> None:
        run.request("SIGINT")
        raise DataError("cut-off", "in the middle of a request")

    with pytest.raises(Stopped, match="SIGINT"):
        list(in_order(range(100), work, threads=1, stop=run))


def test_a_run_that_was_stopped_before_reads_nothing() -> None:
    run = Stop()
    run.request("cancelled")
    with pytest.raises(Stopped, match="cancelled"):
        list(in_order(iter(pytest.fail, None), abs, threads=1, stop=run))


# for_each, and the stop they share


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


def test_the_first_error_ends_for_each_and_is_the_one_raised() -> None:
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


def test_a_shared_stop_sleeps_as_long_as_asked_and_not_when_the_run_stops() -> None:
    run = Stop()
    shared = SharedStop(run)
    shared.sleep(0.0)
    run.request("SIGINT")
    with pytest.raises(Stopped):
        shared.check()
    with pytest.raises(Stopped, match="SIGINT"):
        shared.sleep(60.0)
