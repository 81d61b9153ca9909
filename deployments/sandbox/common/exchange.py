"""One request on its way through a sandbox service, with the handles a fault needs."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.sandbox.common.connection import STATE_KEY, Connection


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


class Exchange:
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

        async def keep(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                parts.append(message.get("body", b""))

        await self.run(keep)
        return start, b"".join(parts)

    async def respond(self, response: Response) -> None:
        """Answer in place of the application."""
        await response(self.scope, self.receive, self.send)

    async def drain(self) -> None:
        """Read the request's body and forget it."""
        await read_body(self.receive)

    async def gone(self) -> None:
        """Wait until the connection has ended."""
        while not self.connection.closing:
            if (await self.receive())["type"] == "http.disconnect":
                return
        # The transport tells the protocol on the next turn of the loop; without it uvicorn would answer 500.
        while (await self.receive())["type"] != "http.disconnect":
            pass
