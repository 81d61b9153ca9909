"""What a run shows on a terminal: a bar a step there, one plain line a step and minute elsewhere."""

from __future__ import annotations

import shutil
import sys
import threading
import time

from flows.commands.status import where_to_look
from flows.job.watch import describe
from flows.output import say, write
from flows.reports.presenter import Presenter
from tasks.shared.meter import Snapshot
from tasks.shared.report import StepReport, Waiting

LINE_EVERY = 60.0
"""Seconds between two plain lines of one step."""

BAR = 24


class Terminal(Presenter):
    """Progress on stderr, one summary line a finished step on stdout, or on stderr when that is for JSON."""

    def __init__(self, *, progress: bool = True, summary_to_stderr: bool = False) -> None:
        self._to_stderr = summary_to_stderr
        self._bar = progress and sys.stderr is not None and sys.stderr.isatty()
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
                write("\r\x1b[K" + line[: max(width - 1, 20)], err=True)
                self._drawn = True
            elif self._lines and time.monotonic() >= self._next_line:
                self._next_line += LINE_EVERY
                say(f"{name}: {describe(snapshot)}", err=True)

    def step_finished(self, step: StepReport, *, again: bool) -> None:
        """Print the step's line."""
        self.close()
        state = "was complete" if again else "complete"
        say(f"{step.position} {step.name}: {state}: {step.summary()}", err=self._to_stderr)
        if not again:
            for warning in step.warnings:
                say(f"warning: {step.name}: {warning}", err=True)

    def waits(self, waiting: Waiting) -> None:
        """Say where the job waits."""
        self.close()
        say(
            "\n".join([f"{waiting.position} {waiting.step}: waiting for approval", *where_to_look(waiting)]),
            err=self._to_stderr,
        )

    def close(self) -> None:
        """Wipe the bar."""
        with self._lock:
            if self._drawn:
                write("\r\x1b[K", err=True)
                self._drawn = False
