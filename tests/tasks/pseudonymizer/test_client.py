"""Requests under way are bounded and none is overtaken; a large one is in memory once (architecture, rules 6 and 8)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tasks.pseudonymizer.client import Deidentify, Slots, body
from tasks.pseudonymizer.rules import read_rules
from tasks.shared.http.body import SLICE, MemoryBody
from tests.conftest import wait_until
from tests.peers.pseudonymization import RULES

SOON = 60.0
"""Seconds after which the test gives up waiting for what should happen at once."""


@pytest.mark.parametrize("count", [1, 3])
def test_the_limit_is_never_exceeded_and_waiters_enter_in_order(count: int) -> None:
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


def test_a_large_resource_is_sent_in_pieces_between_the_rules_and_not_joined(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_bytes(RULES)
    sent: list[Any] = []

    class BodyRecorder:
        def send(self, *_: object, content: Any, **__: object) -> None:
            sent.append(content)

    call = Deidentify(BodyRecorder(), "http://x", read_rules(rules), slots=1)  # type: ignore[arg-type]
    small, large = b"{}", b"x" * (2 * SLICE + 1)
    for resource in (small, large):
        call(resource)
    assert sent[0] == body(RULES, small)
    assert isinstance(sent[1], MemoryBody)
    for _ in range(2):  # each attempt sends the same bytes
        pieces = [*sent[1].pieces()]
        assert b"".join(pieces) == body(RULES, large)
        assert max(map(len, pieces)) <= SLICE
        assert sent[1].length == len(body(RULES, large))
