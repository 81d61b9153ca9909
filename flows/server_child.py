"""The embedded Prefect server: its own process, which ends when nobody uses it any more.

Run as ``python -m flows.server_child HOME --listener FD [--stay]`` with a listening socket: whoever starts the server
knows its address at once, and imports Prefect while the server does. The users of the server hold a shared ``flock``
on ``HOME/clients.lock``; the kernel releases it however they end, ``kill -9`` included. Unless ``--stay`` is given, a
thread of the server waits for the exclusive lock, and having it means that the last user is gone.

``HOME/server.json`` (0600) tells users where the server is. It exists only while the server answers.
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


def end(home: Path) -> None:
    """Stop the server: politely first, for certain after ``GRACE_SECONDS``."""
    (home / "server.json").unlink(missing_ok=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def announce(home: Path, port: int, *, stay: bool) -> None:
    """Write ``server.json`` by rename, readable by this user only."""
    part = home / "server.json.part"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump({"url": f"http://127.0.0.1:{port}/api", "pid": os.getpid(), "stay": stay}, file)
    part.replace(home / "server.json")


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
    port = listener.getsockname()[1]

    if not args.stay:
        threading.Thread(target=watch, args=(home,), daemon=True).start()

    import uvicorn

    class Announcing(uvicorn.Server):
        """Tells where it is once it answers, and no longer when it stops."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if not self.should_exit:
                announce(home, port, stay=args.stay)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            with contextlib.suppress(FileNotFoundError):
                (home / "server.json").unlink()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        "prefect.server.api.server:create_app",
        factory=True,
        log_level="warning",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=30,
    )
    Announcing(config).run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
