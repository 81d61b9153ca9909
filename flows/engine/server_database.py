"""The database of a local Prefect server: ready-made where there is none, else one that the installed Prefect can open.

One that is there is looked at before a server touches it, and only read: a server of an older Prefect would fail on a
newer database in the middle of its start, and one on a damaged file only when it comes to the bad page.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

from flows.engine import ready_database
from tasks.shared.errors import NetworkError, StorageError
from tasks.shared.files.private_file import open_private

DATABASE = "prefect.db"
ELSEWHERE = tuple(
    f"PREFECT_{part}_DATABASE_{name}" for part in ("API", "SERVER") for name in ("CONNECTION_URL", "DRIVER")
)
"""Settings that name another database: then nobody uses the one in ``HOME``."""
MIGRATE = "PREFECT_SERVER_DATABASE_MIGRATE_ON_START"
SMALL = 16_000_000
"""Bytes of a database of which every page is looked at before a server starts: some milliseconds."""

MIGRATIONS = "server/database/_migrations/versions/sqlite"

_HEADER = b"SQLite format 3\x00"


def prepare_database(home: Path) -> bool:
    """Have a database in ``home``; whether it is as the installed Prefect wants it, so that nothing is to be migrated.

    Raises:
        StorageError: there is one that cannot be used (``check_database``), or none can be written.
    """
    if any(name in os.environ for name in ELSEWHERE):
        return False
    found, current = ready_database.ready(), ready_database.provide(home / DATABASE)
    if not current:
        versions = check_database(home)
        current = found is not None and versions == [found.revision]
    return current and not _has_profiles(home)


def is_to_be_made(home: Path) -> bool:
    """Return whether the server of ``home`` begins without a database, and would make it there."""
    elsewhere = any(name in os.environ for name in ELSEWHERE) or _has_profiles(home)
    return not elsewhere and ready_database.is_new(home / DATABASE)


def _has_profiles(home: Path) -> bool:
    """Return whether there are profiles of the server's own, which may name another database."""
    return (home / "profiles.toml").exists()


def check_database(home: Path, *, thoroughly: bool = False) -> list[str]:
    """Look at the database in ``home``; none is fine. ``thoroughly``, or when it is ``SMALL``, every page is read.

    Returns the versions that it says it has: one, or none where it is not known.

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
            return []  # busy, or no permission: the server says what it is
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
    """When a local server fails for good, look whether its database is why: one bad page is met only when it is read.

    Raises:
        StorageError: in place of the ``NetworkError``, when the database is damaged.
    """
    try:
        yield
    except NetworkError:
        if home is not None:
            check_database(home, thoroughly=True)
        raise


def _versions(path: Path, *, thoroughly: bool) -> list[str]:
    """The versions that the database says it has; none when there is nothing of Prefect's in it yet."""
    with open_private(path) as file:
        header = file.read(len(_HEADER))
    if not header:
        return []  # a server that was killed before its first word; the next one begins with it
    if header != _HEADER:
        raise sqlite3.DatabaseError("it does not begin as one")
    # Read only: neither a migration nor a repair, whatever is found.
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
        if thoroughly and connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("its pages do not fit together")
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "flow_run" in tables:
            connection.execute("SELECT id FROM flow_run LIMIT 1").fetchone()
        if "alembic_version" not in tables:
            return []
        return [str(row[0]) for row in connection.execute("SELECT version_num FROM alembic_version")]


def is_known(version: str) -> bool:
    """Whether the installed Prefect knows a version of the database; importing Prefect would take a second."""
    package = find_spec("prefect")
    places = package.submodule_search_locations if package is not None else None
    scripts = [path for place in places or () for path in sorted(Path(place, MIGRATIONS).glob("*.py"), reverse=True)]
    # Most carry their version in their name, the latest ones nearly always; the others say it inside.
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
