"""Index of a directory of FHIR NDJSON: the position, patients, codes and days of each resource.

One SQLite file, built once for a directory's content and rebuilt when a file's name, size or time has changed. The
index contains no resources. Compressed files are unpacked next to the index, so that every resource can be read by its
offset. While the index is built, memory grows with the number of patients, later not with the data.
"""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from deployments.sandbox.common.serve import SandboxStartError
from deployments.sandbox.extraction.reader import ResourceReader
from deployments.sandbox.extraction.scan import ScannedResource, scan
from tasks.shared.errors import SluiceError
from tasks.shared.files.data_directory import data_files, is_consent_name
from tasks.shared.files.ndjson import pieces

logger = logging.getLogger("sandbox.extraction")
_VERSION = 2
_ZST = b"\x28\xb5\x2f\xfd"
_CHUNK = 20_000
_TABLES = """
CREATE TABLE patient (number INTEGER PRIMARY KEY, id TEXT NOT NULL);
CREATE TABLE resource (
  number INTEGER PRIMARY KEY, type TEXT NOT NULL, id TEXT NOT NULL, file INTEGER NOT NULL, start INTEGER NOT NULL,
  length INTEGER NOT NULL, bundle INTEGER, first INTEGER, last INTEGER
);
CREATE TABLE owner (resource INTEGER NOT NULL, patient INTEGER NOT NULL);
CREATE TABLE url (file INTEGER NOT NULL, bundle INTEGER NOT NULL, url TEXT NOT NULL, key TEXT NOT NULL);
CREATE TABLE code (type TEXT NOT NULL, key TEXT NOT NULL, resource INTEGER NOT NULL);
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_INDEXES = """
CREATE INDEX by_name ON resource (type, id);
DELETE FROM resource WHERE number NOT IN (SELECT max(number) FROM resource GROUP BY type, id);
DELETE FROM code WHERE resource NOT IN (SELECT number FROM resource);
DELETE FROM owner WHERE resource NOT IN (SELECT number FROM resource);
CREATE INDEX by_patient ON owner (patient, resource);
CREATE INDEX by_resource ON owner (resource, patient);
CREATE INDEX by_url ON url (bundle, url);
CREATE INDEX by_code ON code (type, key);
CREATE UNIQUE INDEX by_patient_id ON patient (id);
"""
_NAMED = 20
"""Number of bad lines that a message lists."""


class BadLines(StrEnum):
    """Treatment of lines that are not FHIR resources."""

    REFUSE = "refuse"
    """Refuse to start and list the lines: a cohort counted over a part of the data would be wrong."""
    SKIP = "skip"
    """Omit the lines, with a warning that counts them."""


class ResourceIndex:
    """The index of one data directory."""

    def __init__(self, data: Path, directory: Path, bad_lines: BadLines = BadLines.REFUSE) -> None:
        """Set the data and index directories. An existing index is reused if the data is unchanged."""
        self._data = data
        self._bad_lines = bad_lines
        self._path = directory / "index.sqlite3"
        self._directory = directory
        self.files: list[Path] = []
        """Uncompressed files, by their number in the index."""

    def build(self) -> None:
        """Build the index unless it is current.

        Raises ``SandboxStartError`` with file and line of everything that is not a resource, unless that is skipped.
        """
        try:
            files = [path for path in data_files(self._data) if not is_consent_name(path.name)]
            facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
            state = json.dumps([_VERSION, str(self._data), facts, self._bad_lines])
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._is_current(state):
                self._make(files, state)
            self.files = [self._plain(number, path) for number, path in enumerate(files)]
        except SluiceError as error:
            raise SandboxStartError(f"the data cannot be read: {error.message}") from None
        except (OSError, sqlite3.Error) as error:
            raise SandboxStartError(f"the index of {self._data} cannot be built: {error}") from None

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
            bad, nameless = _Lines(), _Lines()
            for number, path in enumerate(files):
                if _is_zst(path):
                    self._unpack(path, self._plain_path(number, path))
                for item in scan(self._plain(number, path)):
                    if isinstance(item, ScannedResource):
                        filler.add(number, item)
                    else:
                        (nameless if item.nameless else bad).add(path.name, item.line)
            self._judge(bad, nameless)
            filler.finish()
            db.execute("INSERT INTO fact VALUES ('state', ?)", (state,))
            db.execute("COMMIT")
            db.executescript(_INDEXES + "ANALYZE;")
        part.replace(self._path)

    def _judge(self, bad: _Lines, nameless: _Lines) -> None:
        """Refuse bad lines, or log the number of omitted ones."""
        if bad.count and self._bad_lines is BadLines.REFUSE:
            raise SandboxStartError(
                f"the data in {self._data} cannot be used. Not FHIR resources in JSON: {bad}."
                " Fix these lines, or skip them with --set bad_lines=skip"
            )
        for lines, what in (
            (bad, "that are not FHIR resources in JSON"),
            (nameless, "of resources without a usable id"),
        ):
            if lines.count:
                logger.warning("skipped %d lines or entries %s: %s", lines.count, what, lines)

    def _plain_path(self, number: int, path: Path) -> Path:
        return self._directory / "unpacked" / f"{number}-{path.name}.plain"

    def _plain(self, number: int, path: Path) -> Path:
        return self._plain_path(number, path) if _is_zst(path) else path

    def _unpack(self, path: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with target.open("wb") as file:
            for piece in pieces(path):
                file.write(piece)

    @contextmanager
    def reader(self) -> Iterator[ResourceReader]:
        """Yield a reader for one thread, open while the block runs. Raises ``OSError``, ``sqlite3.Error``."""
        with _open(self._path) as db, ResourceReader(db, self.files) as reader:
            yield reader


class _Lines:
    """Counts lines of the data and lists the first ones."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[str] = []

    def add(self, name: str, line: int) -> None:
        """Add a line of a file."""
        self.count += 1
        if len(self._first) < _NAMED:
            self._first.append(f"{name}:{line}")

    def __str__(self) -> str:
        more = self.count - len(self._first)
        return ", ".join(self._first) + (f", and {more} more" if more else "")


class _Filler:
    """Inserts rows in large batches."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._patients: dict[str, int] = {}
        self._count = 0
        self._rows: list[tuple[object, ...]] = []
        self._owners: list[tuple[int, int]] = []
        self._codes: list[tuple[str, str, int]] = []
        self._urls: list[tuple[object, ...]] = []

    def add(self, file: int, item: ScannedResource) -> None:
        """Add a resource of a file."""
        self._count += 1
        first, last = (item.days.first, item.days.last) if item.days else (None, None)
        self._rows.append(
            (self._count, item.type, item.id, file, item.start, item.length, item.bundle, first, last)
        )  # fmt: skip
        for patient in item.patients:
            self._owners.append((self._count, self._patients.setdefault(patient, len(self._patients) + 1)))
        self._codes += [(item.type, key, self._count) for key in dict.fromkeys(item.codes)]
        if item.url is not None:
            self._urls.append((file, item.bundle, item.url, f"{item.type}/{item.id}"))
        if len(self._rows) >= _CHUNK:
            self._flush()

    def finish(self) -> None:
        """Insert the remaining rows."""
        self._flush()
        self._db.executemany("INSERT INTO patient (id, number) VALUES (?,?)", self._patients.items())

    def _flush(self) -> None:
        self._db.executemany("INSERT INTO resource VALUES (?,?,?,?,?,?,?,?,?)", self._rows)
        self._db.executemany("INSERT INTO owner VALUES (?,?)", self._owners)
        self._db.executemany("INSERT INTO code VALUES (?,?,?)", self._codes)
        self._db.executemany("INSERT INTO url VALUES (?,?,?,?)", self._urls)
        for rows in (self._rows, self._owners, self._codes, self._urls):
            rows.clear()


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
