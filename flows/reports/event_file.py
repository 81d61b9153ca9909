"""``jobs_dir/<job>/events.ndjson``: append-only, mode 0600, one event a line (``flows/reports/events.py``).

Every event is one write, so a killed process leaves whole lines; only a power cut or a full disk can tear the last
one, and the next run removes what is torn before it goes on. The log tells others what happened: what the program
itself must know is in the job record, and a log that cannot be written fails no run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from flows.reports.events import Entry, Job
from tasks.shared.errors import storage_error
from tasks.shared.log import logger

NAME: Final = "events.ndjson"

_BLOCK = 1 << 16


class EventLog:
    """The log of one job, open for appending; thread-safe. One process has it at a time: the one with the job's lock.

    Raises:
        StorageError: it cannot be opened.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._lock = threading.Lock()
        self._lost = 0
        self._handle = -1
        try:
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._size = _whole(self._handle)
            os.ftruncate(self._handle, self._size)
        except OSError as error:
            self.close()
            raise storage_error(error, self._path) from None

    def append(self, entry: Entry) -> None:
        """Append an entry. Never raises: the first event that cannot be written is said in ``job.log``."""
        line = entry.line()
        with self._lock:
            if self._handle < 0:
                return  # a thread that outlived the run
            try:
                self._write(line)
                if isinstance(entry.event, Job):
                    os.fsync(self._handle)
            except OSError as error:
                self._lost += 1
                if self._lost == 1:
                    logger.warning("%s cannot be written: %s", NAME, storage_error(error, self._path).message)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock:
            if self._handle >= 0:
                os.close(self._handle)
                self._handle = -1
            if self._lost:
                logger.warning("%d events are missing in %s", self._lost, NAME)
                self._lost = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        written = 0
        try:
            while written < len(line):  # a disk that fills up takes a part first, then says no
                written += os.write(self._handle, line[written:])
        except OSError:
            os.ftruncate(self._handle, self._size)
            raise
        self._size += len(line)


def _whole(handle: int) -> int:
    """The size of the file up to its last newline, in bytes."""
    end = os.fstat(handle).st_size
    while end > 0:
        start = max(0, end - _BLOCK)
        newline = os.pread(handle, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def read_events(directory: Path) -> Iterator[Entry]:
    """The events of a job, first one first; also while it runs. What cannot be read (a torn line) is passed over.

    Raises:
        StorageError: there is no log, or it cannot be read.
    """
    path = directory / NAME
    try:
        with path.open("rb") as file:
            for line in file:
                entry = Entry.of(line)
                if entry is not None:
                    yield entry
    except OSError as error:
        raise storage_error(error, path) from None
