"""Serve an ASGI application on loopback: in a thread for tests, several together for the sandbox.

Every server listens on 127.0.0.1 only: sandbox services must not be reachable from other machines.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from deployments.sandbox.common.connection import SandboxProtocol

HOST = "127.0.0.1"
KEEP_ALIVE = 75
"""Seconds an idle connection stays open; longer than the pause of any tested client, to avoid races."""
GRACE = 1
"""Seconds that requests in progress get when a server stops."""

ERROR_PREFIX = "error[sandbox]: "
"""Prefix of a start error, in the form of the program's error messages."""


class SandboxStartError(Exception):
    """A service could not be started. The message names the service and the reason, without data."""


class SandboxServer(uvicorn.Server):
    """A uvicorn server without signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Install no handlers: the host or the test handles signals."""
        yield


@dataclass(frozen=True)
class Certificate:
    """Files for TLS: certificate chain and private key, both PEM."""

    chain: Path
    key: Path


@dataclass(frozen=True)
class Served:
    """A running server."""

    url: str
    """Root URL without a trailing slash, for example ``http://127.0.0.1:40123``."""
    port: int


def bind(port: int = 0) -> socket.socket:
    """Return a listening socket on 127.0.0.1; port 0 chooses a free port. Raises ``SandboxStartError`` if the port is
    in use."""
    # With an explicit protocol asyncio switches Nagle's algorithm off. Otherwise each small answer takes 40 ms longer.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(256)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else "it is not between 0 and 65535"
        raise SandboxStartError(f"port {port} of {HOST} cannot be used: {reason}") from None
    return listener


def make_server(app: Any, certificate: Certificate | None = None, *, lifespan: bool = True) -> SandboxServer:
    """Return a server for an ASGI application, without an access log (paths contain identifiers)."""
    config = uvicorn.Config(
        app,
        http=SandboxProtocol,
        ws="none",
        loop="asyncio",
        lifespan="auto" if lifespan else "off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=str(certificate.chain) if certificate else None,
        ssl_keyfile=str(certificate.key) if certificate else None,
    )
    return SandboxServer(config)


@contextlib.contextmanager
def serve_in_thread(
    app: Any, *, port: int = 0, certificate: Certificate | None = None, start_timeout: float = 20.0
) -> Iterator[Served]:
    """Serve an ASGI application over real HTTP on loopback while the block runs.

    Runs the application's lifespan. At the end of the block the server has stopped and its port is free. Requests in
    progress get one second, stalled ones end at once. Raises ``SandboxStartError`` if the server does not start.
    """
    listener = bind(port)
    server = make_server(app, certificate)
    scheme = "https" if certificate else "http"
    chosen: int = listener.getsockname()[1]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name=f"sandbox-{chosen}", daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + start_timeout
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                raise SandboxStartError("the service did not start")
            time.sleep(0.005)
        yield Served(url=f"{scheme}://{HOST}:{chosen}", port=chosen)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
