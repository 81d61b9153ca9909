"""The database of a new jobs directory, ready-made: what Prefect's sixty migrations would leave, without running them.

``prefect.sql`` beside this module has the tables, indexes and the version, and no row besides: nothing of the machine
that made it. It is of one version of Prefect, which its first line names, and counts only where that version is the
installed one; elsewhere Prefect migrates, as it would without us. After a new pin make it again::

    python -m flows.engine.ready_database > flows/engine/prefect.sql

which runs Prefect's migrations on an empty file (a test compares). Nothing here imports Prefect otherwise.
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

from tasks.shared.files.out_file import write_file

DUMP = Path(__file__).with_name("prefect.sql")

BESIDE = ("", "-wal", "-shm", "-journal")
"""A database and what SQLite keeps beside one: a log that was left behind would be taken for the new one's."""

_FIRST = re.compile(r"-- Prefect (\S+), version ([0-9a-f]+) of its database\n")


@dataclass(frozen=True)
class ReadyDatabase:
    """The ready-made database: ``sql`` makes it, ``revision`` is the version that it says it has."""

    prefect: str
    revision: str
    sql: str

    def content(self) -> bytes:
        """The database as a file holds it."""
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.executescript(self.sql)
            return connection.serialize()


@cache
def ready() -> ReadyDatabase | None:
    """The ready-made database, or ``None`` where it is not that of the installed Prefect."""
    try:
        text = DUMP.read_text(encoding="ascii")
        installed = version("prefect")
    except (OSError, UnicodeDecodeError, PackageNotFoundError):
        return None
    first = _FIRST.match(text)
    return ReadyDatabase(first[1], first[2], text) if first is not None and first[1] == installed else None


def provide(path: Path) -> bool:
    """Put the ready-made database at ``path``, 0600, whole or not at all; whether it is there now.

    Nothing is done where a database is or was: Prefect's migrations are for those.

    Raises:
        StorageError: it cannot be written.
    """
    found = ready()
    if found is None or any(path.with_name(path.name + suffix).exists() for suffix in BESIDE):
        return False
    try:
        content = found.content()
    except (sqlite3.Error, AttributeError):  # an SQLite that is too old for the tables, or built without serialize
        return False
    write_file(path, content)
    return True


def dump(path: Path, prefect: str) -> str:
    """The text that makes the database at ``path`` again, always the same for the same tables.

    Raises:
        ValueError: it holds rows of something else than its version.
    """
    with closing(sqlite3.connect(path)) as connection:
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        rows = connection.execute(
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
            " ORDER BY type != 'table', type, name"
        ).fetchall()
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in tables - {"alembic_version"}:
            if connection.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchone():  # noqa: S608 - a table's own name
                raise ValueError(f"a database that is only migrated has no row in {table}")
    insert = f"INSERT INTO alembic_version VALUES ('{revision}')"  # noqa: S608 - what was read there
    statements = ["BEGIN", *(_ordered(sql) for (sql,) in rows), insert, "COMMIT"]
    return f"-- Prefect {prefect}, version {revision} of its database\n" + "".join(f"{one};\n" for one in statements)


def _ordered(sql: str) -> str:
    """A statement with the constraints of its table in the order of the alphabet; Alembic has them in that of a set."""
    head, bracket, body = sql.partition("(")
    if not bracket or not head.startswith("CREATE TABLE"):
        return sql
    parts, depth = [""], 0
    for sign in re.findall(r"'[^']*'|\"[^\"]*\"|.", body.rpartition(")")[0], re.DOTALL):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    # Stable: columns stay where they are, in front.
    parts = sorted(map(str.strip, parts), key=lambda part: part if part.startswith(_CONSTRAINTS) else "")
    return f"{head}(\n\t" + ",\n\t".join(parts) + "\n)"


_CONSTRAINTS = ("CONSTRAINT ", "PRIMARY KEY", "FOREIGN KEY", "UNIQUE", "CHECK")


def main() -> int:
    """Print the dump of what the installed Prefect migrates an empty database to."""
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
        sys.stdout.write(dump(path, version("prefect")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
