"""The database of a local Prefect server: an existing one that this Prefect can open, or a new migrated one.

On an empty file Prefect's server runs sixty migrations, more than half of the time of a first start. So the first
server that runs them keeps the resulting database, with no row but its version, in the user's cache directory
(``$XDG_CACHE_HOME/sluice``, else ``~/.cache/sluice``). Without a writable cache directory each new database is
migrated. An existing database is always migrated by Prefect itself.

An existing database is only read before a server opens it: a server of an older Prefect would fail on a newer database
in the middle of its start, and one on a damaged file only when it reads the bad page.

Nothing here imports Prefect but ``make``.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from tasks.shared.errors import NetworkError, StorageError
from tasks.shared.files.out_file import open_lock, write_file

DATABASE = "prefect.db"
ELSEWHERE = tuple(
    f"PREFECT_{part}_DATABASE_{name}" for part in ("API", "SERVER") for name in ("CONNECTION_URL", "DRIVER")
)
"""Settings that name another database; the one in ``HOME`` is then unused."""
MIGRATE = "PREFECT_SERVER_DATABASE_MIGRATE_ON_START"
SMALL = 16_000_000
"""Bytes of a database of which every page is looked at before a server starts: some milliseconds."""

MIGRATIONS = "server/database/_migrations/versions/sqlite"

_HEADER = b"SQLite format 3\x00"

BESIDE = ("", "-wal", "-shm", "-journal")
"""A database and SQLite's files next to it: a remaining log would be applied to the new database."""


def prepare_database(home: Path) -> bool:
    """Provide a database in ``home``. Return whether it needs no migration for the installed Prefect.

    Raises:
        StorageError: the existing one cannot be used (``check_database``), or none can be written.
    """
    if any(name in os.environ for name in ELSEWHERE):
        return False
    found, current = ready(), provide(home / DATABASE)
    if not current:
        versions = check_database(home)
        current = found is not None and versions == [found.revision]
    return current and not _has_profiles(home)


def is_to_be_made(home: Path) -> bool:
    """Return whether the server of ``home`` begins without a database, and would make it there."""
    elsewhere = any(name in os.environ for name in ELSEWHERE) or _has_profiles(home)
    return not elsewhere and is_new(home / DATABASE)


def _has_profiles(home: Path) -> bool:
    """Return whether there are profiles of the server's own, which may name another database."""
    return (home / "profiles.toml").exists()


def check_database(home: Path, *, thoroughly: bool = False) -> list[str]:
    """Check the database in ``home``, if it exists. ``thoroughly``, or if it is ``SMALL``, every page is read.

    Return the versions it contains: one, or none if unknown.

    Raises:
        StorageError: it is of a newer version (``prefect-database-newer``), or damaged (``prefect-database-damaged``).
    """
    path = home / DATABASE
    if any(name in os.environ for name in ELSEWHERE):
        return []
    try:
        versions = _versions(path, thoroughly=thoroughly or path.stat().st_size <= SMALL)
    except FileNotFoundError:
        return []
    except sqlite3.OperationalError as error:
        if "malformed" not in str(error) and "not a database" not in str(error):
            return []  # busy, or no permission: the server reports it
        raise _damaged(path, str(error)) from None
    except sqlite3.DatabaseError as error:
        raise _damaged(path, str(error)) from None
    except OSError as error:
        raise StorageError(
            "prefect-database", f"the database of the local Prefect server cannot be read: {error.strerror}",
            context=str(path), hint="check its permissions",
        ) from None  # fmt: skip
    unknown = [version for version in versions if not is_known(version)]
    if unknown:
        raise StorageError(
            "prefect-database-newer", "the database of the local Prefect server is of a newer version of Prefect",
            context=f"{path}: version {', '.join(unknown)}",
            hint="run the newer Sluice again, or set jobs_dir to another directory; the file is left as it is",
        )  # fmt: skip
    return versions


@contextmanager
def diagnosed(home: Path | None) -> Iterator[None]:
    """Check the database when a local server fails for good: a bad page is found only when it is read.

    Raises:
        StorageError: in place of the ``NetworkError``, if the database is damaged.
    """
    try:
        yield
    except NetworkError:
        if home is not None:
            check_database(home, thoroughly=True)
        raise


def _versions(path: Path, *, thoroughly: bool) -> list[str]:
    """Return the versions in the database; none if Prefect has not written to it yet."""
    with path.open("rb") as file:
        header = file.read(len(_HEADER))
    if not header:
        return []  # a server that was killed before its first word; the next one begins with it
    if header != _HEADER:
        raise sqlite3.DatabaseError("it does not begin as one")
    # Read only: neither a migration nor a repair, whatever is found.
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
        return _versions_in(connection, thoroughly=thoroughly)


def _versions_in(connection: sqlite3.Connection, *, thoroughly: bool) -> list[str]:
    if thoroughly and connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise sqlite3.DatabaseError("its pages are inconsistent")
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "flow_run" in tables:
        connection.execute("SELECT id FROM flow_run LIMIT 1").fetchone()
    if "alembic_version" not in tables:
        return []
    return [str(row[0]) for row in connection.execute("SELECT version_num FROM alembic_version")]


def is_known(version: str) -> bool:
    """Return whether the installed Prefect has a version of the database; importing Prefect would take a second."""
    package = find_spec("prefect")
    places = package.submodule_search_locations if package is not None else None
    scripts = [path for place in places or () for path in sorted(Path(place, MIGRATIONS).glob("*.py"), reverse=True)]
    # Most have their version in their name, the latest ones nearly always; the others inside the file.
    said = re.compile(rf"^revision(: str)? = [\"']{re.escape(version)}[\"']", re.MULTILINE)
    return (
        not scripts
        or any(f"_{version}_" in path.name for path in scripts)
        or any(said.search(path.read_text(encoding="utf-8")) for path in scripts)
    )


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(
        "prefect-database-damaged", f"the database of the local Prefect server is damaged: {why}",
        context=str(path),
        hint="move it away (the record of its jobs goes with it, their files stay) or put a backup in its place; "
        "it is left as it is",
    )  # fmt: skip


@dataclass(frozen=True)
class ReadyDatabase:
    """A migrated database: the content of its file, and its revision."""

    content: bytes
    revision: str


def cached_at() -> Path | None:
    """Return the path of the cached database for the installed Prefect; ``None`` without a usable directory."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        installed = version("prefect")
    except (RuntimeError, PackageNotFoundError):  # a user without a home directory
        return None
    return base / "sluice" / f"prefect-{installed}.db" if base.is_absolute() else None


def ready() -> ReadyDatabase | None:
    """Return the database in the cache directory; ``None`` without a trustworthy one."""
    path = cached_at()
    if path is None or not _is_ours(path.parent):
        return None
    try:
        content = path.read_bytes()
        return ReadyDatabase(content, migrated_revision(content))
    except (OSError, ValueError, sqlite3.Error, AttributeError):  # an SQLite built without deserialize
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
        versions = _versions_in(connection, thoroughly=True)
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in sorted(tables - {"alembic_version"}):
            if connection.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchone():  # noqa: S608 - a table's own name
                raise ValueError(f"it has rows in {table}")
    if len(versions) != 1 or "flow_run" not in tables:
        raise ValueError("it is not Prefect's")
    return versions[0]


def is_new(path: Path) -> bool:
    """Return whether no database is or was at ``path``."""
    return not any(path.with_name(path.name + suffix).exists() for suffix in BESIDE)


def provide(path: Path) -> bool:
    """Copy the database of the cache directory to ``path``, 0600, whole or not at all; return whether it is there now.

    An existing or earlier database is left to Prefect's migrations.

    Raises:
        StorageError: it cannot be written at ``path``.
    """
    found = ready() if is_new(path) else None
    if found is None:
        return False
    write_file(path, found.content)
    return True


def make(path: Path) -> None:
    """Migrate the database at ``path``, which is the configured one, and cache a copy for other jobs directories.

    For the process of a server, before anything else uses the database. After a ``kill -9``, the next server continues:
    each migration is a separate transaction.
    """
    from prefect.server.database import provide_database_interface

    asyncio.run(provide_database_interface().create_db())
    with closing(sqlite3.connect(path)) as connection:
        content = connection.serialize()
    _store_in_cache(content)


def _store_in_cache(content: bytes) -> None:
    """Write a migrated database into the cache directory, unless another process does or it cannot be written."""
    path = cached_at()
    if path is None:
        return
    with suppress(OSError, StorageError, ValueError, sqlite3.Error, AttributeError):
        migrated_revision(content)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(path.parent):
            return
        with open_lock(path.with_suffix(".lock")) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_file(path, content)
