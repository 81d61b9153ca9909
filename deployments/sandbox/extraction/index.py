"""The index over a directory of FHIR NDJSON: where each resource lies, whose it is, its codes and its day.

One SQLite file, built once for a directory's content and built again when a file's name, size or time has changed.
Resources themselves stay where they are; compressed files are unpacked beside the index, so that every resource can
be read by its offset. Memory does not grow with the data.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from deployments.sandbox.extraction.dates import Days
from deployments.sandbox.extraction.scan import Found, code_key, scan
from deployments.sandbox.serve import SandboxStartError
from tasks.shared.errors import SluiceError
from tasks.shared.ndjson.files import data_files, is_consent_name
from tasks.shared.ndjson.reader import read_lines

_VERSION = 1
_ZST = b"\x28\xb5\x2f\xfd"
_CHUNK = 20_000
_MANY = 500
"""Values in one SQL list."""
_TABLES = """
CREATE TABLE patient (number INTEGER PRIMARY KEY, id TEXT NOT NULL);
CREATE TABLE resource (
  number INTEGER PRIMARY KEY, type TEXT NOT NULL, id TEXT NOT NULL, patient INTEGER, file INTEGER NOT NULL,
  start INTEGER NOT NULL, length INTEGER NOT NULL, first INTEGER, last INTEGER
);
CREATE TABLE code (type TEXT NOT NULL, key TEXT NOT NULL, resource INTEGER NOT NULL);
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_INDEXES = """
CREATE INDEX by_name ON resource (type, id);
DELETE FROM resource WHERE number NOT IN (SELECT max(number) FROM resource GROUP BY type, id);
DELETE FROM code WHERE resource NOT IN (SELECT number FROM resource);
CREATE INDEX by_patient ON resource (patient, type);
CREATE INDEX by_code ON code (type, key);
CREATE UNIQUE INDEX by_patient_id ON patient (id);
"""
_COLUMNS = "r.type, r.id, p.id, r.file, r.start, r.length"
_FROM = "FROM resource r LEFT JOIN patient p ON p.number = r.patient"


@dataclass(frozen=True, slots=True)
class Place:
    """A resource and where its bytes are."""

    type: str
    id: str
    key: str
    """``Type/id``."""
    patient: str | None
    file: int
    start: int
    length: int


class Index:
    """The index of one data directory."""

    def __init__(self, data: Path, directory: Path) -> None:
        """``directory`` holds the index; made when absent, and reused while the data is the same."""
        self._data = data
        self._path = directory / "index.sqlite3"
        self._directory = directory
        self.files: list[Path] = []
        """The uncompressed files, by their numbers in the index."""

    def build(self) -> None:
        """Make the index, unless it is there. Raises ``SandboxStartError`` naming file and line of bad data."""
        try:
            files = [path for path in data_files(self._data) if not is_consent_name(path.name)]
            facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
            state = json.dumps([_VERSION, str(self._data), facts])
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._is_current(state):
                self._make(files, state)
            self.files = [self._plain(number, path) for number, path in enumerate(files)]
        except SluiceError as error:
            raise SandboxStartError(f"the data cannot be read: {error.message}") from None
        except (OSError, sqlite3.Error) as error:
            raise SandboxStartError(f"the index of {self._data} cannot be made: {error}") from None

    def _is_current(self, state: str) -> bool:
        if not self._path.exists():
            return False
        try:
            with _open(self._path) as db:
                row = db.execute("SELECT value FROM fact WHERE name='state'").fetchone()
        except sqlite3.Error:
            return False
        return row is not None and row[0] == state

    def _make(self, files: Sequence[Path], state: str) -> None:
        part = self._path.with_suffix(".part")
        for path in (part, Path(f"{part}-journal"), self._path):
            path.unlink(missing_ok=True)
        shutil.rmtree(self._directory / "unpacked", ignore_errors=True)
        with _open(part) as db:
            db.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _TABLES)
            db.execute("BEGIN")
            filler = _Filler(db)
            for number, path in enumerate(files):
                if _is_zst(path):
                    self._unpack(path, self._plain_path(number, path))
                filler.add(number, scan(self._plain(number, path), path.name))
            filler.finish()
            db.execute("INSERT INTO fact VALUES ('state', ?)", (state,))
            db.execute("COMMIT")
            db.executescript(_INDEXES + "ANALYZE;")
        part.replace(self._path)

    def _plain_path(self, number: int, path: Path) -> Path:
        return self._directory / "unpacked" / f"{number}-{path.name}.plain"

    def _plain(self, number: int, path: Path) -> Path:
        return self._plain_path(number, path) if _is_zst(path) else path

    def _unpack(self, path: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with target.open("wb") as file:
            for line in read_lines(path):
                file.write(line + b"\n")

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """A reader for one thread, open while the block runs. Raises ``OSError``, ``sqlite3.Error``."""
        with _open(self._path) as db, Reader(db, self.files) as reader:
            yield reader


class _Filler:
    """Fills the tables in large steps."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._patients: dict[str, int] = {}
        self._count = 0
        self._rows: list[tuple[object, ...]] = []
        self._codes: list[tuple[str, str, int]] = []

    def add(self, file: int, found: Iterable[Found]) -> None:
        """Take in the resources of a file."""
        for item in found:
            self._count += 1
            patient = None
            if item.patient is not None:
                patient = self._patients.setdefault(item.patient, len(self._patients) + 1)
            first, last = (item.days.first, item.days.last) if item.days else (None, None)
            self._rows.append((self._count, item.type, item.id, patient, file, item.start, item.length, first, last))
            self._codes += [(item.type, key, self._count) for key in dict.fromkeys(item.codes)]
            if len(self._rows) >= _CHUNK:
                self._flush()

    def finish(self) -> None:
        """Write the rest."""
        self._flush()
        self._db.executemany("INSERT INTO patient (id, number) VALUES (?,?)", self._patients.items())

    def _flush(self) -> None:
        self._db.executemany("INSERT INTO resource VALUES (?,?,?,?,?,?,?,?,?)", self._rows)
        self._db.executemany("INSERT INTO code VALUES (?,?,?)", self._codes)
        self._rows.clear()
        self._codes.clear()


class Reader:
    """Looks up and reads resources; for one thread."""

    def __init__(self, db: sqlite3.Connection, files: Sequence[Path]) -> None:
        self._db = db
        self._paths = files
        self._open: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def read(self, place: Place) -> bytes:
        """The bytes of a resource. Raises ``OSError``."""
        if place.file not in self._open:
            self._open[place.file] = os.open(self._paths[place.file], os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._open[place.file], place.length, place.start)

    def patients(self) -> list[str]:
        """Ids of all patients, sorted."""
        return [row[0] for row in self._db.execute("SELECT id FROM resource WHERE type='Patient' ORDER BY id")]

    def find(self, kind: str, identity: str) -> Place | None:
        """One resource by type and id."""
        row = self._db.execute(f"SELECT {_COLUMNS} {_FROM} WHERE r.type=? AND r.id=?", (kind, identity)).fetchone()
        return None if row is None else _place(row)

    def of_patient(self, patient: str, kinds: Sequence[str]) -> list[Place]:
        """A patient's resources of some types, sorted by type and id."""
        marks = ",".join("?" * len(kinds))
        query = (
            f"SELECT {_COLUMNS} {_FROM} WHERE r.patient=(SELECT number FROM patient WHERE id=?)"  # noqa: S608
            f" AND r.type IN ({marks}) ORDER BY r.type, r.id"
        )
        return [_place(row) for row in self._db.execute(query, (patient, *kinds))]

    def of_type(self, kind: str) -> Iterator[Place]:
        """All resources of a type, by id."""
        query = f"SELECT {_COLUMNS} {_FROM} WHERE r.type=? ORDER BY r.id"
        for row in self._db.execute(query, (kind,)):
            yield _place(row)

    def with_codes(self, kind: str, codes: Iterable[tuple[str, str]], time: Days | None = None) -> Iterator[Place]:
        """Resources of a type that have one of the codes, each once; with ``time`` those whose days overlap it."""
        keys = [code_key(system, code) for system, code in codes]
        for start in range(0, len(keys), _MANY):
            part = keys[start : start + _MANY]
            query = (
                f"SELECT {_COLUMNS} {_FROM} WHERE r.number IN"  # noqa: S608
                f" (SELECT resource FROM code WHERE type=? AND key IN ({','.join('?' * len(part))}))"
            )
            values: list[object] = [kind, *part]
            if time is not None:
                query += " AND r.first<=? AND r.last>=?"
                values += [time.last, time.first]
            for row in self._db.execute(query, values):
                yield _place(row)


def _place(row: tuple[str, str, str | None, int, int, int]) -> Place:
    kind, identity, patient, file, start, length = row
    # There are many places at a time, of few types and one patient each.
    return Place(sys.intern(kind), identity, f"{kind}/{identity}", patient and sys.intern(patient), file, start, length)


@contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        yield db
    finally:
        db.close()


def _is_zst(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_ZST)) == _ZST
