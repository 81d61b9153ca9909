"""Forward connections from an address that containers reach to a service that listens on loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit


@contextmanager
def forwarded_port(address: str, url: str) -> Iterator[int]:
    """Forward a free port of ``address`` to the service at ``url``; yield the port."""
    target = urlsplit(url)
    upstream = (str(target.hostname), int(target.port or 80))
    listener = socket.create_server((address, 0))
    closing = ExitStack()

    def accept() -> None:
        while True:
            try:
                near, _ = listener.accept()
                far = socket.create_connection(upstream)
            except OSError:
                return
            threads = [threading.Thread(target=_carry, args=way, daemon=True) for way in ((near, far), (far, near))]
            # The last comes first: both are cut, then their threads have ended, then both are closed.
            for end in (near.close, far.close, threads[0].join, threads[1].join):
                closing.callback(end)
            for one, thread in zip((near, far), threads, strict=True):
                closing.callback(_cut, one)
                thread.start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        closing.close()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
