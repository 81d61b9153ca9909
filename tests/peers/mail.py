"""A mail server on loopback that takes everything: what was sent to it, in the order of arrival."""

from __future__ import annotations

import socketserver
import threading
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Self


class _Taken(socketserver.StreamRequestHandler):
    server: Mailbox

    def handle(self) -> None:
        self.wfile.write(b"220 mailbox\r\n")
        while line := self.rfile.readline():
            word = line[:4].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                body = b"".join(iter(self.rfile.readline, b".\r\n"))
                self.server.mails.append(message_from_bytes(body, policy=policy.default))  # type: ignore[arg-type]
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")


class Mailbox(socketserver.ThreadingTCPServer):
    """``mails`` are those that arrived."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taken)
        self.mails: list[EmailMessage] = []
        self.port = int(self.server_address[1])

    def text(self, index: int) -> str:
        """Return the text of a mail without its line breaks."""
        part = self.mails[index].get_body(("plain",)) or self.mails[index].get_body(("html",))
        return " ".join(part.get_content().split()) if part is not None else ""

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
        self.server_close()
