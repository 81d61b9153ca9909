"""Check whether the local Prefect server lives, and end a command within seconds when it dies (exit code 3).

Prefect's own client would retry for minutes. A job's files are safe at any moment, as after a ``kill -9``; without its
record there is nothing to wait for, and ``continue`` starts another server.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from flows.engine.api_address import ApiAddress
from flows.engine.server.proof import (
    PROOF_SECONDS,
    START_TIMEOUT,
    STARTED,
    NotProvedError,
    announced,
    prove,
    read_secret,
)
from flows.output import print_line
from tasks.shared.errors import NetworkError, SluiceError, StorageError, storage_error

LOOK_EVERY = 0.1
"""Seconds between two checks of the server's lock, which the kernel releases when it ends (some microseconds each).

For this time, reconnecting clients could send the secret to another listener at the dead server's port.
"""

Farewell = Callable[[SluiceError], None]

_farewell: Farewell | None = None


def is_alive(home: Path) -> bool:
    """Return whether a server process of this jobs directory lives, as the kernel shows by its lock.

    Raises:
        StorageError: the lock cannot be checked, for example without free file descriptors.
    """
    return _state(home) is not None


def _state(home: Path) -> bytes | None:
    """Return the live server's content of its lock file, ``STARTED`` or blanks; ``None`` without a server.

    Raises the errors of ``is_alive``.
    """
    try:
        with (home / "server.lock").open("rb") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return handle.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise storage_error(error, home / "server.lock") from None
    return None


def find(home: Path, *, wait: bool = True) -> ApiAddress | None:
    """Return the address of this jobs directory's server when it has proved itself; ``None`` when none lives.

    Wait for a starting server; without ``wait``, return its address at once, without proof.

    Raises:
        NetworkError: one lives and has not proved itself, ``PROOF_SECONDS`` long or, while it starts,
            ``START_TIMEOUT``.
    """
    starts = _state(home) not in {STARTED, None}
    deadline = time.monotonic() + (START_TIMEOUT if starts and wait else PROOF_SECONDS)
    while is_alive(home):
        try:
            address = _announced(home)
            if wait or not starts:
                prove(address.secret or "", address.port, seconds=max(0.1, deadline - time.monotonic()))
        except NotProvedError as error:
            if time.monotonic() > deadline - 0.1:
                raise _silent(home, str(error)) from None
        else:
            return address
        time.sleep(0.05)
    return None


def _announced(home: Path) -> ApiAddress:
    """Return the address in ``server.json``, unchecked."""
    secret, found = read_secret(home), announced(home)
    try:
        port = urlsplit(found.url).port if found is not None else None
    except ValueError:
        port = None
    if secret is None or not port:
        raise NotProvedError("its address or its secret is gone from that directory")
    return ApiAddress.local(home, port, secret)


def _silent(home: Path, why: str) -> NetworkError:
    found = announced(home)
    process = f"process {found.pid}" if found is not None else "a process"
    return NetworkError(
        "prefect-server-silent", f"the Prefect server of this jobs directory does not answer: {why}",
        context=f"{process} holds {home / 'server.lock'}",
        hint="wait, or end that process (kill), then run the command again: it starts another server",
    )  # fmt: skip


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
    """End this process when the server at ``address`` ends, while the context lasts. Other APIs are not watched."""
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
        # An error (no file descriptors) does not prove a dead server.
        with suppress(StorageError):
            if not is_alive(home) or _replaced(address, home):
                end(home)


def _replaced(address: ApiAddress, home: Path) -> bool:
    """Return whether another command has started another server meanwhile."""
    found = announced(home)
    return found is not None and found.url != address.url


def end(home: Path) -> None:
    """Print the reason and end the process."""
    error = NetworkError(
        "prefect-server-lost", "the local Prefect server ended while it was in use",
        context=f"its log: {home / 'server.log'}",
        hint="run the command again, or continue the job: another server is started; completed work is kept",
    )  # fmt: skip
    try:
        if _farewell is not None:
            try:
                _farewell(error)
            except Exception as failed:  # noqa: BLE001 - the process ends in any case
                print_line(f"warning: the job's files do not record the end ({type(failed).__name__})", err=True)
        print_line(error.render(), err=True)
    finally:
        os._exit(error.exit_code)
