"""What goes on beside a running step: progress for people, signals, and a cancel from the Prefect UI."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from flows.api import PrefectApi
from flows.record import ProgressRecord, RecordWriter
from tasks.shared.errors import SluiceError
from tasks.shared.log import logger
from tasks.shared.progress import Progress, Snapshot
from tasks.shared.stop import Stop

STOP_SECONDS = 8.0
"""How long a stop may take before the process ends without waiting for its threads (10 s in ``4-product.md`` §4)."""

RECORD_EVERY = 2.0
"""Seconds between two writings of the progress into the record."""

LOOK_EVERY = 3.0
"""Seconds between two looks for a cancel in the UI."""


@contextmanager
def signals(stop: Stop, give_up: Callable[[str], None]) -> Iterator[None]:
    """Let SIGINT and SIGTERM ask for a stop. A second signal, or ``STOP_SECONDS``, calls ``give_up``."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if stop.requested:
            give_up(name)
            return
        stop.request(name)
        timer = threading.Timer(STOP_SECONDS, give_up, [name])
        timer.daemon = True
        timer.start()
        timers.append(timer)

    timers: list[threading.Timer] = []
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code_of(signal_name: str | None) -> int:
    """130 for SIGINT, 143 for SIGTERM."""
    if signal_name is None or signal_name not in signal.Signals.__members__:
        return 130
    return 128 + int(signal.Signals[signal_name])


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
            self._show(step, snapshot)
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


def end_now(api: PrefectApi, job_id: str, signal_name: str, farewell: Callable[[], Any]) -> None:
    """Record ``stopped`` and end the process although threads still work. Their files have no final names."""
    try:
        api.set_labels(job_id, {"job.stopped_by": signal_name})
        api.set_state(job_id, "CRASHED", name="Stopped", message=f"stopped by {signal_name}", force=True)
    except SluiceError as error:
        logger.error("the stop could not be recorded: %s", error.message)
    farewell()
    os._exit(exit_code_of(signal_name))
