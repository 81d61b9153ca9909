"""``HOME/reserve``: disk space that is kept for the commands that free some.

On a full disk no server starts, so ``job prune`` and ``job delete`` could not begin. A job that begins makes the file;
these two commands remove it, and make it again when they end. No other command does: a job that writes would use up
the space at once.
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
    """Make the file, unless the disk is full or the platform cannot reserve space for a file."""
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
    """Remove the file for the time of the block, and make it again afterwards."""
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
