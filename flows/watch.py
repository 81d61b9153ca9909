"""What goes on beside a running step: progress for people, and a cancel from the Prefect UI."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flows.api import PrefectApi
from flows.record import ProgressRecord, RecordWriter
from flows.server import ApiAddress
from flows.signals import exit_code_of
from tasks.shared.errors import SluiceError
from tasks.shared.log import logger
from tasks.shared.progress import Progress, Snapshot
from tasks.shared.stop import Stop

RECORD_EVERY = 2.0
"""Seconds between two writings of the progress into the record."""

LAST_WORDS = 2.0
"""Seconds to record a stop when the process ends without waiting for its threads."""

LOOK_EVERY = 3.0
"""Seconds between two looks for a cancel in the UI."""


class Watcher:
    """A thread beside a step. Best effort: what it cannot write now it writes the next time."""

    def __init__(self, writer: RecordWriter, stop: Stop, show: Callable[[str, Snapshot], None]) -> None:
        self._writer = writer
        self._stop = stop
        self._show = show
        self._end = threading.Event()

    @contextmanager
    def watching(self, step: str, position: int, progress: Progress) -> Iterator[None]:
        """Watch while the step runs."""
        self._end.clear()
        thread = threading.Thread(target=self._watch, args=(step, position, progress), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join(timeout=5)

    def _watch(self, step: str, position: int, progress: Progress) -> None:
        artifact: str | None = None
        try:
            artifact = self._until_the_end(step, position, progress)
            if artifact is not None:
                self._record(step, position, progress.snapshot(), artifact)
        except SluiceError as error:
            logger.warning("the last progress of %s is not recorded: %s", step, error.message)

    def _until_the_end(self, step: str, position: int, progress: Progress) -> str | None:
        artifact: str | None = None
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
                    artifact = self._record(step, position, snapshot, artifact)
                if now >= next_look:
                    next_look = now + LOOK_EVERY
                    self._look_for_cancel()
            except SluiceError as error:
                if not complained:
                    complained = True
                    logger.warning("progress is not recorded at the moment: %s", error.message)
        return artifact

    def _present(self, step: str, snapshot: Snapshot) -> None:
        try:
            self._show(step, snapshot)
        except (OSError, ValueError) as error:
            # Nobody looks any more. The watch goes on: it is how a cancel reaches the run.
            self._show = _nobody
            logger.warning("progress is not shown any more: %s", type(error).__name__)

    def _record(self, step: str, position: int, snapshot: Snapshot, artifact: str | None) -> str:
        self._writer.set(
            progress=ProgressRecord(
                fraction=snapshot.fraction, eta_seconds=snapshot.eta_seconds, message=describe(snapshot)
            )
        )
        api, job_id = self._writer.api, self._writer.job_id
        percent = round(100 * (snapshot.fraction or 0.0), 1)
        text = f"{step}: {describe(snapshot)}"
        if artifact is None:
            key = f"job-{job_id}-{position}-progress"
            return api.create_artifact(job_id, key=key, kind="progress", data=percent, description=text)
        api.update_artifact(artifact, data=percent, description=text)
        return artifact

    def _look_for_cancel(self) -> None:
        run = self._writer.api.read_run(self._writer.job_id)
        if run is None or run.get("state_type") in {"CANCELLING", "CANCELLED"}:
            self._stop.request("cancel")


def _nobody(_step: str, _snapshot: Snapshot) -> None:
    """Show nothing."""


def describe(snapshot: Snapshot) -> str:
    """One line for a person: what was done, how fast, how long still."""
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
    if (eta := snapshot.eta_seconds) is not None:
        parts.append(f"{human_seconds(eta)} left")
    return ", ".join(parts) or "started"


def human_bytes(size: float) -> str:
    """Bytes in the unit a person reads (powers of 1000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def human_seconds(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"


def end_now(address: ApiAddress, job_id: str, signal_name: str, farewell: Callable[[], Any]) -> None:
    """Record ``stopped`` and end the process although threads still work. Their files have no final names.

    The record gets ``LAST_WORDS`` seconds: a server that hangs does not keep the process.
    """

    def record() -> None:
        try:
            with PrefectApi(address, timeout=LAST_WORDS, patience=0) as api:
                api.set_labels(job_id, {"job.stopped_by": signal_name})
                api.set_state(job_id, "CRASHED", name="Stopped", message=f"stopped by {signal_name}", force=True)
        except SluiceError as error:
            logger.error("the stop could not be recorded: %s", error.message)

    last_words = threading.Thread(target=record, daemon=True)
    last_words.start()
    last_words.join(LAST_WORDS)
    try:
        farewell()
    finally:
        os._exit(exit_code_of(signal_name))
