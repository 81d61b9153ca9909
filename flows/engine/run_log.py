"""Send our log lines to the Logs tab of a run, however it was started, and end its log with our last line.

Prefect sends the lines of our logger only if a setting named it before Prefect was imported, which is not the case in a
worker's run, and only from threads with a run context. This handler holds the run's id.
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
    """Handler that sends log lines to one run, and those of a step's own thread to its task run, too.

    Only messages: a traceback may quote data.
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
        """Return the message."""
        return record.getMessage()

    def flush(self) -> None:
        """Do nothing: Prefect's own handlers of the same queue wait for it when a process ends, for five seconds."""


class _DuplicateFilter(logging.Filter):
    """Filter Prefect log records that duplicate our end-of-run message.

    For a failed or cancelled run, the engine asks for its result, gets an exception and logs the traceback; a stop
    requested by a runner is logged as a crash. For a step, it logs a failure twice, and a wait as an error.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runs: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is shown."""
        text = record.getMessage()
        if record.name == "prefect.task_runs":
            return not text.startswith(("Task run failed with state", *_UNFINISHED))
        if text.startswith(_ENDS):
            return getattr(record, "flow_run_id", None) not in self.runs
        return not (text.endswith("exited with unexpected exception") and any(run in text for run in self.runs))


def unread(self: Console) -> None:
    """Ignore a closed output. Rich would end the process, but a run outlives its killed worker."""
    self.quiet = True


_ENDS = ("Engine execution exited with unexpected exception", "Finished in state ", "Crash detected!")
_UNFINISHED = tuple(f"Finished in state {name}(" for name in ("Paused", "Failed", "Crashed", "Stopped"))
_duplicates = _DuplicateFilter()


@contextmanager
def shown_in_ui(run_id: str) -> Iterator[None]:
    """Send our logger's lines to the run's Logs tab while the flow of a run is running."""
    _duplicates.runs.discard(run_id)
    handler = RunLog()
    others = [one for one in logger.handlers if isinstance(one, APILogHandler)]  # a setting that names our logger
    for one in others:
        logger.removeHandler(one)
    logger.addHandler(handler)
    for name in ("prefect.flow_runs", "prefect.task_runs", "prefect.engine"):
        logging.getLogger(name).addFilter(_duplicates)  # added once, even if repeated
    try:
        yield
    finally:
        logger.removeHandler(handler)
        for one in others:
            logger.addHandler(one)


def nothing_after(run_id: str) -> None:
    """Drop all later lines: the last line of the run's log was ours."""
    _duplicates.runs.add(run_id)
