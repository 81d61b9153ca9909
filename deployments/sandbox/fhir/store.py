"""Resources in one SQLite file, as the bytes that were sent. A ``kill -9`` loses nothing that was acknowledged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deployments.sandbox.child import SandboxStartError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS resource (
  type TEXT NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, media TEXT NOT NULL, body BLOB NOT NULL,
  PRIMARY KEY (type, id)
);
CREATE TABLE IF NOT EXISTS identifier (token TEXT NOT NULL, type TEXT NOT NULL, id TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS by_identifier ON identifier (token, type);
CREATE INDEX IF NOT EXISTS by_resource ON identifier (type, id);
"""
_COLUMNS = "type, id, version, media, body"


@dataclass(frozen=True)
class Stored:
    """The last version of a resource."""

    type: str
    id: str
    version: int
    media: str
    """Media type: FHIR JSON, or that of the content of a Binary."""
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        """Return the version as an HTTP header; the bytes of the resource stay as they were sent."""
        return {"etag": f'W/"{self.version}"'}


class ResourceStore:
    """The resources of one server. Not for several threads at a time."""

    def __init__(self, directory: Path | None) -> None:
        """Open the store in a directory; None keeps it in memory. Raises ``SandboxStartError``."""
        try:
            if directory is not None:
                directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = ":memory:" if directory is None else directory / "resources.sqlite3"
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" + _SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise SandboxStartError(f"the FHIR server's state in {directory} cannot be used: {error}") from None

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Keep all changes of the block, or none."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def get(self, kind: str, identity: str) -> Stored | None:
        """Return a resource, or None."""
        query = f"SELECT {_COLUMNS} FROM resource WHERE type=? AND id=?"  # noqa: S608
        row = self._db.execute(query, (kind, identity)).fetchone()
        return None if row is None else Stored(*row)

    def exists(self, key: str) -> bool:
        """Return whether ``Type/id`` is stored."""
        return self.get(*key.split("/", 1)) is not None

    def put(self, kind: str, identity: str, body: bytes, media: str, tokens: list[str]) -> tuple[Stored, bool]:
        """Store a resource; return it, and whether it is new. Equal bytes make no new version.

        ``tokens`` are its identifiers, each as ``value`` and as ``system|value``.
        """
        before = self.get(kind, identity)
        if before is not None and (before.body, before.media) == (body, media):
            return before, False
        made = Stored(kind, identity, before.version + 1 if before else 1, media, body)
        row = (made.type, made.id, made.version, made.media, made.body)
        self._db.execute(f"INSERT OR REPLACE INTO resource ({_COLUMNS}) VALUES (?,?,?,?,?)", row)  # noqa: S608
        self._db.execute("DELETE FROM identifier WHERE type=? AND id=?", (kind, identity))
        rows = [(token, kind, identity) for token in tokens]
        self._db.executemany("INSERT INTO identifier VALUES (?,?,?)", rows)
        return made, before is None

    def search(self, kind: str, tokens: list[str]) -> list[Stored]:
        """Return the resources of a type with any of the identifiers (``system|value`` or ``value``; none: all)."""
        query = f"SELECT {_COLUMNS} FROM resource WHERE type=?"  # noqa: S608
        if tokens:
            marks = ",".join("?" * len(tokens))
            query += f" AND (type, id) IN (SELECT type, id FROM identifier WHERE token IN ({marks}))"  # noqa: S608
        return [Stored(*row) for row in self._db.execute(query + " ORDER BY id", (kind, *tokens))]

    def all(self) -> Iterator[Stored]:
        """Yield all resources by type and id."""
        rows = self._db.execute(f"SELECT {_COLUMNS} FROM resource ORDER BY type, id")  # noqa: S608
        return (Stored(*row) for row in rows.fetchall())
