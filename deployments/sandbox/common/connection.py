"""Access to the TCP connection of a request, so that a sandbox service can simulate network failures.

ASGI has no means to truncate, reset or stall a response. The protocol class here passes the connection to the
application in ``scope["state"]``. An ``HttpExchange`` is one request with its connection, as a fault needs them.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, cast

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
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
        """True if a fault keeps the connection open without a response; a shutdown does not wait for it."""

    @property
    def closing(self) -> bool:
        """True if either side has closed the connection."""
        return self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send bytes without HTTP framing."""
        self._transport.write(data)

    def close(self) -> None:
        """Close the connection (FIN) after all written data is sent."""
        self._transport.close()

    def reset(self) -> None:
        """Close the connection with RST: the client sees "connection reset"."""
        sock: socket.socket | None = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT_ON_CLOSE)
        self._transport.abort()


class SandboxProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol, with the connection in ``scope["state"]["connection"]``."""

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
        """Store the connection for the requests that arrive on it."""
        stream = cast("asyncio.Transport", transport)
        self._connection = Connection(stream)
        self.app_state[STATE_KEY] = self._connection
        super().connection_made(stream)

    def shutdown(self) -> None:
        """Close the connection when the server stops, immediately if a fault holds it open."""
        if self._connection is not None and self._connection.held:
            self.transport.abort()
        else:
            super().shutdown()


async def read_body(receive: Receive) -> bytes | None:
    """Return the whole request body, or None if the client disconnected early."""
    try:
        return await Request({"type": "http"}, receive).body()
    except ClientDisconnect:
        return None


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that first returns a body that was already read, then uses the original."""
    waiting = True

    async def again() -> Message:
        nonlocal waiting
        if waiting:
            waiting = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again


class HttpExchange:
    """A request that can be answered by the application, by ASGI messages, by raw bytes, or not at all."""

    def __init__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        self._app = app
        self.scope = scope
        self.receive = receive
        self.send = send
        self.connection: Connection = scope["state"][STATE_KEY]
        self.wrote: int | None = None
        """Status that was written directly to the connection instead of by ASGI."""

    async def run(self, send: Send | None = None) -> None:
        """Let the application handle the request; ``send`` receives the response instead of the client."""
        await self._app(self.scope, self.receive, send or self.send)

    async def answer(self) -> tuple[Message, bytes]:
        """Let the application handle the request; return the start message and body of its response."""
        start: Message = {}
        parts: list[bytes] = []

        async def collect_message(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                parts.append(message.get("body", b""))

        await self.run(collect_message)
        return start, b"".join(parts)

    async def respond(self, response: Response) -> None:
        """Respond instead of the application."""
        await response(self.scope, self.receive, self.send)

    async def drain(self) -> None:
        """Read the request body and discard it."""
        await read_body(self.receive)

    async def wait_until_closed(self) -> None:
        """Wait until the connection is closed."""
        while not self.connection.closing:
            if (await self.receive())["type"] == "http.disconnect":
                return
        # The transport notifies the protocol on the next turn of the loop; uvicorn would otherwise answer 500.
        while (await self.receive())["type"] != "http.disconnect":
            pass
