"""Who is told what a run does: nobody (a worker), or a terminal (``flows/reports/terminal.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from tasks.shared.errors import SluiceError
from tasks.shared.meter import Snapshot
from tasks.shared.report import Shown, StepReport, Waiting


class Presenter:
    """Tells nobody. The base of those that do."""

    def step_started(self, position: int, name: str) -> None:
        """A step begins, or answers from its stored result."""

    def progress(self, name: str, snapshot: Snapshot) -> None:
        """Called about five times a second from a thread beside the step."""

    def step_finished(self, step: StepReport, *, again: bool) -> None:
        """A step is complete; ``again`` when it had been complete before this run."""

    def reported(self, shown: Shown, job_dir: Path) -> None:
        """A release report was made, or could not be, and nobody is asked: ``waits`` says what a person needs."""

    def failed(self, error: SluiceError) -> None:
        """An error ends the run; it may name files, which the record does not."""

    def waits(self, waiting: Waiting) -> None:
        """The job is parked."""

    def left(self, words: str) -> None:
        """The process ends without waiting for its threads."""

    def close(self) -> None:
        """Leave the terminal tidy; called also when the process ends in a hurry."""


_told: ContextVar[Presenter | None] = ContextVar("presenter", default=None)


def current() -> Presenter:
    """Who is told in this context: Prefect's engine is between the command that says so and the flow that asks."""
    return _told.get() or Presenter()


@contextmanager
def told(presenter: Presenter) -> Iterator[None]:
    """Tell ``presenter`` what runs in this context; commands do, workers do not. It is closed at the end."""
    before = _told.set(presenter)
    try:
        yield
    finally:
        _told.reset(before)
        presenter.close()
