"""Show a run: on a terminal as a bar per step, elsewhere as one plain line a minute, in a worker not at all."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path

from flows.job.record import JobRecord
from flows.job.waiting import Shown, Waiting
from flows.job.watch import describe
from flows.output import draw, patience, print_line, wipe
from flows.reports.waiting import terminal_text
from tasks.release_report.report import lines_of
from tasks.shared.meter import Snapshot
from tasks.shared.report import StepReport

LINE_EVERY = 60.0
"""Seconds between two plain lines of one step."""

BAR, LEAST_BAR = 24, 6
"""Most and fewest columns of a step's bar. With less space there is no bar."""


class Presenter:
    """Progress on stderr; one summary line per finished step on stdout, or on stderr if stdout is for JSON.

    In a worker, ``terminal`` is false, and nothing is shown. A warning is printed once, but not if it is in ``said``:
    those the command has printed before.
    """

    def __init__(
        self,
        *,
        terminal: bool = False,
        progress: bool = True,
        summary_to_stderr: bool = False,
        said: Collection[str] = frozenset(),
    ) -> None:
        self._terminal = terminal
        self._to_stderr = summary_to_stderr
        self._bar = terminal and progress and sys.stderr.isatty()
        self._lines = terminal and progress and not self._bar
        self._begins = ExitStack()
        self._next_line = 0.0
        self._said = set(said)

    def _print(self, text: str, *, err: bool) -> None:
        if self._terminal:
            print_line(text, err=err)

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Print that Prefect begins the run, unless the first step starts soon."""
        with self._begins:
            self._begins.enter_context(patience("starting the run"))
            yield

    def step_started(self) -> None:
        """Note that a step starts: its first plain line is printed a minute later."""
        self._begins.close()
        self._next_line = time.monotonic() + LINE_EVERY

    def progress(self, name: str, snapshot: Snapshot) -> None:
        """Draw the bar, or print a plain line each minute. Print new warnings. Called about five times a second."""
        self._warn(name, snapshot.warnings)
        if self._bar:
            draw(bar(name, snapshot, shutil.get_terminal_size().columns - 1))
        elif self._lines and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_EVERY
            self._print(f"{name}: {describe(snapshot)}", err=True)

    def step_finished(self, step: StepReport, *, again: bool) -> None:
        """Print the step's summary. ``again``: the step was complete before this run."""
        state = "was complete" if again else "complete"
        self._print(f"{step.position} {step.name}: {state}: {step.summary()}", err=self._to_stderr)
        if not again:
            self._warn(step.name, step.warnings)

    def _warn(self, name: str, warnings: Iterable[str]) -> None:
        for warning in warnings:
            if not self._said & {warning, f"{name}: {warning}"}:
                self._print(f"warning: {name}: {warning}", err=True)
            self._said.add(f"{name}: {warning}")

    def reported(self, job_dir: Path, shown: Shown) -> None:
        """Print the verdict of a release report, its stops and its path, or why it could not be made."""
        if shown.failed is not None:
            self._print(f"release report: could not be made: {shown.failed}", err=True)
        elif shown.page is not None:
            verdict, _, *found = lines_of(job_dir) or ["made", ""]
            mark = found[0].partition(":")[0] if shown.stops else None  # the stops come first
            stops = [line.strip() for line in found if line.partition(":")[0] == mark]
            lines = "\n  ".join([f"release report: {verdict}", *stops, str(job_dir / shown.page)])
            self._print(lines, err=self._to_stderr)

    def waits(self, record: JobRecord, waiting: Waiting) -> None:
        """Print where the job waits, and the release report in short."""
        self._print(terminal_text(record, waiting), err=self._to_stderr)

    def process_ends(self, words: str) -> None:
        """Print how to continue the job."""
        self._print(words, err=True)

    def close(self) -> None:
        """Remove the bar. Also called when the process ends without waiting for its threads."""
        wipe()


_presenter: ContextVar[Presenter | None] = ContextVar("presenter", default=None)


def current() -> Presenter:
    """Return the presenter that the command set. It is no argument of the flow, because Prefect calls the flow."""
    return _presenter.get() or Presenter()


@contextmanager
def presented_by(presenter: Presenter) -> Iterator[None]:
    """Show runs in this context with ``presenter``, and close it at the end. Commands use it, workers do not."""
    before = _presenter.set(presenter)
    try:
        yield
    finally:
        _presenter.reset(before)
        presenter.close()


def bar(name: str, snapshot: Snapshot, width: int) -> str:
    """Return a step's line in ``width`` columns: a bar, if the fraction is known and there is space, and a text."""
    text = describe(snapshot)
    room = min(BAR, width - len(f"{name:14} [] {text}"))
    if snapshot.fraction is None or room < LEAST_BAR:
        return f"{name:14} {text}"[: max(width, 20)]
    done = min(room - 1, int(room * snapshot.fraction))  # the bar of a running step is never full
    return f"{name:14} [{'#' * done}{'.' * (room - done)}] {text}"[: max(width, 20)]
