"""Our log lines in the Logs tab of a run, however it was started, and the end of the log.

Prefect sends the lines of our logger only where a setting named it before Prefect was imported, which a worker's run
does not have, and of those only the ones of threads that know their run. This handler knows it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context

from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.handlers import APILogHandler
from rich.console import Console

from tasks.shared.log import logger


class RunLog(APILogHandler):
    """Sends log lines to the run in whose context it was made; those of a step's own thread to its task run, too.

    Messages alone: a traceback may quote data.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._context = copy_context()

    def emit(self, record: logging.LogRecord) -> None:
        """Put the line into Prefect's queue."""
        if FlowRunContext.get() is None and TaskRunContext.get() is None:
            self._context.copy().run(super().emit, record)
        else:
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        """The message."""
        return record.getMessage()

    def flush(self) -> None:
        """Nothing: Prefect's own handlers of the same queue wait for it at the end of a process, five seconds long."""


class _SaidByUs(logging.Filter):
    """Drops what Prefect's engine says of an end that our own lines tell.

    Of a run: it asks for the result of one that ended as failed or cancelled, gets an exception, and logs its
    traceback; a stop that a runner asked for is a crash to it. Of a step: that it failed, twice, and a wait is among
    its errors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runs: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is shown."""
        text = record.getMessage()
        if record.name == "prefect.task_runs":
            return not text.startswith(("Task run failed with state", *_UNFINISHED))
        if text.startswith(_ENDS):
            return getattr(record, "flow_run_id", None) not in self.runs
        return not (text.endswith("exited with unexpected exception") and any(run in text for run in self.runs))


def unread(self: Console) -> None:
    """Say no more. Rich itself ends a process whose lines nobody reads; a run lives on when its worker is killed."""
    self.quiet = True


_ENDS = ("Engine execution exited with unexpected exception", "Finished in state ", "Crash detected!")
_UNFINISHED = tuple(f"Finished in state {name}(" for name in ("Paused", "Failed", "Crashed", "Stopped"))
_said = _SaidByUs()


@contextmanager
def shown_in_ui(run_id: str) -> Iterator[None]:
    """Within the flow of a run: what our logger says is in the run's Logs tab."""
    _said.runs.discard(run_id)
    handler = RunLog()
    others = [one for one in logger.handlers if isinstance(one, APILogHandler)]  # a setting that names our logger
    for one in others:
        logger.removeHandler(one)
    logger.addHandler(handler)
    for name in ("prefect.flow_runs", "prefect.task_runs", "prefect.engine"):
        logging.getLogger(name).addFilter(_said)  # which is there once, however often
    try:
        yield
    finally:
        logger.removeHandler(handler)
        for one in others:
            logger.addHandler(one)


def nothing_after(run_id: str) -> None:
    """The last line of the run's log was ours."""
    _said.runs.add(run_id)
