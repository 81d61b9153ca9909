"""Who is told what a run does: nobody (a worker), or a terminal (``flows/reports/terminal.py``)."""

from __future__ import annotations

from tasks.shared.meter import Snapshot
from tasks.shared.report import StepReport, Waiting


class Presenter:
    """Tells nobody. The base of those that do."""

    def step_started(self, position: int, name: str) -> None:
        """A step begins, or answers from its stored result."""

    def progress(self, name: str, snapshot: Snapshot) -> None:
        """Called about five times a second from a thread beside the step."""

    def step_finished(self, step: StepReport, *, again: bool) -> None:
        """A step is complete; ``again`` when it had been complete before this run."""

    def waits(self, waiting: Waiting) -> None:
        """The job is parked."""

    def close(self) -> None:
        """Leave the terminal tidy; called also when the process ends in a hurry."""


_presenter = Presenter()


def current() -> Presenter:
    """The presenter of this process."""
    return _presenter


def use(presenter: Presenter) -> None:
    """Set the presenter of this process; commands do, workers do not."""
    global _presenter
    _presenter = presenter
