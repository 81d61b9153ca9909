"""``send/pending.db``: the resources of a direct load that are not on the server yet (document 3 §7).

SQLite, so that memory does not grow with their number and that they outlive a kill. A row is a resource that the server
refused with its transaction, by file, line and entry; with a ``reason`` one that was refused alone, or that cannot be
sent at all. Rows of a file are committed before the file's done record is written.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from tasks.send.transaction import Item
from tasks.shared.errors import storage_errors
from tasks.shared.fhir.resource import UNREADABLE, references_in, target_of

NAME: Final = "pending.db"

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS pending (
    id INTEGER PRIMARY KEY, file TEXT, line INTEGER, entry INTEGER, key TEXT, patient TEXT, encounter TEXT,
    reason TEXT, raw BLOB, status INTEGER, answer BLOB
);
CREATE INDEX IF NOT EXISTS by_patient ON pending (reason, patient, encounter, id);
CREATE INDEX IF NOT EXISTS by_key ON pending (key);
"""
_INSERT: Final = (
    "INSERT INTO pending (file, line, entry, key, patient, encounter, reason, raw) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_SELECT: Final = (
    "SELECT id, file, line, entry, key, patient, encounter, raw, status, reason, answer FROM pending WHERE "
)
_LARGEST: Final = 1 << 20
"""Bytes of an answer that are kept."""

Failure = tuple[Item, int | None, str, bytes | None]
"""A resource that did not get in: status, reason as logs may show it, and answer."""


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
        known = self._rows("SELECT DISTINCT file FROM pending")
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
        """Make what was added and removed durable."""
        with self._errors():
            self._db.commit()

    def refuse(self, item: Item, status: int, reason: str, answer: bytes) -> None:
        """Record that a resource was refused alone."""
        values = (status, reason, answer[:_LARGEST], item.row)
        self._change("UPDATE pending SET status = ?, reason = ?, answer = ? WHERE id = ?", [values])

    def forget_refusals(self) -> None:
        """Let what was refused alone be tried again."""
        self._change("UPDATE pending SET reason = '' WHERE status IS NOT NULL", [()])
        self.commit()

    def count(self) -> int:
        """Return how many resources are to be tried again."""
        return int(self._rows("SELECT count(*) FROM pending WHERE reason = ''")[0][0])

    def items(self, *, backwards: bool = False) -> Iterator[Item]:
        """Yield the resources to be tried again: those of nobody first, then patient by patient, and what belongs to an
        encounter next to it. Other rows may be removed meanwhile."""
        order = "patient DESC, encounter DESC, id DESC" if backwards else "patient, encounter, id"
        yield from (item for item, *_ in self._walk(f"reason = '' ORDER BY {order}"))

    def failed(self) -> Iterator[Failure]:
        """Yield what was refused alone and what cannot be sent, in the order of the input."""
        return self._walk("reason <> '' ORDER BY file, line, entry")

    def with_targets(self, item: Item, most: int) -> list[Item]:
        """Return a resource behind those that it refers to, directly or not: at most ``most`` in all."""
        found, wanted = {item.key: item}, sorted(references_in(item.raw))
        while wanted and len(found) < most:
            key = target_of(wanted.pop())
            for one, *_ in [] if key is None or key in found else self._select("key = ? AND reason = ''", key):
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

    def _rows(self, statement: str, *values: object) -> list[Any]:
        with self._errors():
            return self._db.execute(statement, values).fetchall()

    def _walk(self, condition: str) -> Iterator[Failure]:
        with self._errors():
            found = self._db.execute(f"SELECT id FROM pending WHERE {condition}")  # noqa: S608 - constant text
        while True:
            with self._errors():
                rows = found.fetchmany(100)
            if not rows:
                return
            for (row,) in rows:
                yield from self._select("id = ?", row)

    def _select(self, where: str, value: object) -> list[Failure]:
        return [
            (Item(key, raw, file, line, entry, (patient, encounter), row), status, reason, answer)
            for row, file, line, entry, key, patient, encounter, raw, status, reason, answer in self._rows(
                _SELECT + where, value
            )
        ]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with self._lock, storage_errors(self._path):
            try:
                yield
            except sqlite3.Error as error:
                full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
                raise OSError(errno.ENOSPC if full else errno.EIO, "SQLite failed") from None


class _Concerns(msgspec.Struct, gc=False):
    """The elements of R4 that name the patient and the encounter of a resource."""

    subject: Any = None
    patient: Any = None
    beneficiary: Any = None
    encounter: Any = None
    context: Any = None


_concerns = msgspec.json.Decoder(_Concerns)


def _concerned(item: Item) -> tuple[str, str]:
    """Return the ids of the patient and the encounter that a resource is about; empty without one."""
    kind, _, identifier = item.key.partition("/")
    try:
        read = _concerns.decode(item.raw)
    except UNREADABLE:
        return "", ""
    patient = _id("Patient", read.subject, read.patient, read.beneficiary)
    encounter = _id("Encounter", read.encounter, read.context)
    return (identifier, "") if kind == "Patient" else (patient, identifier if kind == "Encounter" else encounter)


def _id(wanted: str, *elements: Any) -> str:
    for element in elements:
        reference = element.get("reference") if isinstance(element, dict) else None
        kind, _, identifier = (target_of(reference) or "" if isinstance(reference, str) else "").partition("/")
        if kind == wanted:
            return identifier
    return ""
