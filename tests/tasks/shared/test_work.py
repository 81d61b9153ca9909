"""Several items at once: ``tasks/shared/work.py``."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.shared.errors import DataError, Stopped
from tasks.shared.stop import SharedStop, Stop
from tasks.shared.work import Workers, for_each, in_order

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


# Workers


Tell = Callable[[Any], None]


def workers(work: Callable[[Any, Tell], None], **options: Any) -> Workers[Any, Any]:
    return Workers(work, **{"threads": 2, "stop": SharedStop(Stop())} | options)


def submit(pool: Workers[Any, Any], items: Iterable[Any], keys: frozenset[str] = frozenset()) -> None:
    with pool:
        for item in items:
            pool.submit(item, keys=keys)


@given(
    keys=st.lists(st.frozensets(st.sampled_from("abcde"), max_size=3), max_size=40),
    threads=st.integers(1, 5),
    budget=st.integers(1, 50),
)
def test_items_that_share_a_key_are_worked_on_one_after_the_other_in_their_order(
    keys: list[frozenset[str]], threads: int, budget: int
) -> None:
    lock = threading.Lock()
    busy: Counter[str] = Counter()
    done: list[int] = []

    def work(number: int, tell: Tell) -> None:
        with lock:
            assert not busy.keys() & keys[number]
            busy.update(keys[number])
        time.sleep(0)
        with lock:
            for key in keys[number]:
                del busy[key]
            done.append(number)
        tell(number)

    taken: list[int] = []
    with workers(work, threads=threads, budget=budget, take=taken.append) as pool:
        for number, mine in enumerate(keys):
            pool.submit(number, keys=mine)
    assert sorted(done) == sorted(taken) == list(range(len(keys)))
    for key in "abcde":
        numbers = [number for number in done if key in keys[number]]
        assert numbers == sorted(numbers)


def test_an_item_that_waits_for_its_turn_keeps_no_other_one_waiting() -> None:
    second = threading.Event()

    def work(item: str, _: Tell) -> None:
        assert item != "first" or second.wait(SOON)
        if item == "of another key":
            second.set()

    with workers(work) as pool:
        for item, key in (("first", "a"), ("behind it", "a"), ("of another key", "b")):
            pool.submit(item, keys=frozenset(key))


def test_everything_that_is_told_is_taken_in_the_thread_that_submits_in_its_order() -> None:
    taken: list[tuple[int, int]] = []

    def record_message(told: int) -> None:
        taken.append((told, threading.get_ident()))

    def work(item: int, tell: Tell) -> None:
        for number in range(item):
            tell(10 * item + number)

    submit(workers(work, take=record_message), range(4), frozenset("a"))
    assert taken == [(told, threading.get_ident()) for told in (10, 20, 21, 30, 31, 32)]


def test_whoever_submits_waits_while_the_budget_is_used_up() -> None:
    release = threading.Event()
    with workers(lambda *_: assert_(release.wait(SOON)), budget=100) as pool:
        pool.wait_for_capacity(1000)  # nothing is under way: nothing to wait for
        pool.submit(0, weight=60)
        pool.wait_for_capacity(40)
        waited = threading.Thread(target=pool.wait_for_capacity, args=(41,))
        waited.start()
        waited.join(0.05)
        assert waited.is_alive()
        release.set()
        waited.join(SOON)
        assert not waited.is_alive()


def test_at_most_as_many_items_as_the_budget_are_under_way_and_each_is_let_go_of() -> None:
    class LargeTask:
        pass

    alive: weakref.WeakSet[LargeTask] = weakref.WeakSet()
    most = 0
    with workers(lambda *_: time.sleep(0.001), budget=5) as pool:
        for _ in range(50):
            large = LargeTask()
            alive.add(large)
            most = max(most, len(alive))
            pool.submit(large)
            del large
    assert most <= 6
    assert len(alive) == 0


def test_the_first_error_ends_the_work_and_is_raised_after_all_results_are_read() -> None:
    taken: list[int] = []
    together = SharedStop(Stop())

    def work(item: int, tell: Tell) -> None:
        tell(item)
        if item == 2:
            raise DataError("x", "the third")

    with pytest.raises(DataError, match="the third"):
        submit(workers(work, take=taken.append, stop=together), range(10), frozenset("a"))
    assert taken == [0, 1, 2]
    assert together.requested


def test_what_is_under_way_ends_after_an_error_and_what_it_tells_is_taken() -> None:
    taken: list[str] = []
    together = SharedStop(Stop())
    under_way = threading.Event()

    def work(item: str, tell: Tell) -> None:
        if item == "fails":
            assert under_way.wait(SOON)
            raise DataError("x", "the cause")
        under_way.set()
        try:
            together.sleep(3600)
        finally:
            tell(item)

    with pytest.raises(DataError, match="the cause"):
        submit(workers(work, take=taken.append, stop=together), ("long", "fails"))
    assert taken == ["long"]


def test_an_error_of_the_reader_is_not_hidden() -> None:
    def fails() -> None:
        with workers(lambda *_: None) as pool:
            pool.submit(0)
            raise DataError("x", "reader")

    with pytest.raises(DataError, match="reader"):
        fails()


def test_an_error_takes_the_place_of_a_stop_that_followed_from_it() -> None:
    together = SharedStop(Stop())

    def work(*_: object) -> None:
        raise DataError("x", "the cause")

    def follows() -> None:
        with workers(work, stop=together) as pool:
            pool.submit(0)
            together.sleep(3600)

    with pytest.raises(DataError, match="the cause"):
        follows()


def test_a_stop_of_the_run_ends_what_looks_at_it_and_begins_nothing() -> None:
    run = Stop()
    together = SharedStop(run)
    begun: list[int] = []

    def work(item: int, _: Tell) -> None:
        begun.append(item)
        run.request("SIGTERM")
        together.sleep(3600)

    with pytest.raises(Stopped, match="SIGTERM"):
        submit(workers(work, stop=together, threads=1), range(10))
    assert begun == [0]


def assert_(value: bool) -> None:
    assert value


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


def test_an_answer_that_comes_late_does_not_change_the_order() -> None:
    second = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert second.wait(SOON)
        else:
            second.set()
        return item

    assert list(in_order(range(50), work, threads=2, stop=Stop())) == list(range(50))


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


def test_no_items_are_no_work() -> None:
    assert list(in_order([], abs, threads=4, stop=Stop())) == []


# Errors


@pytest.mark.parametrize("threads", [1, 4])
def test_after_an_error_nothing_later_begins(threads: int) -> None:
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
    assert max(begun) < 16


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


def test_of_two_errors_the_one_of_the_earlier_item_is_raised() -> None:
    later = threading.Event()

    def work(item: int) -> int:
        if item == 1:
            later.set()
            raise DataError("later", "of item 1")
        assert later.wait(SOON)
        raise DataError("earlier", "of item 0")

    with pytest.raises(DataError) as caught:
        list(in_order(range(10), work, threads=2, stop=Stop()))
    assert caught.value.reference == "earlier"


def test_an_error_while_reading_is_raised_after_the_results_of_what_was_read() -> None:
    def source() -> Iterator[int]:
        yield from range(5)
        raise DataError("zst-truncated", "breaks off")

    results: list[int] = []
    with pytest.raises(DataError) as caught:
        append_results(in_order(source(), abs, threads=3, stop=Stop()), results)
    assert caught.value.reference == "zst-truncated"
    assert results == [0, 1, 2, 3, 4]


def test_what_is_under_way_ends_soon_when_it_looks_at_the_stop_they_share() -> None:
    run = Stop()
    together = SharedStop(run)
    sleeping = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            sleeping.set()
            together.sleep(3600)
        assert sleeping.wait(SOON)
        raise DataError("bad", "the cause")

    with pytest.raises(DataError) as caught:
        list(in_order(range(100), work, threads=2, stop=run, together=together))
    assert caught.value.reference == "bad"
    assert not run.requested


@pytest.mark.slow
def test_an_error_of_the_consumer_ends_the_threads() -> None:
    together = SharedStop(Stop())

    def work(item: int) -> int:
        if item > 0:
            together.sleep(3600)
        return item

    def consume() -> None:
        for _ in in_order(range(100), work, threads=4, stop=Stop(), together=together):
            raise DataError("consumer", "cannot go on")

    with pytest.raises(DataError):
        consume()
    gc.collect()


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


def test_a_stop_while_reading_is_raised_at_once() -> None:
    def source() -> Iterator[int]:
        yield 0
        raise Stopped("cancelled")

    with pytest.raises(Stopped, match="cancelled"):
        list(in_order(source(), abs, threads=1, stop=Stop()))


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
    assert not shared.requested
    run.request("SIGINT")
    assert shared.requested
    with pytest.raises(Stopped, match="SIGINT"):
        shared.sleep(60.0)
