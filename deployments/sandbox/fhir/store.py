"""Storage of the FHIR server: one SQLite file, and a directory for raw Binary content.

One server per state directory; one thread uses a store.
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path

from deployments.sandbox.common.database import open_database, transaction
from deployments.sandbox.common.serve import SandboxStartError
from deployments.sandbox.fhir.resource import Identifier, ReceivedResource

_SCHEMA = """
CREATE TABLE IF NOT EXISTS resource (
  type TEXT NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, updated INTEGER NOT NULL, deleted INTEGER
  NOT NULL, body BLOB, content_type TEXT, blob TEXT, UNIQUE (type, id)
);
CREATE TABLE IF NOT EXISTS identifier (
  type TEXT NOT NULL, value TEXT NOT NULL, system TEXT NOT NULL, id TEXT NOT NULL,
  PRIMARY KEY (type, value, system, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS identifier_of ON identifier (type, id);
CREATE TABLE IF NOT EXISTS link (
  target TEXT NOT NULL, source TEXT NOT NULL, PRIMARY KEY (target, source)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS link_of ON link (source);
CREATE TABLE IF NOT EXISTS counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""
_SELECT = "SELECT type, id, version, updated, deleted, body, content_type, blob FROM resource"


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """The current version of a resource. Content is ``body`` (FHIR JSON), or the file ``blob`` of ``content_type``."""

    type: str
    id: str
    version: int
    updated: int
    """Milliseconds since 1970."""
    deleted: bool
    body: bytes | None
    content_type: str | None
    blob: str | None

    @property
    def modified(self) -> str:
        """Time of the last change as a FHIR instant."""
        moment = datetime.fromtimestamp(self.updated / 1000, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    @property
    def headers(self) -> dict[str, str]:
        """Headers ``ETag`` and ``Last-Modified``."""
        return {"etag": f'W/"{self.version}"', "last-modified": formatdate(self.updated / 1000, usegmt=True)}


class ResourceStore:
    """Current versions by type and id, with their identifiers and references."""

    def __init__(self, directory: Path | None) -> None:
        """Open the state in a directory, created if necessary; None keeps the state until ``close`` only.

        Raises ``SandboxStartError`` if the directory cannot be used or another server uses it.
        """
        self._temporary = tempfile.TemporaryDirectory(prefix="sluice-fhir-") if directory is None else None
        self._directory = directory if directory is not None else Path(self._temporary.name if self._temporary else "")
        self.blobs = self._directory / "binaries"
        try:
            self._db = open_database(self._directory / "fhir.sqlite3", _SCHEMA)
        except SandboxStartError:
            self._cleanup()
            raise
        try:
            self.blobs.mkdir(exist_ok=True, mode=0o700)
            self._forget_unreferenced_blobs()
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise SandboxStartError(f"the state directory cannot be used: {error}") from None

    def close(self) -> None:
        """Close the files."""
        self._db.close()
        self._cleanup()

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """Commit at the end of the block, or roll back if the block raises."""
        return transaction(self._db)

    def get(self, kind: str, identity: str) -> StoredVersion | None:
        """Return the current version, also a deleted one, or None if there never was one."""
        row = self._db.execute(_SELECT + " WHERE type=? AND id=?", (kind, identity)).fetchone()
        return None if row is None else _stored(row)

    def exists(self, key: str) -> bool:
        """Return True if ``Type/id`` exists and is not deleted."""
        kind, _, identity = key.partition("/")
        query = "SELECT 1 FROM resource WHERE type=? AND id=? AND deleted=0"
        return self._db.execute(query, (kind, identity)).fetchone() is not None

    def put(self, resource: ReceivedResource, targets: Iterable[str], before: StoredVersion | None) -> StoredVersion:
        """Store a resource over ``before``, its current version. Identical bytes create no new version."""
        if before is not None and not before.deleted and before.body == resource.body:
            return before
        stored = self._write(resource.type, resource.id, before, resource.body, None, None)
        if before is not None:
            self._forget_index(resource.type, resource.id)
        for system, value in resource.identifiers():
            self._db.execute(
                "INSERT OR IGNORE INTO identifier VALUES (?,?,?,?)",
                (resource.type, value, system, resource.id),
            )
        key = resource.key
        self._db.executemany("INSERT OR IGNORE INTO link VALUES (?,?)", [(target, key) for target in targets])
        return stored

    def put_blob(self, identity: str, content_type: str, blob: str, before: StoredVersion | None) -> StoredVersion:
        """Store raw Binary content from the file ``blob`` of the directory ``blobs``."""
        if before is not None:
            self._forget_index("Binary", identity)
        return self._write("Binary", identity, before, None, content_type, blob)

    def delete(self, before: StoredVersion) -> None:
        """Mark a resource as deleted."""
        self._db.execute(
            "UPDATE resource SET version=version+1, updated=?, deleted=1, body=NULL, content_type=NULL, blob=NULL"
            " WHERE type=? AND id=?",
            (_now(), before.type, before.id),
        )
        self._forget_index(before.type, before.id)

    def referrer(self, key: str) -> str | None:
        """Return ``Type/id`` of another resource that refers to this one, or None."""
        row = self._db.execute("SELECT source FROM link WHERE target=? AND source<>? LIMIT 1", (key, key)).fetchone()
        return None if row is None else str(row[0])

    def next_number(self) -> int:
        """Return the next value of the counter for ids, above 1000; the counter survives restarts."""
        row = self._db.execute(
            "INSERT INTO counter VALUES ('id', 1001) ON CONFLICT (name) DO UPDATE SET value=value+1 RETURNING value"
        ).fetchone()
        return int(row[0])

    def counts(self) -> dict[str, int]:
        """Return the number of resources by type, without deleted ones."""
        rows = self._db.execute("SELECT type, count(*) FROM resource WHERE deleted=0 GROUP BY type ORDER BY type")
        return {str(kind): int(number) for kind, number in rows}

    def page(self, after: tuple[str, str], limit: int) -> list[StoredVersion]:
        """Return up to ``limit`` resources after a type and id, in this order."""
        query = f"{_SELECT} WHERE deleted=0 AND (type, id) > (?, ?) ORDER BY type, id LIMIT ?"
        return [_stored(row) for row in self._db.execute(query, (*after, limit))]

    def find(
        self,
        kind: str,
        ids: list[list[str]],
        identifiers: list[list[tuple[str | None, str | None]]],
        *,
        after: str,
        limit: int,
    ) -> tuple[int, list[StoredVersion]]:
        """Return the total, and up to ``limit`` resources with an id above ``after``.

        Values of an inner list are alternatives; all lists must match. An identifier is (system, value), None for
        "any"; an empty system means "without a system".
        """
        where = ["type=?", "deleted=0"]
        values: list[str] = [kind]
        for alternatives in ids:
            where.append(f"id IN ({','.join('?' * len(alternatives))})")
            values += alternatives
        for pairs in identifiers:
            tests: list[str] = []
            inner: list[str] = []
            for system, value in pairs:
                test = [f"{name}=?" for name, wanted in (("system", system), ("value", value)) if wanted is not None]
                inner += [wanted for wanted in (system, value) if wanted is not None]
                tests.append(f"({' AND '.join(test)})")
            where.append("id IN (SELECT id FROM identifier WHERE type=? AND (" + " OR ".join(tests) + "))")  # noqa: S608
            values += [kind, *inner]
        condition = " AND ".join(where)
        # Conditions consist of constants and question marks.
        count = "SELECT count(*) FROM resource WHERE " + condition  # noqa: S608
        total = int(self._db.execute(count, values).fetchone()[0])
        query = _SELECT + " WHERE " + condition + " AND id>? ORDER BY id LIMIT ?"
        return total, [_stored(row) for row in self._db.execute(query, (*values, after, limit))]

    def _write(
        self,
        kind: str,
        identity: str,
        before: StoredVersion | None,
        body: bytes | None,
        content: str | None,
        blob: str | None,
    ) -> StoredVersion:
        version = 1 if before is None else before.version + 1
        stored = StoredVersion(kind, identity, version, _now(), False, body, content, blob)
        self._db.execute(
            "INSERT INTO resource (type, id, version, updated, deleted, body, content_type, blob)"
            " VALUES (?,?,?,?,0,?,?,?) ON CONFLICT (type, id) DO UPDATE SET version=excluded.version,"
            " updated=excluded.updated, deleted=0, body=excluded.body, content_type=excluded.content_type,"
            " blob=excluded.blob",
            (kind, identity, version, stored.updated, body, content, blob),
        )
        return stored

    def _forget_index(self, kind: str, identity: str) -> None:
        self._db.execute("DELETE FROM identifier WHERE type=? AND id=?", (kind, identity))
        self._db.execute("DELETE FROM link WHERE source=?", (f"{kind}/{identity}",))

    def _forget_unreferenced_blobs(self) -> None:
        known = {row[0] for row in self._db.execute("SELECT blob FROM resource WHERE blob IS NOT NULL")}
        for path in self.blobs.iterdir():
            if path.name not in known:
                path.unlink()

    def _cleanup(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()


def new_blob_name() -> str:
    """Return a file name for raw content."""
    return secrets.token_hex(16)


def _stored(row: tuple[str, str, int, int, int, bytes | None, str | None, str | None]) -> StoredVersion:
    return StoredVersion(row[0], row[1], row[2], row[3], bool(row[4]), row[5], row[6], row[7])


def _now() -> int:
    return time.time_ns() // 1_000_000


__all__ = ["Identifier", "ResourceStore", "StoredVersion", "new_blob_name"]
