"""Requests under way are bounded, and nobody is overtaken (``architecture.md`` rule 8)."""

from __future__ import annotations

import threading

import pytest

from tasks.pseudonymizer.client import Slots
from tests.conftest import wait_until

SOON = 60.0
"""Seconds after which the test gives up waiting for what should happen at once."""


@pytest.mark.parametrize("count", [1, 3])
def test_no_more_than_so_many_are_inside_and_the_first_that_waits_is_the_first_that_enters(count: int) -> None:
    slots = Slots(count)
    order: list[int] = []
    inside = threading.Semaphore(0)
    leave = threading.Semaphore(0)

    def visit(number: int) -> None:
        with slots:
            order.append(number)
            inside.release()
            leave.acquire()

    threads = [threading.Thread(target=visit, args=(number,)) for number in range(8)]
    for number, thread in enumerate(threads):
        thread.start()
        if number < count:
            assert inside.acquire(timeout=SOON)
        else:
            wait_until(lambda number=number: len(slots._waiting) == number - count + 1, SOON)  # type: ignore[misc]
    assert order == list(range(count))
    for number in range(count, 8):
        leave.release()
        assert inside.acquire(timeout=SOON)
        assert len(order) == number + 1
    assert order == list(range(8))
    for _ in range(count):
        leave.release()
    for thread in threads:
        thread.join()


def test_an_error_gives_the_slot_back() -> None:
    slots = Slots(1)
    for _ in range(3):
        with pytest.raises(KeyError), slots:
            raise KeyError
    with slots:
        pass
