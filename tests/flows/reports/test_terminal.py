"""Output of a running step on a terminal."""

from __future__ import annotations

import pytest

from flows.reports.terminal import Terminal, bar
from tasks.shared.errors import NetworkError
from tasks.shared.meter import Meter
from tasks.shared.report import StepReport


@pytest.mark.parametrize("progress", [True, False])
def test_what_a_running_step_warns_of_is_a_line_of_its_own_once(
    capsys: pytest.CaptureFixture[str], progress: bool
) -> None:
    meter, terminal = Meter(), Terminal(progress=progress)
    terminal.step_started(1, "extractor")
    for _ in range(2):
        meter.warn("it is paused")
        meter.warn("nothing has changed")
        for _ in range(3):
            terminal.progress("extractor", meter.snapshot())
    said = "warning: extractor: it is paused\nwarning: extractor: nothing has changed\n"
    assert capsys.readouterr().err == said * 2


def test_a_warning_is_printed_once_at_the_start_during_or_at_the_end_of_a_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    meter, terminal = Meter(), Terminal(said={"bare-choice: at the start"})
    terminal.step_started(5, "flattening")
    meter.warn("bare-choice: at the start")
    meter.warn("while it runs")
    terminal.progress("flattening", meter.snapshot())
    warnings = ("bare-choice: at the start", "while it runs", "at its end")
    terminal.step_finished(StepReport(position=5, name="flattening", warnings=warnings), again=False)
    assert capsys.readouterr().err == "warning: flattening: while it runs\nwarning: flattening: at its end\n"


def test_a_narrow_terminal_has_the_words_rather_than_the_bar() -> None:
    meter = Meter(clock=lambda: 0.0)
    meter.expect(files=2)
    meter.add(files=1)
    said = "1/2 files, time left unknown"
    assert bar("send", meter.snapshot(), 120) == f"{'send':14} [############............] {said}"
    assert bar("send", meter.snapshot(), 60) == f"{'send':14} [#######.......] {said}"
    assert bar("send", meter.snapshot(), 50) == f"{'send':14} {said}"


def test_a_bar_is_not_drawn_without_a_total_and_is_not_full_while_the_step_runs() -> None:
    meter = Meter(clock=lambda: 0.0)
    assert bar("send", meter.snapshot(), 120) == f"{'send':14} started"
    meter.set_status("extracting: 1/1 batches", fraction=1.0)
    said = "extracting: 1/1 batches, time left unknown"
    assert bar("extractor", meter.snapshot(), 120) == f"{'extractor':14} [{'#' * 23}.] {said}"


def test_without_a_terminal_a_transient_failure_is_a_line_at_once_then_every_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    meter, terminal = Meter(clock=lambda: 0.0), Terminal()
    terminal.step_started(5, "send")
    terminal.progress("send", meter.snapshot())
    for attempt in (1, 2):
        error = NetworkError("connect-failed", "no connection")
        meter.retry("send", error, attempt=attempt, attempts=5, seconds=8.0)
        terminal.progress("send", meter.snapshot())
    said = "send: send: connect-failed, next try in 8 s, attempt 2 of 5, time left unknown\n"
    assert capsys.readouterr().err == said
