"""The TCP connection below a request, so that a sandbox service can misbehave as real networks do.

ASGI has whole answers only. A cut, a reset or a stall happens in the layer below, so the protocol class here hands
the connection to the application in ``scope["state"]``. An ``Exchange`` is one request on its way through a service,
with the handles that a fault needs.
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


async def read_body(receive: Receive) -> bytes | None:
    """The whole request body; None when the client left before its end."""
    try:
        return await Request({"type": "http"}, receive).body()
    except ClientDisconnect:
        return None


def replay(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that hands out a body that was read already, then goes on with the original."""
    waiting = True

    async def again() -> Message:
        nonlocal waiting
        if waiting:
            waiting = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again


class HttpExchange:
    """A request and the ways to answer it: by the application, by ASGI messages, by raw bytes, not at all."""

    def __init__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        self._app = app
        self.scope = scope
        self.receive = receive
        self.send = send
        self.connection: Connection = scope["state"][STATE_KEY]
        self.wrote: int | None = None
        """Status of a head that was written past ASGI."""

    async def run(self, send: Send | None = None) -> None:
        """Let the application handle the request; ``send`` gets its answer instead of the client."""
        await self._app(self.scope, self.receive, send or self.send)

    async def answer(self) -> tuple[Message, bytes]:
        """Let the application handle the request and keep its whole answer: start message and body."""
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
        """Answer in place of the application."""
        await response(self.scope, self.receive, self.send)

    async def drain(self) -> None:
        """Read the request's body and forget it."""
        await read_body(self.receive)

    async def wait_until_closed(self) -> None:
        """Wait until the connection has ended."""
        while not self.connection.closing:
            if (await self.receive())["type"] == "http.disconnect":
                return
        # The transport tells the protocol on the next turn of the loop; without it uvicorn would answer 500.
        while (await self.receive())["type"] != "http.disconnect":
            pass
