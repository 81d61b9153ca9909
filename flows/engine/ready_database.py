"""The database of a new jobs directory: a copy of one that Prefect has migrated, made once for each version of Prefect.

On an empty file Prefect's server runs sixty migrations, more than half of the time of a first start. So the database
that they leave, with no row but its version, is kept in the user's cache directory (``$XDG_CACHE_HOME/sluice``, else
``~/.cache/sluice``). Without a cache directory that can be written, and for a database that is there already, Prefect
migrates by itself.

``python -m flows.engine.ready_database FILE`` migrates an empty database and writes it to ``FILE``. Nothing here
imports Prefect otherwise.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.output import patience
from tasks.shared.errors import StorageError
from tasks.shared.files.out_file import write_file
from tasks.shared.files.private_file import NotPrivateError, open_private, read_private

BESIDE = ("", "-wal", "-shm", "-journal")
"""A database and what SQLite keeps beside one: a log that was left behind would be taken for the new one's."""

LARGEST = 64_000_000
"""Bytes of a migrated database at most; it has about 2 MB."""

MAKING = 120.0
"""Seconds that Prefect's migrations may take."""


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


def provide(path: Path) -> bool:
    """Put a migrated database at ``path``, 0600, whole or not at all, and return whether it is there now.

    Nothing is done where a database is or was: Prefect's migrations are for those. The first call for a version of
    Prefect makes the database in the cache directory, which takes some seconds.

    Raises:
        StorageError: it cannot be written at ``path``.
    """
    if any(path.with_name(path.name + suffix).exists() for suffix in BESIDE):
        return False
    found = ready() or _made()
    if found is None:
        return False
    write_file(path, found.content)
    return True


def _made() -> ReadyDatabase | None:
    """Make the database in the cache directory, unless another process makes it meanwhile."""
    path = cached_at()
    if path is None:
        return None
    with suppress(OSError, subprocess.SubprocessError):  # Prefect's server migrates then
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(path.parent):
            return None
        with (
            patience(f"waiting for Prefect to make its database, once for version {version('prefect')}"),
            open_private(path.with_suffix(".lock"), "r+b") as lock,
        ):
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (found := ready()) is not None:
                return found
            command = [sys.executable, "-m", "flows.engine.ready_database", str(path)]
            subprocess.run(  # noqa: S603 - our own module
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                cwd=Path(__file__).parent.parent.parent, timeout=MAKING, check=True,
            )  # fmt: skip
    return ready()


def main(target: Path) -> int:
    """Migrate an empty database as the installed Prefect does, and write it to ``target``."""
    with TemporaryDirectory() as place:
        path = Path(place, "prefect.db")
        for name in [name for name in os.environ if name.startswith("PREFECT_")]:
            del os.environ[name]
        os.environ |= {
            "PREFECT_HOME": place,
            "PREFECT_PROFILES_PATH": str(Path(place, "profiles.toml")),
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{path}",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }
        from prefect.server.database import provide_database_interface

        asyncio.run(provide_database_interface().create_db())
        with closing(sqlite3.connect(path)) as connection:
            content = connection.serialize()
    try:
        migrated_revision(content)
        write_file(target, content)
    except (ValueError, StorageError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
