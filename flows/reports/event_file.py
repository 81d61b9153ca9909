"""``jobs_dir/<job>/events.ndjson``: append-only, mode 0600, one event a line (``flows/reports/events.py``).

Every event is one write, so a killed process leaves whole lines; only a power cut or a full disk can tear the last
one, and the next run removes what is torn before it goes on. The log tells others what happened: what the program
itself must know is in the job record, and a log that cannot be written fails no run.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final, Self

from flows.reports.events import Entry, Job
from tasks.shared.errors import StorageError
from tasks.shared.files.out_file import AppendFile
from tasks.shared.log import logger

NAME: Final = "events.ndjson"


class EventLog:
    """The log of one job, open for appending; thread-safe. One process has it at a time: the one with the job's lock.

    Raises:
        StorageError: it cannot be opened.
    """

    def __init__(self, directory: Path) -> None:
        self._lock = threading.Lock()
        self._lost = 0
        self._file = AppendFile(directory / NAME)

    @property
    def empty(self) -> bool:
        """Whether nothing was told yet."""
        return self._file.size == 0

    def append(self, entry: Entry) -> None:
        """Append an entry. Never raises: the first event that cannot be written is said in ``job.log``."""
        line = entry.line()
        with self._lock:
            if not self._file.is_open:
                return  # a thread that outlived the run
            try:
                self._file.append(line, sync=isinstance(entry.event, Job))
            except StorageError as error:
                self._lost += 1
                if self._lost == 1:
                    logger.warning("%s cannot be written: %s", NAME, error.message)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock:
            self._file.close()
            if self._lost:
                logger.warning("%d events are missing in %s", self._lost, NAME)
                self._lost = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
