"""The end of the local Prefect server under a command that uses it: noticed within seconds, said, exit code 3.

Prefect's own client would try again for minutes before it gave up. A job's files are safe at any moment, as after a
``kill -9``; with its record gone away there is nothing to wait for, and ``continue`` starts another server.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flows.engine.api_address import ApiAddress
from flows.engine.server.announced import announced
from flows.engine.server.start import is_alive
from flows.output import say
from tasks.shared.errors import NetworkError, SluiceError, StorageError

LOOK_EVERY = 0.1
"""Seconds between two looks at the lock of the server, which the kernel releases when it ends (some microseconds each).

So long another listener at the dead server's port could be sent the secret by clients that connect anew.
"""

Farewell = Callable[[SluiceError], None]

_farewell: Farewell | None = None


@contextmanager
def last_words(farewell: Farewell) -> Iterator[None]:
    """Call ``farewell`` before the process ends, if the server dies meanwhile; in another thread."""
    global _farewell
    before, _farewell = _farewell, farewell
    try:
        yield
    finally:
        _farewell = before


@contextmanager
def watched(address: ApiAddress) -> Iterator[None]:
    """While the context lasts, end this process when the server at ``address`` ends. Other APIs are not watched."""
    if address.home is None:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(address, address.home, over), name="server-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(address: ApiAddress, home: Path, over: threading.Event) -> None:
    while not over.wait(LOOK_EVERY):
        # Without file descriptors, say, nobody knows; that is no death.
        with suppress(StorageError):
            if not is_alive(home) or _replaced(address, home):
                end(home)


def _replaced(address: ApiAddress, home: Path) -> bool:
    """Whether another command has started another server meanwhile."""
    found = announced(home)
    return found is not None and found.url != address.url


def end(home: Path) -> None:
    """Say what happened and end the process."""
    error = NetworkError(
        "prefect-server-lost", "the local Prefect server ended while it was in use",
        context=f"its log: {home / 'server.log'}",
        hint="run the command again, or continue the job: another server is started; what was done counts",
    )  # fmt: skip
    try:
        if _farewell is not None:
            try:
                _farewell(error)
            except Exception as failed:  # noqa: BLE001 - the process ends in any case
                say(f"warning: the end could not be told in the job's files ({type(failed).__name__})", err=True)
        say(error.render(), err=True)
    finally:
        os._exit(error.exit_code)
