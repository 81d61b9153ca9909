"""What goes on beside a running step: progress for people, and a cancel from the Prefect UI."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flows.engine.api import PrefectApi
from flows.engine.api_address import ApiAddress
from flows.engine.artifacts import Artifacts, step_key
from flows.job.record import ProgressRecord, RecordWriter
from flows.reports.markdown import literal
from flows.signals import exit_code_of
from tasks.shared.errors import SluiceError
from tasks.shared.log import logger
from tasks.shared.meter import Meter, Snapshot
from tasks.shared.stop import Stop
from tasks.shared.units import human_bytes, human_seconds

RECORD_EVERY = 2.0
"""Seconds between two writings of the progress into the record."""

LAST_WORDS = 2.0
"""Seconds to record a stop when the process ends without waiting for its threads."""

LOOK_EVERY = 3.0
"""Seconds between two looks for a cancel in the UI."""

CANCEL = "cancel"
"""Why a step stops after a cancel in the UI; else it is the name of a signal."""


class Watcher:
    """A thread beside a step. Best effort: what it cannot write now it writes the next time."""

    def __init__(
        self, writer: RecordWriter, artifacts: Artifacts, stop: Stop, show: Callable[[str, Snapshot], None]
    ) -> None:
        self._writer = writer
        self._artifacts = artifacts
        self._stop = stop
        self._show = show
        self._end = threading.Event()

    @contextmanager
    def watching(self, step: str, position: int, progress: Meter) -> Iterator[None]:
        """Watch while the step runs."""
        self._end.clear()
        thread = threading.Thread(target=self._watch, args=(step, position, progress), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join(timeout=5)

    def _watch(self, step: str, position: int, progress: Meter) -> None:
        try:
            if self._until_the_end(step, position, progress):
                self._record(step, position, progress.snapshot(), over=True)
        except SluiceError as error:
            logger.warning("the last progress of %s is not recorded: %s", step, error.message)

    def _until_the_end(self, step: str, position: int, progress: Meter) -> bool:
        """Whether progress was recorded."""
        recorded = False
        next_record = time.monotonic() + RECORD_EVERY
        next_look = time.monotonic() + LOOK_EVERY
        complained = False
        while not self._end.wait(0.2):
            snapshot = progress.snapshot()
            self._present(step, snapshot)
            now = time.monotonic()
            try:
                if now >= next_record:
                    next_record = now + RECORD_EVERY
                    self._record(step, position, snapshot)
                    recorded = True
                if now >= next_look:
                    next_look = now + LOOK_EVERY
                    self._look_for_cancel()
            except SluiceError as error:
                if not complained:
                    complained = True
                    logger.warning("progress is not recorded at the moment: %s", error.message)
        return recorded

    def _present(self, step: str, snapshot: Snapshot) -> None:
        try:
            self._show(step, snapshot)
        except (OSError, ValueError) as error:
            # Nobody looks any more. The watch goes on: it is how a cancel reaches the run.
            self._show = _nobody
            logger.warning("progress is not shown any more: %s", type(error).__name__)

    def _record(self, step: str, position: int, snapshot: Snapshot, *, over: bool = False) -> None:
        text = describe(snapshot, over=over)
        self._writer.set(
            progress=ProgressRecord(fraction=snapshot.fraction, eta_seconds=snapshot.eta_seconds, message=text)
        )
        # What is read is not yet done: the last answers of a service are still to come.
        percent = min(round(100 * (snapshot.fraction or 0.0), 1), 100.0 if over else 99.0)
        key = step_key("progress", position, step, self._writer.job_id)
        self._artifacts.publish(key, "progress", percent, literal(f"{step}: {text}"))

    def _look_for_cancel(self) -> None:
        if cancel_asked(self._writer.api, self._writer.job_id):
            self._stop.request(CANCEL)


def cancel_asked(api: PrefectApi, job_id: str) -> bool:
    """Whether somebody cancelled the run, or removed it."""
    run = api.read_run(job_id)
    return run is None or run.get("state_type") in {"CANCELLING", "CANCELLED"}


def _nobody(_step: str, _snapshot: Snapshot) -> None:
    """Show nothing."""


def describe(snapshot: Snapshot, *, over: bool = False) -> str:
    """One line for a person: what was done, how fast, how long still; not the latter when the step is ``over``."""
    parts = []
    if snapshot.message:
        parts.append(snapshot.message)
    if snapshot.files or snapshot.files_total:
        total = f"/{snapshot.files_total}" if snapshot.files_total is not None else ""
        parts.append(f"{snapshot.files}{total} files")
    if snapshot.resources:
        parts.append(f"{snapshot.resources:,} resources")
    if snapshot.bytes:
        parts.append(f"{human_bytes(snapshot.bytes)} at {human_bytes(snapshot.rate)}/s")
    if not over and (eta := snapshot.eta_seconds) is not None:
        parts.append(f"{human_seconds(eta)} left")
    return ", ".join(parts) or "started"


def record_end(api: PrefectApi, job_id: str, signal_name: str) -> str:
    """Record the end of a process that a signal ends, and say what it was: a worker passes a cancel on as one."""
    if cancel_asked(api, job_id):
        api.set_state(job_id, "CANCELLED", message="cancelled in the Prefect UI", force=True)
        return CANCEL
    api.set_labels(job_id, {"job.stopped_by": signal_name})
    api.set_state(job_id, "CRASHED", name="Stopped", message=f"stopped by {signal_name}", force=True)
    return signal_name


def end_now(address: ApiAddress, job_id: str, signal_name: str, farewell: Callable[[str], Any]) -> None:
    """Record the end of a job and end the process although threads still work. Their files have no final names.

    ``farewell`` is told why it ends: ``CANCEL``, or the signal, also when the API has not said. The record gets
    ``LAST_WORDS`` seconds: a server that hangs does not keep the process.
    """
    reason = signal_name

    def record() -> None:
        nonlocal reason
        try:
            with PrefectApi(address, timeout=LAST_WORDS, patience=0) as api:
                reason = record_end(api, job_id, signal_name)
        except SluiceError as error:
            logger.error("the stop could not be recorded: %s", error.message)

    last_words = threading.Thread(target=record, daemon=True)
    last_words.start()
    last_words.join(LAST_WORDS)
    try:
        farewell(reason)
    finally:
        os._exit(exit_code_of(signal_name))
