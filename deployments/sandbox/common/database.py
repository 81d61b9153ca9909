"""The SQLite file in which a sandbox service keeps its state.

WAL with ``synchronous=NORMAL``: a committed transaction survives ``kill -9`` of the process, but not a power cut. The
file is locked exclusively, so a second server cannot use the same state directory.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from deployments.sandbox.common.serve import SandboxStartError


def open_database(path: Path, schema: str) -> sqlite3.Connection:
    """Open a database and create the tables of ``schema``; create the directory if necessary.

    The caller must use the connection from one thread at a time. Raises ``SandboxStartError``.
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
        raise SandboxStartError(f"the state directory is in use, or contains no sandbox state: {error}") from None
    return db


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end of the block, or roll back if the block raises."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
