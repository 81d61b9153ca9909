"""``HOME/reserve``: disk space kept for the commands that free space.

On a full disk no server starts, so ``job prune`` and ``job delete`` could not begin. A job that begins creates the
file. These two commands remove it and create it again when they end. No other command does: a running job would use the
space at once.
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
    """Create the file, unless the disk is full or the platform cannot reserve space for a file."""
    if not hasattr(os, "posix_fallocate"):
        return
    path = home / NAME
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(handle, 0, SIZE)
        finally:
            os.close(handle)
    except OSError:  # a job checks the disk and reports failed writes itself
        path.unlink(missing_ok=True)


@contextmanager
def reserve_given_up(home: Path) -> Iterator[None]:
    """Remove the file for the duration of the block, then create it again."""
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
