"""Whole objects between two processes of ours, over a socket that nobody else has.

``multiprocessing`` would start the program's main module once more in every process, which in a worker of Prefect is
all of Prefect; and its connections copy what they carry more often.
"""

from __future__ import annotations

import pickle
import socket
import struct
from contextlib import suppress
from typing import Any, Final, Self

_LENGTH: Final = struct.Struct("!Q")
_BUFFER: Final = 1 << 20


class Channel:
    """One end. One thread at a time may send, one may receive."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER)

    @classmethod
    def pair(cls) -> tuple[Self, socket.socket]:
        """One end, and the socket of the other, to be handed to another process."""
        mine, other = socket.socketpair()
        return cls(mine), other

    def fileno(self) -> int:
        """For ``selectors``."""
        return self._sock.fileno()

    def send(self, message: object) -> None:
        """Raises ``EOFError`` when the other process is gone; for what cannot be pickled, before anything is sent."""
        text = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        head = _LENGTH.pack(len(text))
        try:
            sent = self._sock.sendmsg((head, text))
            if sent < len(head) + len(text):
                self._sock.sendall(memoryview(text)[sent - len(head) :] if sent >= len(head) else head[sent:] + text)
        except OSError:
            raise EOFError from None

    def receive(self) -> Any:
        """The next message. Raises ``EOFError`` when the other process is gone."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return pickle.loads(self._read(length))  # noqa: S301 - from a process that we started

    def _read(self, size: int) -> bytearray:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            try:
                count = self._sock.recv_into(view, 0, socket.MSG_WAITALL)
            except OSError:
                count = 0
            if not count:
                raise EOFError
            view = view[count:]
        return buffer

    def close(self) -> None:
        """Close this end; whoever waits at either end is told."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
