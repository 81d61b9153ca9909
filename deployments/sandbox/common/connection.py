"""The TCP connection below a request, so that a sandbox service can misbehave as real networks do.

ASGI has whole answers only. A cut, a reset or a stall happens in the layer below, so the protocol class here hands
the connection to the application in ``scope["state"]``.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

STATE_KEY = "connection"
_ABORT_ON_CLOSE = struct.pack("ii", 1, 0)


class Connection:
    """One client connection: raw writes, an orderly end, a reset."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.held = False
        """Whether a fault keeps this connection open without intending to answer; a shutdown then does not
        wait for it."""

    @property
    def closing(self) -> bool:
        """Whether either side has ended the connection."""
        return self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send bytes as they are, around HTTP framing."""
        self._transport.write(data)

    def close(self) -> None:
        """End the connection in order (FIN) after what was written has left."""
        self._transport.close()

    def reset(self) -> None:
        """End the connection with RST: the peer sees "connection reset"."""
        sock: socket.socket | None = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT_ON_CLOSE)
        self._transport.abort()


class SandboxProtocol(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, with the connection in ``scope["state"]["connection"]``."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, dict(app_state), _loop)
        self._connection: Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the connection for the requests that will come over it."""
        stream = cast("asyncio.Transport", transport)
        self._connection = Connection(stream)
        self.app_state[STATE_KEY] = self._connection
        super().connection_made(stream)

    def shutdown(self) -> None:
        """End the connection when the server stops, at once where a fault holds it open."""
        if self._connection is not None and self._connection.held:
            self.transport.abort()
        else:
            super().shutdown()
