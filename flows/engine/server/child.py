"""The embedded Prefect server: a process that ends after its last user.

Run as ``python -m flows.engine.server.child HOME --listener FD --lock FD`` with a listening socket: the process that
starts it has the address at once, and imports Prefect while the server does. The users of the server hold a shared
``flock`` on ``HOME/clients.lock``; the kernel releases it however they end, including ``kill -9``. Unless
``server.json`` has ``stay`` set, a thread of the server waits for the exclusive lock, which it gets when the last user
is gone. If a user requested it (``Announced.linger``), the server then lingers for the next commands.

``HOME/server.json`` (0600) gives users the address and is removed when the server ends. The server holds
``HOME/server.lock`` while it lives, so that others can distinguish a dead server from a silent one. It writes to
that file when it has started; earlier requests wait in the queue of its socket. When its directory is removed, the
server ends at once and writes nothing more.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import itertools
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flows.engine import patches, uncollected
from flows.engine.patches import UnfitPrefectError
from flows.engine.server.auth import RequestGuard
from flows.engine.server.database import DATABASE, MIGRATE, is_to_be_made, make
from flows.engine.server.proof import STARTED, announce, announced, read_secret, withdraw
from tasks.shared.errors import StorageError
from tasks.shared.files.out_file import open_lock

LOOK_EVERY = 0.2
"""Seconds before the watch begins, and between two checks of a server without users."""

COLLECT_EVERY = 1.0
"""Seconds between two collections of young garbage."""
_WHOLE_EACH = 60
"""Every 60th collection is a full one, which blocks all requests for a fifth of a second."""

GRACE_SECONDS = 8.0
"""Seconds that the server may take to write pending data before it is ended."""


class Watch:
    """Thread that ends the server: after its last user and the time it lingers, or when its directory is removed."""

    def __init__(self, home: Path, lock: int) -> None:
        self.home = home
        self._lock = lock
        self._clients = open_lock(home / "clients.lock")
        self._until = 0.0

    def run(self) -> None:
        """Wait until the server must end, and end it."""
        while True:
            time.sleep(LOOK_EVERY)
            if self._is_removed():
                os._exit(0)
            if stays(self.home):
                continue
            fcntl.flock(self._clients, fcntl.LOCK_EX)  # waits for the last user, and keeps newcomers out
            if self._is_removed():
                os._exit(0)
            if not self._goes_on():
                # Locked still: a newcomer waits until this process has ended, then starts a server.
                end(self.home)
            fcntl.flock(self._clients, fcntl.LOCK_UN)

    def _is_removed(self) -> bool:
        """Return whether the directory is gone or replaced; then it must not be written."""
        try:
            there, ours = (self.home / "server.lock").stat(), os.fstat(self._lock)
        except FileNotFoundError:
            return True
        except OSError:
            return False  # unknown
        return (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)

    def _goes_on(self) -> bool:
        """Return whether the server continues without users. The time to linger starts now and is written down."""
        found = announced(self.home)
        if found is None or found.stay:
            return found is not None
        if found.linger:
            self._until = max(self._until, time.monotonic() + found.linger)
        left = self._until - time.monotonic()
        if left <= 0:
            return False
        if found.until is None:
            try:
                announce(self.home, msgspec.structs.replace(found, linger=0.0, until=time.time() + left))
            except StorageError:
                return False
        return True


def stays(home: Path) -> bool:
    """Return whether ``server start`` keeps the server running without users."""
    found = announced(home)
    return found is not None and found.stay


def end(home: Path) -> None:
    """Stop the server: by SIGTERM, after ``GRACE_SECONDS`` by SIGKILL."""
    withdraw(home, os.getpid())
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def collect_apart(every: float = COLLECT_EVERY) -> None:
    """Collect garbage only in a separate thread.

    A request that is cut off leaves a cursor of SQLite in a cycle. Finalizing it takes the lock of its connection,
    which another thread holds while it waits up to a minute for the database. In the thread of the event loop, this
    would block all requests, including the one that ends the wait.
    """

    def collect() -> None:
        for number in itertools.count(1):
            time.sleep(every)
            gc.collect(2 if number % _WHOLE_EACH == 0 else 1)

    gc.disable()
    threading.Thread(target=collect, daemon=True).start()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until asked to stop."""
    parser = argparse.ArgumentParser(prog="flows.engine.server.child")
    parser.add_argument("home", type=Path)
    parser.add_argument("--listener", type=int, required=True)
    parser.add_argument("--lock", type=int, required=True, help="kept open as long as the process lives")
    args = parser.parse_args(argv)
    os.umask(0o077)
    home: Path = args.home

    listener = socket.socket(fileno=args.listener)
    secret = read_secret(home)
    if secret is None:
        sys.stderr.write(f"{home} has no secret that only this user can read\n")
        return 1
    # For Prefect's check, after ours. Set here, so that it is not in the environment of the process.
    os.environ["PREFECT_SERVER_API_AUTH_STRING"] = secret

    threading.Thread(target=Watch(home, args.lock).run, daemon=True).start()

    new = is_to_be_made(home)
    if new:
        os.environ[MIGRATE] = "false"  # it is made here, so that a copy can be kept
    try:
        with uncollected():
            import uvicorn

            patches.require("server")
            from flows.engine.server.app import application

            app = application(home)
            if new:
                make(home / DATABASE)
    except UnfitPrefectError as unfit:
        sys.stderr.write(f"{unfit.render()}\n")
        return unfit.exit_code
    except BaseException:
        withdraw(home, os.getpid())
        raise

    def opened() -> None:
        # Not before: Prefect takes seconds to stop again when it is asked to in the moment before.
        os.pwrite(args.lock, STARTED, 0)

    guard = RequestGuard(app, port=listener.getsockname()[1], secret=secret, opened=opened)
    config = uvicorn.Config(
        guard,
        lifespan="on",
        log_level="warning",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=30,
    )
    collect_apart()
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        withdraw(home, os.getpid())
    return 0


if __name__ == "__main__":
    sys.exit(main())
