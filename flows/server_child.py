"""The embedded Prefect server: its own process, which ends when nobody uses it any more.

Run as ``python -m flows.server_child HOME --listener FD [--stay]`` with a listening socket: whoever starts the server
knows its address at once, and imports Prefect while the server does. The users of the server hold a shared ``flock``
on ``HOME/clients.lock``; the kernel releases it however they end, ``kill -9`` included. Unless ``--stay`` is given, a
thread of the server waits for the exclusive lock, and having it means that the last user is gone.

``HOME/server.json`` (0600) tells users where the server is; it goes when the server ends.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

GRACE_SECONDS = 8.0
"""How long the server may take to write down what it still holds before it is ended."""


def wait_for_last_client(home: Path) -> None:
    """Block until no process holds the shared lock on ``HOME/clients.lock``, and keep newcomers out."""
    handle = (home / "clients.lock").open("a+b")
    fcntl.flock(handle, fcntl.LOCK_EX)
    # Kept open on purpose: a newcomer waits until this process is gone, then starts a server of its own.
    _held.append(handle)


_held: list[object] = []


def watch(home: Path) -> None:
    """End the server when its last user is gone."""
    wait_for_last_client(home)
    end(home)


def withdraw(home: Path) -> None:
    """Remove ``server.json``, unless it tells of another server by now."""
    path = home / "server.json"
    with contextlib.suppress(OSError, ValueError, KeyError):
        if json.loads(path.read_text())["pid"] == os.getpid():
            path.unlink()


def end(home: Path) -> None:
    """Stop the server: politely first, for certain after ``GRACE_SECONDS``."""
    withdraw(home)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until asked to stop."""
    parser = argparse.ArgumentParser(prog="flows.server_child")
    parser.add_argument("home", type=Path)
    parser.add_argument("--listener", type=int, required=True)
    parser.add_argument("--stay", action="store_true")
    args = parser.parse_args(argv)
    os.umask(0o077)
    home: Path = args.home

    listener = socket.socket(fileno=args.listener)

    if not args.stay:
        threading.Thread(target=watch, args=(home,), daemon=True).start()

    import uvicorn

    config = uvicorn.Config(
        "prefect.server.api.server:create_app",
        factory=True,
        log_level="warning",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=30,
    )
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        withdraw(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
