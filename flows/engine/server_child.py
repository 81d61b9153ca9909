"""The embedded Prefect server: its own process, which ends when nobody uses it any more.

Run as ``python -m flows.engine.server_child HOME --listener FD --lock FD`` with a listening socket: whoever starts it
knows its address at once, and imports Prefect while the server does. The users of the server hold a shared ``flock`` on
``HOME/clients.lock``; the kernel releases it however they end, ``kill -9`` included. Unless ``server.json`` says that
it stays, a thread of the server waits for the exclusive lock, and having it means that the last user is gone.

``HOME/server.json`` (0600) tells users where the server is; it goes when the server ends. ``HOME/server.lock`` is
locked by the server as long as it lives: that is how others tell one that died from one that does not answer. Whoever
asks is answered the challenge of ``server_proof.py`` from the first moment on, so that a server that starts is no
silent socket.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO

from flows.engine.server_door import Door
from flows.engine.server_file import announced, withdraw
from flows.engine.server_proof import HELD_SECONDS, PROOF_PATH, State, answer, read_secret

LOOK_EVERY = 0.5
"""Seconds before the watch begins, and between two looks of a server that stays."""

GRACE_SECONDS = 8.0
"""How long the server may take to write down what it still holds before it is ended."""


def wait_for_last_client(home: Path) -> None:
    """Block until no process holds the shared lock on ``HOME/clients.lock``, and keep newcomers out."""
    handle = (home / "clients.lock").open("a+b")
    fcntl.flock(handle, fcntl.LOCK_EX)
    # Kept open on purpose: a newcomer waits until this process is gone, then starts a server of its own.
    _held.append(handle)


_held: list[IO[bytes]] = []


def watch(home: Path) -> None:
    """End the server when its last user is gone, unless ``server.json`` says that it stays."""
    while True:
        time.sleep(LOOK_EVERY)
        if stays(home):
            continue
        wait_for_last_client(home)
        if not stays(home):
            end(home)
        _held.pop().close()


def stays(home: Path) -> bool:
    """Whether the server is to stay without users: ``server start`` says so, also of one that runs already."""
    found = announced(home)
    return found is not None and found.stay


def end(home: Path) -> None:
    """Stop the server: politely first, for certain after ``GRACE_SECONDS``."""
    withdraw(home, os.getpid())
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


class Starting(ThreadingHTTPServer):
    """Answers on ``listener`` while Prefect is being imported: proofs, and 503 to everything else."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, secret: str) -> None:
        address = listener.getsockname()
        self._opened = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(handler) -> None:  # noqa: N805 - self is the server
                path, _, query = handler.path.partition("?")
                proof = answer(secret, address[1], query, self._state) if path == PROOF_PATH else None
                handler.send_response(200 if proof else 503)
                handler.send_header("Content-Length", str(len(proof or b"")))
                handler.end_headers()
                handler.wfile.write(proof or b"")

            do_POST = do_PATCH = do_PUT = do_DELETE = do_HEAD = do_GET  # noqa: N815 - the library's names

            def log_message(handler, format: str, *args: object) -> None:  # noqa: A002, N805 - the library's name
                """Say nothing."""

        super().__init__(address, Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener.dup()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def _state(self, wait: bool) -> State:
        # Also when it has just started: only the server itself says that it is ready, when it has begun to work.
        # Prefect takes seconds to stop again when it is asked to in the moment before.
        self._opened.wait(HELD_SECONDS if wait else 0)
        return "starting"

    def give_way(self) -> None:
        """Answer no more; who connects from now on waits for the server, and who waited here may ask it now."""
        self._opened.set()
        self.shutdown()
        self.server_close()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until asked to stop."""
    parser = argparse.ArgumentParser(prog="flows.engine.server_child")
    parser.add_argument("home", type=Path)
    parser.add_argument("--listener", type=int, required=True)
    parser.add_argument("--lock", type=int, required=True, help="kept open as long as the process lives")
    args = parser.parse_args(argv)
    os.umask(0o077)
    home: Path = args.home

    listener = socket.socket(fileno=args.listener)
    secret = read_secret(home)
    if secret is None:
        sys.stderr.write(f"{home} holds no secret that only this user knows\n")
        return 1
    starting = Starting(listener, secret)
    # Here, not in the environment that the process was started with: Prefect's own check behind the door.
    os.environ["PREFECT_SERVER_API_AUTH_STRING"] = secret

    threading.Thread(target=watch, args=(home,), daemon=True).start()

    import prefect
    import uvicorn

    # Prefect copies its UI before it serves it: beside the original, unless nothing may be written there.
    if not os.access(prefect.__ui_static_subpath__.parent, os.W_OK):
        prefect.__ui_static_subpath__ = home / "ui"
    # Without its files Prefect serves no second UI and offers none: its pages call an analytics host.
    prefect.__ui_v2_static_path__ = home / "no-ui-v2"

    from prefect.server.api import collections
    from prefect.server.api.server import create_app

    # Lists of kinds of workers and blocks: from the package, not from Prefect's repository on the internet.
    collections.KNOWN_VIEWS.update(dict.fromkeys(collections.KNOWN_VIEWS, "none:"))
    door = Door(create_app(), port=listener.getsockname()[1], secret=secret, opened=starting.give_way)
    config = uvicorn.Config(
        door,
        lifespan="on",
        log_level="warning",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=30,
    )
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        withdraw(home, os.getpid())
    return 0


if __name__ == "__main__":
    sys.exit(main())
