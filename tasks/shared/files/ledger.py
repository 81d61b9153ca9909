"""Ledger of the parts of a file that are done; it survives a crash.

A ledger is append-only NDJSON (mode 0600). It contains only positions and counts, no data::

    {"file":"core.ndjson.zst","identity":"…"}            the next lines are for this content
    {"file":"core.ndjson.zst","done":[[0,100]],"counts":{"sent":100}}
    {"file":"core.ndjson.zst","complete":{"resources":100}}

Positions are ordinals, counted from 0 in the order of the file, so a resumed step may cut its work
differently: the batch size may have changed. They belong to an ``identity`` of the file and of where its
content goes; with another identity the file starts over.

The recorded work must be idempotent: after a crash the last entries may be missing, and their work is done
again. A killed process loses nothing (every entry is one write), a power cut at most the entries of the last
``SYNC_SECONDS``. A torn or unreadable entry ends the ledger: later entries are ignored, not guessed.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from tasks.shared.errors import StorageError, storage_errors
from tasks.shared.files.out_file import AppendFile

SYNC_SECONDS: Final = 1.0
"""Entries are forced to the disk at most this often, in seconds."""


class Ranges:
    """A set of integers that are mostly neighbours: sorted, disjoint half-open ranges."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in ranges:
            self.add(start, stop)

    def add(self, start: int, stop: int) -> None:
        """Add ``start`` … ``stop - 1``; an empty range changes nothing."""
        if start >= stop:
            return
        low = bisect_left(self._stops, start)  # the first range that touches or follows
        high = bisect_right(self._starts, stop)  # after the last one that touches
        if low < high:
            start = min(start, self._starts[low])
            stop = max(stop, self._stops[high - 1])
        self._starts[low:high] = [start]
        self._stops[low:high] = [stop]

    def __contains__(self, value: int) -> bool:
        at = bisect_right(self._starts, value) - 1
        return at >= 0 and value < self._stops[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._starts, self._stops, strict=True))

    def __len__(self) -> int:
        """Return the number of integers, not of ranges."""
        return sum(self._stops) - sum(self._starts)

    def covers(self, start: int, stop: int) -> bool:
        """Return whether all of ``start`` … ``stop - 1`` are contained."""
        at = bisect_right(self._starts, start) - 1
        return start >= stop or (at >= 0 and stop <= self._stops[at])


def ranges_of(values: Iterable[int]) -> list[tuple[int, int]]:
    """Return the ranges that hold exactly these integers, in order."""
    distinct = sorted(set(values))
    if distinct and distinct[-1] - distinct[0] + 1 == len(distinct):  # as a rule: no gaps
        return [(distinct[0], distinct[-1] + 1)]
    return list(Ranges((value, value + 1) for value in distinct))


class FileProgress:
    """Progress of one file: ``done`` ordinals, summed ``counts``, and closing facts.

    ``complete`` is ``None`` until the file is finished.
    """

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.done = Ranges()
        self.counts: Counter[str] = Counter()
        self.complete: dict[str, Any] | None = None


class _LedgerLine(msgspec.Struct, omit_defaults=True):
    file: str
    identity: str | None = None
    done: list[tuple[int, int]] = []
    counts: dict[str, int] = {}
    complete: dict[str, Any] | None = None


class Ledger:
    """The ledger of one step instance, open for appending. For one thread: the one that receives results.

    Raises ``StorageError`` when the file cannot be read or written.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, FileProgress] = {}
        self._decoder = msgspec.json.Decoder(_LedgerLine)
        with storage_errors(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = AppendFile(path)
        try:
            self._file.cut(self._read())
        except StorageError:
            self._file.close()
            raise
        self._synced = clock()

    def account(self, file: str, identity: str) -> FileProgress:
        """Return the progress of a file. If the identity has changed, the old progress is dropped for good."""
        account = self._accounts.get(file)
        if account is None or account.identity != identity:
            account = self._accounts[file] = FileProgress(identity)
            self._append(_LedgerLine(file, identity=identity))
        return account

    def done(self, file: str, ordinals: Iterable[int], **counts: int) -> None:
        """Record that these ordinals are done, and add to the counts."""
        entry = _LedgerLine(file, done=ranges_of(ordinals), counts={k: n for k, n in counts.items() if n})
        self._append(entry)
        self._apply(entry)

    def complete(self, file: str, facts: Mapping[str, Any]) -> None:
        """Record that a file is finished. ``facts`` is small JSON for a resumed step."""
        entry = _LedgerLine(file, complete=dict(facts))
        self._append(entry)
        self._apply(entry)

    def flush(self) -> None:
        """Force recorded entries to the disk."""
        self._file.sync()
        self._synced = self._clock()

    def close(self) -> None:
        """Flush and close; a second call does nothing."""
        if self._file.is_open:
            with self._file:
                self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read(self) -> int:
        """Read the existing entries; return the size of the readable part in bytes."""
        readable = 0
        for line in self._file.lines():
            try:
                entry = self._decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                break
            if not self._apply(entry):
                break
            readable += len(line)
        return readable

    def _apply(self, entry: _LedgerLine) -> bool:
        """Enter one entry into its account; False when it makes no sense."""
        if entry.identity is not None:
            self._accounts[entry.file] = FileProgress(entry.identity)
            return True
        account = self._accounts.get(entry.file)
        if account is None or any(not 0 <= start < stop for start, stop in entry.done):
            return False
        for start, stop in entry.done:
            account.done.add(start, stop)
        account.counts.update(entry.counts)
        if entry.complete is not None:
            account.complete = entry.complete
        return True

    def _append(self, entry: _LedgerLine) -> None:
        self._file.append(msgspec.json.encode(entry) + b"\n")
        if self._clock() - self._synced >= SYNC_SECONDS:
            self.flush()
