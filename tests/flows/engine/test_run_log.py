"""The lines that a run prints; the Logs tab in the Prefect UI: ``tests/e2e/test_run_logs.py``."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable

import pytest
from prefect.logging.handlers import PrefectConsoleHandler

from flows.engine.run_log import nothing_after, shown_in_ui


class BrokenPipe(io.StringIO):
    """The pipe to a worker that was killed."""

    def write(self, _: str) -> int:
        raise BrokenPipeError


def test_a_run_whose_lines_nobody_reads_any_more_goes_on() -> None:
    assert shown_in_ui is not None  # a run has imported it
    handler = PrefectConsoleHandler(stream=BrokenPipe())
    for _ in range(3):
        handler.emit(logging.makeLogRecord({"msg": "a line", "levelno": logging.INFO, "levelname": "INFO"}))


@pytest.fixture
def is_shown() -> Callable[[str, str], bool]:
    """Return a function that says whether a log line of Prefect's engine is shown."""

    def shown(name: str, text: str) -> bool:
        record = logging.makeLogRecord({"name": name, "msg": text, "flow_run_id": "job-1", "levelno": logging.ERROR})
        return bool(logging.getLogger(name).filter(record))

    return shown


@pytest.mark.parametrize("state", ["Paused(type=PAUSED)", "Failed('…')", "Crashed('…')", "Stopped('…', type=CRASHED)"])
def test_how_prefect_says_that_a_step_has_not_finished_is_no_error_of_ours(
    is_shown: Callable[[str, str], bool], state: str
) -> None:
    with shown_in_ui("job-1"):
        assert not is_shown("prefect.task_runs", f"Finished in state {state}")
        assert is_shown("prefect.task_runs", "Finished in state Completed()")


@pytest.mark.parametrize(
    "text", ["Finished in state Paused(type=PAUSED)", "Crash detected! Execution was aborted by a termination signal."]
)
def test_prefects_line_on_the_end_of_a_run_is_dropped_after_our_own(
    is_shown: Callable[[str, str], bool], text: str
) -> None:
    with shown_in_ui("job-1"):
        assert is_shown("prefect.flow_runs", text)
        nothing_after("job-1")
        assert not is_shown("prefect.flow_runs", text)
