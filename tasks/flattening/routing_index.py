"""Store the groups of resources and the resources already met, on disk, because a large job has too many for memory.

A private SQLite file in the step's directory, made anew by every run and removed at its end; nothing in it must outlive
a crash. Resources are known by a digest of their ``Type/id``.
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
from tasks.shared.files.out_file import OutFile

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
    """The index of one run, for one thread. Raises ``StorageError``."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "index.tmp"
        self._calls = 0
        OutFile(self._path).close()
        with self._translating():
            self._database = sqlite3.connect(self._path, isolation_level=None)
        try:
            with self._translating():
                for statement in (
                    "PRAGMA journal_mode = OFF",
                    "PRAGMA synchronous = OFF",
                    "PRAGMA locking_mode = EXCLUSIVE",
                    f"PRAGMA cache_size = -{_CACHE_KIB}",
                    "CREATE TABLE met (key BLOB PRIMARY KEY, call INT) WITHOUT ROWID",
                    "CREATE TABLE target (scope INT, key BLOB, place INT, PRIMARY KEY (scope, key, place))",
                    "BEGIN",
                ):
                    self._database.execute(statement)
        except StorageError:
            self.close()
            raise

    def new(self, resources: Sequence[tuple[str, int]]) -> list[bool]:
        """Return for each resource (``Type/id``, index of a group) whether it is new in that group.

        Many are looked up in one statement: SQLite lets go of the interpreter's lock for each.
        """
        result: list[bool] = []
        for first in range(0, len(resources), _TOGETHER):
            digests = [_digest(f"{place} {key}") for key, place in resources[first : first + _TOGETHER]]
            result += self._new(digests)
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
                f"SELECT key FROM met WHERE key IN ({','.join(marks)}) AND call = {call}",  # noqa: S608
                given,
            )
            left = {digest for (digest,) in rows}
        result = []
        for digest in digests:  # of two in one call, the first is new
            result.append(digest in left)
            left.discard(digest)
        return result

    def add(self, scope: RoutingScope, targets: Iterable[str], places: Iterable[int]) -> None:
        """Enter that these resources belong to the groups at ``places``."""
        rows = [(int(scope), digest, place) for digest in map(_digest, targets) for place in places]
        with self._translating():
            self._database.executemany("INSERT OR IGNORE INTO target VALUES (?, ?, ?)", rows)

    def places(self, scope: RoutingScope, keys: Sequence[str]) -> list[list[int]]:
        """Return the groups of each of these resources, in order."""
        result: list[list[int]] = []
        for first in range(0, len(keys), _TOGETHER):
            digests = [_digest(key) for key in keys[first : first + _TOGETHER]]
            marks = ",".join("?" * len(digests))
            found: dict[bytes, list[int]] = {}
            with self._translating():
                for digest, place in self._database.execute(
                    f"SELECT key, place FROM target WHERE scope = ? AND key IN ({marks}) ORDER BY place",  # noqa: S608
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
