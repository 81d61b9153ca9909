"""Work that does what its items say, for ``test_processes.py``. It imports little: each process imports it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from tasks.shared.errors import DataError, ServiceBusyError
from tasks.shared.progress import RequestStats
from tasks.shared.stop import Stop

CANARY = "CANARY-Mustermann"

Question = tuple[str, int]
"""What to do, and a number."""
Reply = tuple[int, int, bytes]
"""Process, the number, and some bytes."""

log = logging.getLogger("sluice.script")


def refused(_: int) -> NoReturn:
    import httpx

    from tasks.shared.http.answer import Answer, RefusedError

    error = RefusedError("service-refused", "no", context="a.ndjson:7", hint="mend it", status=422)
    error.answer = Answer(422, httpx.Headers({"retry-after": "7"}), CANARY.encode())
    raise error


def busy(_: int) -> NoReturn:
    raise ServiceBusyError("service-busy", "later", operation="x", status=429, retry_after=1.5)


def defect(_: int) -> NoReturn:
    raise KeyError(CANARY)


def error_with_lock(_: int) -> NoReturn:
    error = DataError("not-json", "x: y")
    error.details = {"lock": threading.Lock()}
    raise error


def log_error(_: int) -> None:
    try:
        defect(0)
    except KeyError:
        log.exception("it failed")


ACTIONS: dict[str, Callable[[int], Any]] = {
    "refused": refused,
    "busy": busy,
    "defect": defect,
    "error-lock": error_with_lock,
    "result-lock": lambda _: threading.Lock(),
    "log": lambda number: log.warning("%s: line %d", "script", number),
    "log-lock": lambda _: log.warning("%s: %s", "script", threading.Lock(), extra={"lock": threading.Lock()}),
    "log-error": log_error,
    "leave": lambda _: sys.exit(CANARY),
    "die": lambda _: os.kill(os.getpid(), signal.SIGKILL),
}


@dataclass(frozen=True)
class Script:
    """Does what the items say; ``secret`` stands for credentials."""

    secret: str = "made-up"

    @contextmanager
    def opened(self, *, slots: int, stop: Stop, stats: RequestStats) -> Iterator[Callable[[Question], Reply]]:
        def work(item: Question) -> Reply:
            what, number = item
            stats.record(0.01 * number, retry=what == "repeat")
            if what == "wait":
                stop.sleep(3600)
            result: Reply | None = ACTIONS[what](number) if what in ACTIONS else None
            return result or (os.getpid(), number, b"x" * (number if what == "large" else 1))

        yield work


class Locked(Script):
    """Cannot be taken up in another process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("locked")


class Unopened(Script):
    """Cannot be opened."""

    def opened(self, **_: object) -> NoReturn:
        raise ValueError(CANARY)
