"""The database of a new jobs directory: a copy of one that Prefect has migrated, made once for each version of Prefect.

On an empty file Prefect's server runs sixty migrations, more than half of the time of a first start. So the database
that they leave, with no row but its version, is kept in the user's cache directory (``$XDG_CACHE_HOME/sluice``, else
``~/.cache/sluice``) by the first server that runs them. Without a cache directory that can be written each new jobs
directory is migrated, and one that is there already always is, by Prefect itself.

Nothing here imports Prefect but ``make``.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import stat
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tasks.shared.errors import StorageError
from tasks.shared.files.out_file import write_file
from tasks.shared.files.private_file import NotPrivateError, open_private, read_private

BESIDE = ("", "-wal", "-shm", "-journal")
"""A database and what SQLite keeps beside one: a log that was left behind would be taken for the new one's."""

LARGEST = 64_000_000
"""Bytes of a migrated database at most; it has about 2 MB."""


@dataclass(frozen=True)
class ReadyDatabase:
    """A migrated database: its file's content, and the revision that it says it has."""

    content: bytes
    revision: str


def cached_at() -> Path | None:
    """Return where the database for the installed Prefect is kept; ``None`` where there is no place for it."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        installed = version("prefect")
    except (RuntimeError, PackageNotFoundError):  # a user without a home directory
        return None
    return base / "sluice" / f"prefect-{installed}.db" if base.is_absolute() else None


def ready() -> ReadyDatabase | None:
    """Return the database in the cache directory; ``None`` where there is none that can be believed."""
    path = cached_at()
    if path is None or not _is_ours(path.parent):
        return None
    try:
        content = read_private(path, most=LARGEST)
        return ReadyDatabase(content, migrated_revision(content)) if content is not None else None
    except (NotPrivateError, ValueError, sqlite3.Error, AttributeError):  # an SQLite built without deserialize
        return None


def _is_ours(directory: Path) -> bool:
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def migrated_revision(content: bytes) -> str:
    """Return the revision of a database that is migrated and has no rows besides.

    Raises:
        ValueError: it is something else.
        sqlite3.Error: it is damaged.
    """
    with closing(sqlite3.connect(":memory:")) as connection:
        # The marks of a write-ahead log, which a database in memory cannot have.
        connection.deserialize(content[:18] + b"\x01\x01" + content[20:])
        if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise ValueError("its pages do not fit together")
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in sorted(tables - {"alembic_version"}):
            if connection.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchone():  # noqa: S608 - a table's own name
                raise ValueError(f"it has rows in {table}")
        revisions = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    if len(revisions) != 1 or "flow_run" not in tables:
        raise ValueError("it is not Prefect's")
    return str(revisions[0][0])


def is_new(path: Path) -> bool:
    """Whether no database is or was at ``path``."""
    return not any(path.with_name(path.name + suffix).exists() for suffix in BESIDE)


def provide(path: Path) -> bool:
    """Copy the database of the cache directory to ``path``, 0600, whole or not at all; return whether it is there now.

    Nothing is done where a database is or was: Prefect's migrations are for those.

    Raises:
        StorageError: it cannot be written at ``path``.
    """
    found = ready() if is_new(path) else None
    if found is None:
        return False
    write_file(path, found.content)
    return True


def make(path: Path) -> None:
    """Migrate the database at ``path``, which is the configured one, and keep a copy of it for other jobs directories.

    For the process of a server, before anything else uses the database. What a ``kill -9`` leaves is migrated further
    by the next server: each migration is a transaction of its own.
    """
    from prefect.server.database import provide_database_interface

    asyncio.run(provide_database_interface().create_db())
    with closing(sqlite3.connect(path)) as connection:
        content = connection.serialize()
    _keep(content)


def _keep(content: bytes) -> None:
    """Write a migrated database into the cache directory, unless another process is about to, or it cannot be."""
    path = cached_at()
    if path is None:
        return
    with suppress(OSError, StorageError, ValueError, sqlite3.Error, AttributeError):
        migrated_revision(content)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(path.parent):
            return
        with open_private(path.with_suffix(".lock"), "r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_file(path, content)
