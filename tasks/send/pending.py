"""``send/pending.db``: the resources of a direct load that are not on the server yet (docs/services.md).

SQLite, so that memory does not grow with their number and that they outlive a kill. A row is one resource, found by
file, line and entry: the server refused its transaction, or, if the row has a ``reason``, it cannot be sent at all.
Rows of a file are committed before the file's done record is written.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from tasks.send.transaction import Item
from tasks.shared.errors import storage_errors
from tasks.shared.fhir.resource import references_in, target_of

NAME: Final = "pending.db"

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS pending (
    id INTEGER PRIMARY KEY, file TEXT, line INTEGER, entry INTEGER, key TEXT, patient TEXT, encounter TEXT,
    reason TEXT, raw BLOB
);
CREATE INDEX IF NOT EXISTS by_patient ON pending (reason, patient, encounter, id);
CREATE INDEX IF NOT EXISTS by_key ON pending (key);
"""
_INSERT: Final = (
    "INSERT INTO pending (file, line, entry, key, patient, encounter, reason, raw) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_SELECT: Final = "SELECT id, file, line, entry, key, patient, reason, raw FROM pending WHERE "
_PATIENT: Final = re.compile(
    rb'"(?:subject|patient|beneficiary)"\s*:\s*\{[^{}]*?"reference"\s*:\s*"(?:[^"]*/)?Patient/([^"/]+)'
)
_ENCOUNTER: Final = re.compile(
    rb'"(?:encounter|context)"\s*:\s*\{[^{}]*?"reference"\s*:\s*"(?:[^"]*/)?Encounter/([^"/]+)'
)


class Pending:
    """The rows; safe for several threads. As a context manager it closes the file."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._lock = threading.Lock()
        with self._errors():
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600))
            self._db = sqlite3.connect(self._path, check_same_thread=False)
            self._db.executescript(_TABLE)

    def keep_only(self, files: Collection[str]) -> None:
        """Remove the rows of all files but these."""
        with self._errors():
            known = self._db.execute("SELECT DISTINCT file FROM pending").fetchall()
        self._change("DELETE FROM pending WHERE file = ?", [row for row in known if row[0] not in files])
        self.commit()

    def add(self, items: Iterable[Item], reason: str = "") -> None:
        """Add resources, to be committed."""
        rows = [(one.file, one.line, one.entry, one.key, *_concerned(one), reason, bytes(one.raw)) for one in items]
        self._change(_INSERT, rows)

    def remove(self, items: Iterable[Item]) -> None:
        """Remove rows for good."""
        self._change("DELETE FROM pending WHERE id = ?", [(one.row,) for one in items])
        self.commit()

    def commit(self) -> None:
        """Make added and removed rows durable."""
        with self._errors():
            self._db.commit()

    def count(self) -> int:
        """Return how many resources are to be tried again."""
        with self._errors():
            return int(self._db.execute("SELECT count(*) FROM pending WHERE reason = ''").fetchone()[0])

    def items(self, *, backwards: bool = False) -> Iterator[Item]:
        """Yield the resources to be tried again, ordered by patient and encounter; those without a patient come first.
        Other rows may be removed meanwhile."""
        order = "patient DESC, encounter DESC, id DESC" if backwards else "patient, encounter, id"
        return (item for item, _ in self._select(f"reason = '' ORDER BY {order}"))

    def rows(self) -> Iterator[tuple[Item, str]]:
        """Yield every row with its reason, in the order in which they were added."""
        return self._select("true ORDER BY id")

    def with_targets(self, item: Item, most: int) -> list[Item]:
        """Return at most ``most`` resources: those that ``item`` refers to, directly or not, and ``item`` last."""
        found, wanted = {item.key: item}, sorted(references_in(item.raw))
        while wanted and len(found) < most:
            key = target_of(wanted.pop())
            for one, _ in [] if key is None or key in found else self._select("key = ? AND reason = ''", key):
                found[one.key] = one
                wanted += sorted(references_in(one.raw))
        return list(reversed(found.values()))

    def delete(self) -> None:
        """Remove the file: everything is on the server."""
        self._db.close()
        with storage_errors(self._path):
            self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def _change(self, statement: str, rows: list[Any]) -> None:
        with self._errors():
            self._db.executemany(statement, rows)

    def _select(self, condition: str, *values: object) -> Iterator[tuple[Item, str]]:
        with self._errors():
            found = self._db.execute(_SELECT + condition, values)
        while True:
            with self._errors():
                row = found.fetchone()
            if row is None:
                return
            identity, file, line, entry, key, patient, reason, raw = row
            yield Item(key, raw, file, line, entry, patient, identity), reason

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with self._lock, storage_errors(self._path):
            try:
                yield
            except sqlite3.Error as error:
                full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
                raise OSError(errno.ENOSPC if full else errno.EIO, "SQLite failed") from None


def _concerned(item: Item) -> tuple[str, str]:
    """Return the ids of the patient and the encounter that a resource is about; empty without one."""
    kind, _, identifier = item.key.partition("/")
    found = (pattern.search(item.raw) for pattern in (_PATIENT, _ENCOUNTER))
    patient, encounter = ("" if one is None else one[1].decode(errors="replace") for one in found)
    return (identifier, "") if kind == "Patient" else (patient, identifier if kind == "Encounter" else encounter)
