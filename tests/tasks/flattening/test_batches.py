"""Batches, the lanes they go through, and the watchdog over them."""

from __future__ import annotations

import json
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.flattening.batches import TAIL, Batch, Packer, head, share
from tasks.flattening.lanes import Lanes
from tasks.flattening.watchdog import Watchdog
from tasks.shared.errors import DataError, NetworkError, ServiceError, Stopped
from tasks.shared.parallel import SharedStop
from tasks.shared.stop import Stop

VIEW = {"resourceType": "V", "name": "n", "select": []}


def packed(raws: list[bytes], limit: int, skip: int = 0) -> list[Batch]:
    packer = Packer(0, VIEW, limit, skip=skip)
    return [batch for raw in raws for batch in packer.add(raw)] + packer.end()


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(1, 1500))
def test_batches_hold_every_resource_once_in_order_within_the_limit(sizes: list[int], limit: int) -> None:
    raws = [b'{"id":"%d","v":1.50,"x":"%b"}' % (n, b"x" * size) for n, size in enumerate(sizes)]
    batches = packed(raws, limit)
    found: list[bytes] = []
    for number, batch in enumerate(batches):
        body = json.loads(batch.body, parse_float=str)
        assert body["parameter"][0] == {"name": "viewDefinition", "resource": VIEW}
        assert batch.ordinal == number
        assert batch.resources == len(body["parameter"]) - 1 >= 1
        assert len(batch.body) <= limit or batch.resources == 1
        assert batch.body.startswith(head(VIEW))
        assert batch.body.endswith(TAIL)
        found += [raw for raw in raws if raw in batch.body]
    assert found == raws
    # Greedy: the first of the next batch would not have fitted.
    for one, following in pairwise(batches):
        start = len(head(VIEW)) + len(b',{"name":"resources","resource":')
        raw = following.body[start : following.body.index(b"}", start) + 1]
        assert len(one.body) + len(raw) + len(b',{"name":"resources","resource":}') > limit


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(1, 1500), st.integers(0, 10))
def test_what_is_skipped_changes_nothing_of_what_follows(sizes: list[int], limit: int, skip: int) -> None:
    raws = [b"{%b}" % (b"x" * size) for size in sizes]
    assert packed(raws, limit, skip) == packed(raws, limit)[skip:]


def test_every_group_has_an_equal_share() -> None:
    assert share(500 << 20, 4) == 125 << 20
    assert share(10, 0) == 10


def lanes(work: object, *, threads: int = 2, budget: int = 1000) -> Lanes:
    return Lanes(work, threads=threads, budget=budget, together=SharedStop(Stop()))  # type: ignore[arg-type]


def test_the_batches_of_a_group_are_worked_on_in_their_order_and_at_most_two_groups_at_once() -> None:
    done: list[tuple[int, int]] = []
    busy: list[int] = []
    most = 0
    lock = threading.Lock()

    def work(batch: Batch) -> None:
        nonlocal most
        with lock:
            assert batch.place not in busy
            busy.append(batch.place)
            most = max(most, len(busy))
        with lock:
            busy.remove(batch.place)
            done.append((batch.place, batch.ordinal))

    with lanes(work) as open_lanes:
        for ordinal in range(20):
            for place in range(5):
                open_lanes.submit(Batch(place, ordinal, 1, b"x"))
        open_lanes.drain()
    assert most <= 2
    for place in range(5):
        assert [ordinal for where, ordinal in done if where == place] == list(range(20))


def test_whoever_reads_waits_while_the_budget_is_used_up() -> None:
    release = threading.Event()
    with lanes(lambda _: release.wait(60), budget=100) as open_lanes:
        open_lanes.make_room(1000)  # nothing is under way: nothing to wait for
        open_lanes.submit(Batch(0, 0, 1, b"x" * 60))
        open_lanes.make_room(40)
        waited = threading.Thread(target=open_lanes.make_room, args=(41,))
        waited.start()
        waited.join(0.05)
        assert waited.is_alive()
        release.set()
        waited.join(60)
        assert not waited.is_alive()
        open_lanes.drain()


def test_the_first_error_ends_the_lanes_and_is_the_one_raised() -> None:
    done: list[int] = []

    def work(batch: Batch) -> None:
        if batch.ordinal == 2:
            raise DataError("x", "the third")
        done.append(batch.ordinal)

    def all_of_them() -> None:
        with lanes(work) as open_lanes:
            for ordinal in range(10):
                open_lanes.submit(Batch(0, ordinal, 1, b"x"))
            open_lanes.drain()

    with pytest.raises(DataError, match="the third"):
        all_of_them()
    assert done == [0, 1]


def test_an_error_of_the_reader_is_not_hidden() -> None:
    def fails() -> None:
        with lanes(lambda _: None) as open_lanes:
            open_lanes.submit(Batch(0, 0, 1, b"x"))
            raise DataError("x", "reader")

    with pytest.raises(DataError, match="reader"):
        fails()


def test_a_stop_of_the_run_ends_the_lanes() -> None:
    stop = Stop()
    with Lanes(lambda _: None, threads=2, budget=100, together=SharedStop(stop)) as open_lanes:
        stop.request("signal")
        with pytest.raises(Stopped):
            open_lanes.submit(Batch(0, 0, 1, b"x"))


# The watchdog


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_three_failures_in_a_row_cancel_a_request_and_an_answer_between_them_saves_it() -> None:
    answers = ["fails", "fails", "alive", "fails", "fails", "fails"]
    cancelled: list[int] = []

    def ask() -> None:
        if answers.pop(0) == "fails":
            raise NetworkError("connect-failed", "no")

    with Watchdog(ask, interval=3600) as watchdog, watchdog.watch(lambda: cancelled.append(1), timeout=1e9) as watched:
        for _ in range(5):
            watchdog.look()
            assert not cancelled
        watchdog.look()
        assert cancelled == [1]
        assert watched.silent
        watchdog.look()  # nobody is left: nothing is asked
        assert cancelled == [1]


def test_a_refusal_is_a_sign_of_life() -> None:
    def ask() -> None:
        raise ServiceError("service-not-found", "404", status=404)

    with Watchdog(ask, interval=3600) as watchdog, watchdog.watch(pytest.fail, timeout=1e9):
        for _ in range(5):
            watchdog.look()


def test_a_request_that_began_later_has_its_own_count() -> None:
    def ask() -> None:
        raise NetworkError("connect-failed", "no")

    cancelled: list[str] = []
    with Watchdog(ask, interval=3600) as dog, dog.watch(lambda: cancelled.append("first"), timeout=1e9):
        dog.look()
        dog.look()
        with dog.watch(lambda: cancelled.append("second"), timeout=1e9):
            dog.look()
            assert cancelled == ["first"]
            dog.look()
            dog.look()
            assert cancelled == ["first", "second"]


def test_a_request_is_cancelled_at_its_deadline_although_the_service_is_alive() -> None:
    clock = Clock()
    cancelled: list[int] = []
    with (
        Watchdog(lambda: None, interval=3600, clock=clock) as watchdog,
        watchdog.watch(lambda: cancelled.append(1), timeout=50) as watched,
    ):
        clock.now = 49
        watchdog.look()
        assert not cancelled
        clock.now = 50
        watchdog.look()
        assert cancelled == [1]
        assert (watched.late, watched.silent) == (True, False)


def test_nothing_is_asked_while_nothing_runs() -> None:
    with Watchdog(pytest.fail, interval=3600) as watchdog:
        watchdog.look()
        with watchdog.watch(pytest.fail, timeout=1e9):
            pass
        watchdog.look()
