"""``HOME/server.json`` (0600): where the local server of a jobs directory is, for the commands that come later.

A server that ended without a word leaves it behind, so nobody is believed for what stands in it (``proof.py``).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tasks.shared.files.out_file import write_file
from tasks.shared.files.private_file import read_file

NAME = "server.json"

STARTED = b"started"
"""The content of ``HOME/server.lock`` from the moment on when the server that holds it answers."""


class Announced(msgspec.Struct, frozen=True):
    """A server: its address, its process, and what becomes of it without users.

    ``stay`` is that of ``server start``. ``linger`` are the seconds that a user asked for and the server has not begun
    to count; ``until`` is when it ends that lingers now, in seconds since 1970.
    """

    url: str
    pid: int
    stay: bool = False
    linger: float = 0.0
    until: float | None = None


def announced(home: Path) -> Announced | None:
    """What is said of the server of ``home``; ``None`` when nothing is, or nothing that can be read."""
    try:
        return msgspec.json.decode(read_file(home / NAME), type=Announced)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def announce(home: Path, server: Announced) -> None:
    """Say where a server is; it withdraws that when it ends. The caller holds ``start.lock``."""
    write_file(home / NAME, msgspec.json.encode(server))


def withdraw(home: Path, pid: int) -> None:
    """Say it no more, unless another server is told of by now."""
    found = announced(home)
    if found is not None and found.pid == pid:
        (home / NAME).unlink(missing_ok=True)
