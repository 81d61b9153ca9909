"""Watch a running step in a thread: show and record progress, and notice a cancel in the Prefect UI."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flows.job.record import ProgressRecord
from flows.job.writer import RecordWriter
from flows.prefect.address import ApiAddress
from flows.prefect.api import PrefectApi
from flows.prefect.artifacts import JOB, Page
from flows.reports.markdown import literal
from flows.signals import exit_code_of, signals
from tasks.shared.errors import SluiceError
from tasks.shared.log import logger
from tasks.shared.meter import STILL, Held, Meter, Snapshot
from tasks.shared.stop import Stop
from tasks.shared.units import human_bytes, human_count, human_rate, human_seconds

RECORD_EVERY = 2.0
"""Seconds between two writings of the progress into the record."""

LAST_WORDS = 2.0
"""Seconds to record a stop when the process ends without waiting for its threads."""

LOOK_EVERY = 3.0
"""Seconds between two checks for a cancel in the UI."""

HURRY = 10.0
"""Seconds that a call of the watcher may last; after a failure, the next call writes current data."""

WORKERS_RUN = "PREFECT__FLOW_RUN_ID"
"""The environment variable of a worker's run."""

CANCEL = "cancel"
SUSPEND = "suspend"
"""Reason for a stop after a cancel or suspend in the UI; else it is the name of a signal."""


class Watcher:
    """A thread parallel to a step. It writes on a best-effort basis: a failed write is repeated next time."""

    def __init__(self, writer: RecordWriter, page: Page, stop: Stop, show: Callable[[str, Snapshot], None]) -> None:
        self._writer = writer
        self._page = page
        self._stop = stop
        self._show = show

    @contextmanager
    def watching(self, step: str, position: int, progress: Meter) -> Iterator[None]:
        """Watch while the step runs."""
        # One for each step: a thread still waiting for an answer must not continue into the next step.
        end = threading.Event()
        thread = threading.Thread(target=self._watch, args=(step, position, progress, end), daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join(timeout=5)

    def _watch(self, step: str, position: int, progress: Meter, end: threading.Event) -> None:
        try:
            with self._writer.api.hurried(HURRY):
                if self._until_the_end(step, position, progress, end):
                    self._record(step, position, progress.snapshot(), over=True)
        except SluiceError as error:
            logger.warning("the last progress of %s is not recorded: %s", step, error.message)

    def _until_the_end(self, step: str, position: int, progress: Meter, end: threading.Event) -> bool:
        """Watch until the step ends; return whether progress was recorded."""
        recorded = False
        next_record = time.monotonic() + RECORD_EVERY
        next_look = time.monotonic() + LOOK_EVERY
        warned = False
        while not end.wait(0.2):
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
                    self._look_for_stop()
            except SluiceError as error:
                if not warned:
                    warned = True
                    logger.warning("progress is not recorded at the moment: %s", error.message)
        return recorded

    def _present(self, step: str, snapshot: Snapshot) -> None:
        try:
            self._show(step, snapshot)
        except (OSError, ValueError) as error:
            # The output is closed. Keep watching, because a cancel reaches the run this way.
            self._show = _nobody
            logger.warning("progress is not shown any more: %s", type(error).__name__)

    def _record(self, step: str, position: int, snapshot: Snapshot, *, over: bool = False) -> None:
        text = describe(snapshot, over=over)
        self._writer.set(
            progress=ProgressRecord(fraction=snapshot.fraction, eta_seconds=snapshot.eta_seconds, message=text)
        )
        # All input read is not the end: the last answers of a service are still to come.
        percent = min(round(100 * (snapshot.fraction or 0.0)), 100 if over else 99)
        done = "" if snapshot.fraction is None else f", {percent} %"
        self._page.publish(f"{JOB}: running step {position}, {literal(step)}{done}: {literal(text)}")

    def _look_for_stop(self) -> None:
        why = stop_asked(self._writer.api, self._writer.job_id)
        if why is not None and not self._stop.requested:
            self._stop.request(why)
            signals.announce_ui_stop(why)


def stop_asked(api: PrefectApi, job_id: str) -> str | None:
    """Return ``CANCEL`` (also for a removed run) or ``SUSPEND`` if requested in the UI, else ``None``."""
    run = api.read_run(job_id)
    if run is None or run.get("state_type") in {"CANCELLING", "CANCELLED"}:
        return CANCEL
    return SUSPEND if run.get("state_type") == "PAUSED" else None


def _nobody(_step: str, _snapshot: Snapshot) -> None:
    """Show nothing."""


def describe(snapshot: Snapshot, *, over: bool = False) -> str:
    """Return one line of progress for a person: pending retries, counts, rate, and remaining time if known; without the
    last if the step is ``over``.
    """
    parts = []
    if snapshot.held is not None and not over:
        parts.append(tried_again(snapshot.held))
    if snapshot.message:
        parts.append(snapshot.message)
    if snapshot.files or snapshot.files_total:
        total = snapshot.files_total
        of = f"{snapshot.files:,}/" if total is not None else ""
        parts.append(of + human_count(snapshot.files if total is None else total, "file"))
    if snapshot.resources:
        parts.append(human_count(snapshot.resources, "resource"))
    still = snapshot.still >= STILL and not over
    if snapshot.bytes:
        parts.append(human_bytes(snapshot.bytes) + ("" if still else f" at {human_rate(snapshot.rate)}"))
    if still:
        parts.append(f"{human_rate(0)} for {human_seconds(snapshot.still)}")
    if not over and parts:
        eta = snapshot.eta_seconds
        parts.append(f"{human_seconds(eta)} left" if eta is not None else "time left unknown")
    return ", ".join(parts) or "started"


def tried_again(held: Held) -> str:
    """Return which service failed a request, why, when it is retried, and how often."""
    when = f"next try in {human_seconds(math.ceil(held.seconds))}" if held.seconds > 0 else "trying again"
    ending = "s" if held.others == 1 else ""
    others = f", {human_count(held.others, 'more request')} wait{ending}" if held.others else ""
    return f"{held.service}: {held.why}, {when}, attempt {held.attempt} of {held.attempts}{others}"


def record_end(api: PrefectApi, job_id: str, signal_name: str) -> str:
    """Record the end of a process that a signal ends, and return the reason: ``CANCEL`` if a worker passed one on."""
    asked = stop_asked(api, job_id)
    if asked == CANCEL:
        api.set_state(job_id, "CANCELLED", message="cancelled in the Prefect UI")
        return CANCEL
    reason = asked or signal_name
    api.set_labels(job_id, {"job.stopped_by": reason})
    api.set_state(job_id, "CRASHED", name="Stopped", message=f"stopped by {reason}")
    return reason


def end_now(address: ApiAddress, job_id: str, signal_name: str, farewell: Callable[[str], Any]) -> None:
    """Record the end of a job and end the process although threads still work. Their files have no final names.

    ``farewell`` is called with the reason: ``CANCEL``, or the signal, also if the API does not answer. Recording takes
    at most ``LAST_WORDS`` seconds.
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
        os._exit(_exit_code(reason, signal_name))


def _exit_code(reason: str, signal_name: str) -> int:
    if WORKERS_RUN in os.environ:
        # A worker sets a run whose process ends with another code to Crashed: a suspended one is to be resumed.
        return 0 if reason == SUSPEND else exit_code_of(signal_name)
    return 1 if reason == CANCEL else exit_code_of(signal_name)
