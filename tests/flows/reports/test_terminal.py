"""Output of a running step on a terminal, and without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.job.waiting import Shown
from flows.reports import terminal as module
from flows.reports.terminal import Presenter, bar
from tasks.shared.meter import Meter
from tasks.shared.report import StepReport


def test_a_warning_is_printed_once_at_the_start_during_or_at_the_end_of_a_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    meter, terminal = Meter(), Presenter(terminal=True, said={"at the start"})
    terminal.step_started()
    for text in ("at the start", "while it runs"):
        meter.warn(text)
        terminal.progress("flattening", meter.snapshot())
    warnings = ("at the start", "while it runs", "at its end")
    terminal.step_finished(StepReport(position=5, name="flattening", files=3, warnings=warnings), again=False)
    out, err = capsys.readouterr()
    assert err == "warning: flattening: while it runs\nwarning: flattening: at its end\n"
    assert out == "5 flattening: complete: 3 files\n"


def test_without_a_terminal_a_step_has_a_line_each_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    meter, terminal = Meter(clock=lambda: 0.0), Presenter(terminal=True, summary_to_stderr=True)
    terminal.step_started()
    for now in (0.0, 59.0, 60.0, 61.0, 121.0):  # noqa: B007 - the clock reads it
        meter.add(files=1)
        terminal.progress("send", meter.snapshot())
    assert [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()] == [
        "send: 3 files", "send: 5 files",
    ]  # fmt: skip


def test_a_bar_needs_a_total_and_room_and_is_not_full_while_the_step_runs() -> None:
    meter = Meter(clock=lambda: 0.0)
    assert bar("send", meter.snapshot(), 120) == f"{'send':14} started"
    meter.expect(files=2)
    meter.add(files=1)
    said = "1/2 files"
    assert bar("send", meter.snapshot(), 120) == f"{'send':14} [############............] {said}"
    assert bar("send", meter.snapshot(), 30) == f"{'send':14} {said}"
    meter.add(files=1)
    assert "[#######################.]" in bar("send", meter.snapshot(), 120)


def test_a_worker_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    silent, meter = Presenter(), Meter()
    meter.warn("while it runs")
    silent.step_started()
    silent.progress("send", meter.snapshot())
    silent.step_finished(StepReport(position=1, name="send"), again=False)
    silent.process_ends("stopped")
    assert capsys.readouterr() == ("", "")


def test_of_a_report_the_verdict_the_stops_and_the_path_are_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = ["Released despite 12 reasons to stop", "2 files", "  STOP: 12 paths", "  LOOK: free text"]
    monkeypatch.setattr(module, "lines_of", lambda _: lines)
    Presenter(terminal=True).reported(tmp_path, Shown(page="report.html", stops=12, looks=1))
    assert capsys.readouterr().out == f"release report: {lines[0]}\n  STOP: 12 paths\n  {tmp_path / 'report.html'}\n"
