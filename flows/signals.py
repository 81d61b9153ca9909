"""End a run at SIGINT or SIGTERM: between two files, or after seven seconds.

While no flow runs, a signal raises ``SystemExit``. Prefect sets a handler when it begins a flow, and the flow's body
replaces it (``stopping``). Our handlers only append to a list, which a thread reads. They take no lock, because the
interrupted thread may hold it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from flows.output import print_line
from tasks.shared.stop import Stop

STOP_SECONDS = 7.0
"""Seconds for a stop. Then the process ends without waiting for its threads (docs/operating.md promises ten)."""

LOOK_EVERY = 0.1

NUMBERS = (signal.SIGINT, signal.SIGTERM)


def install() -> None:
    """Let signals end a command that runs no flow: 130 after SIGINT, 143 after SIGTERM."""
    for number in NUMBERS:
        signal.signal(number, _exit)


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


@contextmanager
def stopping(stop: Stop, give_up: Callable[[str], None]) -> Iterator[None]:
    """Let signals request a stop while a flow runs. If any stop takes too long, ``give_up`` gets its reason, which may
    also be a cancel or suspend in the UI, and the process ends.
    """
    asked: list[int] = []
    over = threading.Event()
    before = {number: signal.signal(number, lambda number, _: asked.append(number)) for number in NUMBERS}
    threading.Thread(target=_serve, args=(stop, asked, over, give_up), name="signals", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        for number, handler in before.items():
            signal.signal(number, handler)


def _serve(stop: Stop, asked: list[int], over: threading.Event, give_up: Callable[[str], None]) -> None:
    while not (asked or stop.requested):
        if over.wait(LOOK_EVERY):
            return
    reason, seen = signal.Signals(asked[0]).name if asked else stop.reason or "", len(asked)
    shown = "Ctrl-C" if reason == signal.SIGINT.name else reason
    print_line(f"{shown}: stopping after this file, within {STOP_SECONDS:.0f} s; repeat to end at once", err=True)
    stop.request(reason)
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline and len(asked) == seen:
        if over.wait(LOOK_EVERY):
            return
    give_up(reason)
    os._exit(exit_code_of(reason))


def exit_code_of(reason: str | None) -> int:
    """Return the exit code of a stopped run: 143 after SIGTERM, 130 after SIGINT and a suspend, 1 after a cancel."""
    return {"SIGTERM": 143, "cancel": 1}.get(reason or "", 130)
