"""Serves an ASGI application on loopback: in a thread for tests, several side by side for the sandbox.

Every server binds 127.0.0.1 and nothing else: sandbox services are not made to be reached from other
machines.
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
"""Seconds an idle connection stays open; longer than the pause of any client under test, so that no race
disturbs it."""
GRACE = 1
"""Seconds that requests in progress get when a server stops."""

COMPLAINT = "error[sandbox]: "
"""Before what a service could not do, in the form that the errors of the program have."""


class SandboxStartError(Exception):
    """A service could not be started; the message says which and why, without data."""


class SandboxServer(uvicorn.Server):
    """A uvicorn server that leaves signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Install no handler: the host, or the test, owns the process."""
        yield


@dataclass(frozen=True)
class Certificate:
    """Files for TLS: certificate chain and private key, both PEM."""

    chain: Path
    key: Path


@dataclass(frozen=True)
class Served:
    """A running server: where it answers."""

    url: str
    """Root URL without a trailing slash, for example ``http://127.0.0.1:40123``."""
    port: int


def bind(port: int = 0) -> socket.socket:
    """A listening socket on 127.0.0.1; port 0 takes a free one. Raises ``SandboxStartError`` when the port is
    taken."""
    # With the protocol named, asyncio switches Nagle's algorithm off; without, each small answer takes 40 ms longer.
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
    """A server for an ASGI application, quiet, without access log (paths hold identifiers)."""
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

    The application's lifespan is run. When the block ends the server has stopped and its port is free:
    requests in progress get one second, held ones (stalls) nothing. Raises ``SandboxStartError`` when it does
    not come up.
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
