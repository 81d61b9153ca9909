"""Serve ASGI applications over real HTTP on loopback, with uvicorn."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final

import uvicorn

from deployments.sandbox.child import SandboxStartError
from deployments.sandbox.service import SandboxService

HOST: Final = "127.0.0.1"
_GRACE: Final = 1
"""Seconds that requests in progress get when a server stops."""
_KEEP_ALIVE: Final = 75
"""Seconds an idle connection stays open: longer than the pause of any tested client, to avoid races."""


class SandboxServer(uvicorn.Server):
    """A uvicorn server without signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Install no handlers: the host or the test handles signals."""
        yield


@dataclass(frozen=True)
class Served:
    """A running server. ``url`` has no trailing slash."""

    url: str


def bind(port: int = 0) -> socket.socket:
    """Return a listening socket on 127.0.0.1; 0 chooses a free port. Raises ``SandboxStartError``."""
    # With an explicit protocol asyncio switches Nagle's algorithm off. Otherwise each small answer takes 40 ms longer.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(256)
    except OSError as error:
        listener.close()
        raise SandboxStartError(f"port {port} of {HOST} cannot be used: {error.strerror}") from None
    return listener


def make_server(app: Any) -> SandboxServer:
    """Return a server for an ASGI application, without an access log (paths contain identifiers)."""
    config = uvicorn.Config(
        app, http="h11", ws="none", loop="asyncio", lifespan="off", log_config=None, log_level="critical",
        access_log=False, server_header=False, timeout_keep_alive=_KEEP_ALIVE, timeout_graceful_shutdown=_GRACE,
    )  # fmt: skip
    return SandboxServer(config)


@contextlib.contextmanager
def serve_in_thread(service: SandboxService, *, port: int = 0) -> Iterator[Served]:
    """Serve a service while the block runs. Raises ``SandboxStartError`` if it does not start."""
    with service.opened(), contextlib.closing(bind(port)) as listener:
        server = make_server(service)
        chosen: int = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            while not server.started:
                if not thread.is_alive():
                    raise SandboxStartError("the service did not start")
                time.sleep(0.005)
            yield Served(f"http://{HOST}:{chosen}")
        finally:
            server.should_exit = True
            thread.join()
