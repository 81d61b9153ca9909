"""What a run shows on a terminal: a bar a step there, one plain line a step and minute elsewhere."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import TextIO

from flows.presenter import Presenter
from flows.record import StepRecord, Waiting
from flows.reporting import summary
from flows.watch import describe
from tasks.shared.progress import Snapshot

LINE_EVERY = 60.0
"""Seconds between two plain lines of one step."""

BAR = 24


class Terminal(Presenter):
    """Progress on ``stderr``, one summary line a finished step on ``out``."""

    def __init__(self, out: TextIO, *, progress: bool = True) -> None:
        self._out = out
        self._bar = progress and sys.stderr.isatty()
        self._lines = progress and not self._bar
        self._next_line = 0.0
        self._drawn = False
        self._lock = threading.Lock()

    def step_started(self, position: int, name: str) -> None:
        """Note when the step began, so that the first plain line comes a minute later."""
        self._next_line = time.monotonic() + LINE_EVERY

    def progress(self, name: str, snapshot: Snapshot) -> None:
        """Draw the bar, or print the minute's line."""
        with self._lock:
            if self._bar:
                width = shutil.get_terminal_size().columns
                done = round(BAR * (snapshot.fraction or 0.0))
                line = f"{name:14} [{'#' * done}{'.' * (BAR - done)}] {describe(snapshot)}"
                sys.stderr.write("\r\x1b[K" + line[: max(width - 1, 20)])
                sys.stderr.flush()
                self._drawn = True
            elif self._lines and time.monotonic() >= self._next_line:
                self._next_line += LINE_EVERY
                sys.stderr.write(f"{name}: {describe(snapshot)}\n")
                sys.stderr.flush()

    def step_finished(self, step: StepRecord, warnings: tuple[str, ...], *, again: bool) -> None:
        """Print the step's line."""
        self.close()
        state = "was complete" if again else "complete"
        print(f"{step.position} {step.name}: {state}: {summary(step)}", file=self._out, flush=True)
        if not again:
            for warning in warnings:
                sys.stderr.write(f"warning: {step.name}: {warning}\n")
            sys.stderr.flush()

    def waits(self, waiting: Waiting) -> None:
        """Say where the job waits."""
        self.close()
        print(
            f"{waiting.position} {waiting.step}: waiting for approval\n"
            f"  look at {waiting.looked_at}\n"
            f"  corrected files go into {waiting.directory}",
            file=self._out,
            flush=True,
        )

    def close(self) -> None:
        """Wipe the bar."""
        with self._lock:
            if self._drawn:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
                self._drawn = False
