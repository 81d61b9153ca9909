"""``HOME/reserve``: a little of the disk that is kept for the commands that make room on it.

Where nothing at all is free no server starts, so ``job prune`` and ``job delete`` could not begin. A job that begins
makes the file; they give it up, and make it again when they are through. Others never touch it: what was freed for a
job that writes would be gone in a moment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "reserve"

SIZE = 4_000_000
"""Bytes: ten times what a server writes until the first job is gone."""


def keep_reserve(home: Path) -> None:
    """Have the file; there is none where it has no room, or where the platform cannot give room to a file."""
    if not hasattr(os, "posix_fallocate"):
        return
    path = home / NAME
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(handle, 0, SIZE)
        finally:
            os.close(handle)
    except OSError:  # a job has its own look at the disk, and says itself what it cannot write
        path.unlink(missing_ok=True)


@contextmanager
def reserve_given_up(home: Path) -> Iterator[None]:
    """The room is there for who needs it; afterwards it is kept again."""
    path = home / NAME
    try:
        path.unlink()
    except FileNotFoundError:
        yield
        return
    try:
        yield
    finally:
        keep_reserve(home)
