"""Store the groups of resources and the resources already met, on disk, because a large job has too many for memory.

A private SQLite file in the step's directory, made anew by every run and removed at its end; nothing in it must outlive
a crash. Resources are known by a digest of their ``Type/id``. Of a step that is divided, the job's own process reads
all files first, and saves what a shard cannot know of the other files: where their Provenances put its resources, and
which of its resources an earlier file has already.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final, Self

from tasks.shared.errors import StorageError
from tasks.shared.files.out_file import OutFile, size_of

_CACHE_KIB: Final = 8192
_DIGEST: Final = 16
"""Bytes. Of 10⁹ resources, two have the same digest with a probability of 10⁻²¹."""


_TOGETHER: Final = 64


class RoutingScope(IntEnum):
    """Whose Provenances: those of ``core.ndjson``, of all files, of the long line that is being read."""

    CORE = 0
    ALL = 1
    LINE = 2


class RoutingIndex:
    """The index of one run, for one thread. ``of_all`` is the saved one about all files. Raises ``StorageError``."""

    def __init__(self, directory: Path, of_all: Path | None = None) -> None:
        self._path = directory / "index.tmp"
        self._of_all = of_all
        self._calls = self._calls_before = 0
        self._file = ""
        OutFile(self._path).close()
        with self._translating():
            self._database = sqlite3.connect(self._path, isolation_level=None, uri=True)
        try:
            with self._translating():
                for statement in (
                    "PRAGMA journal_mode = OFF",
                    "PRAGMA synchronous = OFF",
                    "PRAGMA locking_mode = EXCLUSIVE",
                    f"PRAGMA cache_size = -{_CACHE_KIB}",
                    "CREATE TABLE met (key BLOB PRIMARY KEY, call INT) WITHOUT ROWID",
                    "CREATE TABLE target (scope INT, key BLOB, place INT, PRIMARY KEY (scope, key, place))",
                    "CREATE TABLE repeated (file TEXT, key BLOB, PRIMARY KEY (file, key)) WITHOUT ROWID",
                ):
                    self._database.execute(statement)
                if of_all is not None:  # it does not change any more: no locks, which a network file system may lack
                    self._database.execute("ATTACH ? AS of_all", (f"{of_all.absolute().as_uri()}?immutable=1",))
                self._database.execute("BEGIN")
        except StorageError:
            self.close()
            raise

    def begin_file(self, name: str) -> None:
        """Note that the resources that follow are those of another file."""
        self._file, self._calls_before = name, self._calls

    def save(self, path: Path) -> None:
        """Write what shards must know of all files to ``path``, on the disk. Nothing else can be done afterwards."""
        OutFile(path).close()
        with self._translating():
            self._database.execute("DROP TABLE met")
            self._database.execute("DELETE FROM target WHERE scope != ?", (int(RoutingScope.ALL),))
            self._database.execute("COMMIT")
            self._database.execute("VACUUM INTO ?", (str(path),))
        with OutFile(path, size_of(path)) as file:
            file.sync()

    def new(self, resources: Sequence[tuple[str, int]]) -> list[bool]:
        """Return for each resource (``Type/id``, index of a group) whether it is new in that group.

        Many are looked up in one statement: SQLite lets go of the interpreter's lock for each.
        """
        result: list[bool] = []
        for first in range(0, len(resources), _TOGETHER):
            digests = [_digest(f"{place} {key}") for key, place in resources[first : first + _TOGETHER]]
            new = self._new(digests)
            if self._of_all is not None:
                repeated = self._repeated(digests)
                new = [one and digest not in repeated for one, digest in zip(new, digests, strict=True)]
            result += new
        return result

    def _new(self, digests: list[bytes]) -> list[bool]:
        self._calls += 1
        count = len(digests)
        marks = [f"?{number}" for number in range(1, count + 1)]
        call = f"?{count + 1}"
        given = (*digests, self._calls)
        with self._translating():
            inserted = self._database.execute(
                f"INSERT OR IGNORE INTO met VALUES {','.join(f'({mark},{call})' for mark in marks)}",  # noqa: S608
                given,
            ).rowcount
            if inserted == count:
                return [True] * count
            rows = self._database.execute(
                f"SELECT key, call FROM met WHERE key IN ({','.join(marks)})",  # noqa: S608
                digests,
            ).fetchall()
            left = {digest for digest, met in rows if met == self._calls}
            self._database.executemany(
                "INSERT OR IGNORE INTO repeated VALUES (?, ?)",
                [(self._file, digest) for digest, met in rows if met <= self._calls_before],
            )
        result = []
        for digest in digests:  # of two in one call, the first is new
            result.append(digest in left)
            left.discard(digest)
        return result

    def _repeated(self, digests: list[bytes]) -> set[bytes]:
        """Return the resources of the current file that an earlier file of another shard may have."""
        marks = ",".join("?" * len(digests))
        with self._translating():
            rows = self._database.execute(
                f"SELECT key FROM of_all.repeated WHERE file = ? AND key IN ({marks})",  # noqa: S608
                (self._file, *digests),
            )
            return {digest for (digest,) in rows}

    def add(self, scope: RoutingScope, targets: Iterable[str], places: Iterable[int]) -> None:
        """Enter that these resources belong to the groups at ``places``."""
        rows = [(int(scope), digest, place) for digest in map(_digest, targets) for place in places]
        with self._translating():
            self._database.executemany("INSERT OR IGNORE INTO target VALUES (?, ?, ?)", rows)

    def places(self, scope: RoutingScope, keys: Sequence[str]) -> list[list[int]]:
        """Return the groups of each of these resources, in order."""
        result: list[list[int]] = []
        table = "of_all.target" if self._of_all is not None and scope is RoutingScope.ALL else "main.target"
        for first in range(0, len(keys), _TOGETHER):
            digests = [_digest(key) for key in keys[first : first + _TOGETHER]]
            marks = ",".join("?" * len(digests))
            found: dict[bytes, list[int]] = {}
            with self._translating():
                for digest, place in self._database.execute(
                    f"SELECT key, place FROM {table} WHERE scope = ? AND key IN ({marks}) ORDER BY place",  # noqa: S608
                    (int(scope), *digests),
                ):
                    found.setdefault(digest, []).append(place)
            result += [found.get(digest, []) for digest in digests]
        return result

    def forget(self, scope: RoutingScope) -> None:
        """Remove what was entered there."""
        with self._translating():
            self._database.execute("DELETE FROM target WHERE scope = ?", (int(scope),))

    def close(self) -> None:
        """Remove the file; a second call does nothing."""
        with contextlib.suppress(sqlite3.Error):  # nothing of it is needed any more
            self._database.close()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            raise StorageError(
                "disk-full" if full else "storage-failed",
                "no space is left on the device" if full else "the index of the flattening step cannot be written",
                context=str(self._path),
                hint="free some space, or put jobs_dir on a larger volume, then continue the job",
            ) from None


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=_DIGEST).digest()
