"""One slow server for all worker processes of a test session."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

PATIENCE = 280.0
"""Seconds that whoever runs a server waits, at the end of its own tests, for the others to finish theirs."""


@contextmanager
def for_all_workers(place: Path, start: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    """Yield the URL of the server that ``start`` runs, shared by all processes that name the same directory ``place``.

    Whoever comes first runs it, while the others wait, and keeps it until nobody uses it any more.
    """
    place.mkdir(exist_ok=True)
    server = ExitStack()
    url, mine = place / "url", place / f"user-{os.getpid()}"
    with _locked(place):
        if theirs := url.exists():
            mine.touch()
        else:
            url.write_text(server.enter_context(start()))
    try:
        yield url.read_text()
    finally:
        if theirs:
            with _locked(place):
                mine.unlink()
        else:
            deadline = time.monotonic() + PATIENCE
            while not _ended(place, server, deadline):
                time.sleep(0.1)


def _ended(place: Path, server: ExitStack, deadline: float) -> bool:
    """End the server if nobody uses it any more, or has used it for too long."""
    with _locked(place):  # who came before is seen here, who comes later starts another one
        if any(map(_lives, place.glob("user-*"))) and time.monotonic() < deadline:
            return False
        (place / "url").unlink()
        server.close()
        return True


def _lives(user: Path) -> bool:
    try:
        os.kill(int(user.name.removeprefix("user-")), 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    with (place / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
