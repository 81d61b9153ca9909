"""The SQLite file in which a sandbox service keeps its state.

WAL with ``synchronous=NORMAL``: what a commit acknowledged survives ``kill -9`` of the process (not a power cut). The
file is locked exclusively, so a second server on the same state directory is refused.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from deployments.sandbox.common.serve import SandboxStartError


def open_database(path: Path, schema: str) -> sqlite3.Connection:
    """Open a file and make the tables of ``schema``; its directory is made when absent.

    The caller sees to it that one thread at a time uses the connection. Raises ``SandboxStartError``.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise SandboxStartError(f"the state directory cannot be used: {error}") from None
    try:
        db.execute("PRAGMA busy_timeout=1000")
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("PRAGMA cache_size=-32000")
        db.executescript(schema)
    except sqlite3.Error as error:
        db.close()
        raise SandboxStartError(f"the state directory is in use, or is no state: {error}") from None
    return db


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All or nothing: commits at the end of the block, undoes it when the block raises."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
