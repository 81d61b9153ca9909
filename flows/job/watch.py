"""Watch a run in a thread: show and record the progress of its step, and notice a cancel or suspend in the UI.

A failed write stops nothing: the next one follows two seconds later.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from flows.job.record import ProgressRecord, RecordWriter
from flows.prefect.api import PrefectApi
from flows.prefect.artifacts import PROGRESS, Artifact
from tasks.shared.errors import SluiceError
from tasks.shared.log import logger
from tasks.shared.meter import STILL, Held, Meter, Snapshot
from tasks.shared.stop import Stop
from tasks.shared.units import human_bytes, human_count, human_rate, human_seconds

SHOW_EVERY: Final = 0.2
CALL_EVERY: Final = 2.0
"""Seconds between two records of the progress, and two looks for a cancel in the UI."""

HURRY: Final = 10.0
"""Timeout in seconds of the thread's calls, and of its end."""

CANCEL: Final = "cancel"
SUSPEND: Final = "suspend"
"""Reasons of a stop that a person requested in the UI. All other reasons are names of signals."""


class Watch:
    """The thread that watches a run."""

    def __init__(self, writer: RecordWriter, stop: Stop, show: Callable[[str, Snapshot], None]) -> None:
        self._writer = writer
        self._api = writer.api.hurried(HURRY)
        self._stop = stop
        self._show = show
        self._step: tuple[int, str, Meter] | None = None
        self._busy = threading.Lock()
        """Held while progress is written, so that none is written once the step has ended."""
        self._end = threading.Event()
        self._progress = Artifact(self._api, writer.job_id, PROGRESS, "progress")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch until the run ends."""
        thread = threading.Thread(target=self._loop, name="watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join(HURRY)

    @contextmanager
    def step(self, position: int, name: str, meter: Meter) -> Iterator[None]:
        """Show and record the progress of a step while it runs."""
        self._step = (position, name, meter)
        try:
            yield
        finally:
            with self._busy:
                self._step = None
        if self._progress.id is not None:
            with suppress(SluiceError):
                self._progress.publish(f"{PROGRESS}{position}, {name}: ended", 100)

    def _loop(self) -> None:
        called = time.monotonic()
        while not self._end.wait(SHOW_EVERY):
            try:
                if time.monotonic() - called >= CALL_EVERY:
                    called = time.monotonic()
                    self._record()
                    if (why := stop_asked(self._api, self._writer.job_id)) is not None:
                        self._stop.request(why)
                if (step := self._step) is not None:
                    _, name, meter = step
                    self._show(name, meter.snapshot())
            except (SluiceError, OSError, ValueError) as error:  # Prefect is away, or the terminal is gone
                logger.debug("progress is not recorded or shown at the moment: %s", type(error).__name__)

    def _record(self) -> None:
        with self._busy:
            if self._step is None:
                return
            position, name, meter = self._step
            snapshot = meter.snapshot()
            text = describe(snapshot)
            progress = ProgressRecord(fraction=snapshot.fraction, eta_seconds=snapshot.eta_seconds, message=text)
            self._writer.write({"progress": progress}, by=self._api)
            # Not 100 while the step runs: the last answers of a service are still to come when all input is read.
            percent = min(round(100 * (snapshot.fraction or 0.0)), 99)
            self._progress.publish(f"{PROGRESS}{position}, {name}: {text}", percent)


def stop_asked(api: PrefectApi, job_id: str) -> str | None:
    """Return ``CANCEL`` (also for a removed run) or ``SUSPEND`` if requested in the UI, else ``None``."""
    run = api.read_run(job_id)
    if run is None or run.get("state_type") in {"CANCELLING", "CANCELLED"}:
        return CANCEL
    return SUSPEND if run.get("state_type") == "PAUSED" else None


def describe(snapshot: Snapshot) -> str:
    """Return one line of progress for a person: pending retries, counts, rate, and remaining time if known."""
    parts = [tried_again(snapshot.held)] if snapshot.held is not None else []
    if snapshot.message:
        parts.append(snapshot.message)
    if snapshot.files or snapshot.files_total:
        total = snapshot.files_total
        of = f"{snapshot.files:,}/" if total is not None else ""
        parts.append(of + human_count(snapshot.files if total is None else total, "file"))
    if snapshot.resources:
        parts.append(human_count(snapshot.resources, "resource"))
    still = snapshot.still >= STILL
    if snapshot.bytes:
        parts.append(human_bytes(snapshot.bytes) + ("" if still else f" at {human_rate(snapshot.rate)}"))
    if still:
        parts.append(f"{human_rate(0)} for {human_seconds(snapshot.still)}")
    if snapshot.eta_seconds is not None:
        parts.append(f"{human_seconds(snapshot.eta_seconds)} left")
    return ", ".join(parts) or "started"


def tried_again(held: Held) -> str:
    """Return which service failed a request, why, when it is retried, and how often."""
    when = f"next try in {human_seconds(math.ceil(held.seconds))}" if held.seconds > 0 else "trying again"
    return f"{held.service}: {held.why}, {when}, attempt {held.attempt} of {held.attempts}"
