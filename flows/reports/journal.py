"""The journal of one run of a job, ``events.ndjson``, and the log of all its runs, ``job.log``.

Steps report events through their ``Meter``, as do the clients of services. ``jobs_dir/<job>/events.ndjson`` is
append-only, mode 0600, one event per line (``flows/reports/events.py``). Every event is one write, so a killed process
leaves complete lines; only a power cut or a full disk can tear the last one, and the next run removes it first. The
journal is for other tools: the program's own state is in the job record, and a journal that cannot be written fails no
run.
"""

from __future__ import annotations

import io
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from config import ConfigError
from flows.job.record import Run, timestamp
from flows.reports.events import EventEntry, EventHead, Export, JobEnd, JobEvent, StepEvent
from tasks.shared.errors import SluiceError, StorageError, storage_errors
from tasks.shared.events import Event
from tasks.shared.files.out_file import AppendFile
from tasks.shared.files.private_file import open_private
from tasks.shared.log import logger
from tasks.shared.report import StepReport

NAME: Final = "events.ndjson"


class EventLog:
    """The event file of one job, open for appending; thread-safe. Only the holder of the job's lock opens it.

    Raises:
        StorageError: it cannot be opened.
    """

    def __init__(self, directory: Path) -> None:
        self._lock = threading.Lock()
        self._lost = 0
        self._file = AppendFile(directory / NAME)

    @property
    def empty(self) -> bool:
        """Return whether the file had no events."""
        return self._file.size == 0

    def append(self, entry: EventEntry) -> None:
        """Append an entry. Never raises: the first event that cannot be written is logged in ``job.log``."""
        line = entry.line()
        with self._lock:
            if not self._file.is_open:
                return  # a thread that outlived the run
            try:
                self._file.append(line, sync=isinstance(entry.event, JobEvent))
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


class Journal:
    """Collector of the events of one run, from any thread; it adds the run and the current step.

    ``run`` is that of the record; ``step`` the name and position at which a parked job continues.
    """

    def __init__(
        self,
        job: str,
        log: EventLog,
        run: Run,
        *,
        step: tuple[str, int] | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.run = run
        self._job = job
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._step: tuple[str, int] | tuple[None, None] = step or (None, None)
        self._ended = False
        self._latest = run.began

    @classmethod
    @contextmanager
    def opened(cls, directory: Path, job: str, steps: tuple[str, ...], run: Run) -> Iterator[Journal]:
        """Open the journal of a run of ``steps``; if the context is left without an end event, write one.

        Raises:
            StorageError: the log cannot be opened.
        """
        with EventLog(directory) as log:
            journal = cls(job, log, run)
            journal.begins(steps, first=log.empty)
            try:
                yield journal
            except BaseException as left:
                journal.end_with_exception(left)
                raise

    def begins(self, steps: tuple[str, ...], *, first: bool) -> None:
        """Record that the run began; in an empty journal, also that the job was created."""
        if first:
            self._append_event(JobEvent(state="created", steps=list(steps)), self.run.created)
        self._append_event(JobEvent(state="started" if first else "resumed"), self.run.began)

    def record_event(self, event: Event) -> None:
        """Record an event (``tasks.shared.events.Collector``)."""
        self._append_event(event)

    def _append_event(self, event: Event, time: str | None = None) -> str:
        with self._lock:  # the order of the lines is that of their times
            name, position = self._step
            head = EventHead(time=time or self.now(), job=self._job, run=self.run.number, step=name, position=position)
            self._log.append(EventEntry(head, event))
            return head.time

    def now(self) -> str:
        """Return the current time for an event, never before that of the last event, even if the clock was set back."""
        self._latest = max(self._latest, timestamp(self._clock()))
        return self._latest

    def at(self, name: str, position: int) -> None:
        """Assign later events to this step."""
        self._step = (name, position)

    def completed(self, step: StepReport, *, mode: str | None = None) -> None:
        """Report that a step is complete and, if it sent data, how much and in which ``mode``."""
        counts = step.model_dump(include=set(StepEvent.__struct_fields__) - {"state", "warnings"})
        self.record_event(StepEvent(state="completed", warnings=len(step.warnings), **counts))
        if mode is not None:
            self.record_event(Export(mode=mode, files=step.files, resources=step.resources_out, bytes=step.bytes_out))

    def ends(self, state: JobEnd, *, error: str | None = None, reason: str | None = None) -> str:
        """Record the end of the run and return its time; ``error`` is a reference."""
        self._ended = True
        if state == "completed":
            self._step = (None, None)
        return self._append_event(JobEvent(state=state, error=error, reason=reason))

    @property
    def over(self) -> bool:
        """Return whether the end of the run was recorded."""
        return self._ended

    def end_with_exception(self, exception: BaseException) -> None:
        """Record the end of a run that an exception ends, unless an end was recorded."""
        if self._ended:
            return
        if isinstance(exception, SluiceError | ConfigError):
            reference = exception.reference if isinstance(exception, SluiceError) else exception.findings[0].reference
            self.ends("failed", error=reference)
        elif isinstance(exception, Exception):
            self.ends("failed", error="internal")
        else:
            self.ends("stopped", reason=type(exception).__name__)


class _JobLogFormatter(logging.Formatter):
    """Formatter: time in UTC, level, message; one line per record, so that no message can forge a line."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        record.exc_info = None  # a traceback may quote data
        record.exc_text = None
        text = super().format(record)
        return text.replace("\r", "\\r").replace("\n", "\n    ")


@contextmanager
def job_log(path: Path, who: str = "") -> Iterator[None]:
    """Append everything from the pipeline's logger to ``job.log`` (0600); ``who`` begins each message."""
    with storage_errors(path):
        stream = io.TextIOWrapper(io.BufferedWriter(open_private(path, "ab")), encoding="utf-8")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_JobLogFormatter(f"%(asctime)sZ %(levelname)s {who}%(message)s", "%Y-%m-%dT%H:%M:%S"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        stream.close()
