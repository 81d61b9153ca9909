"""Signals: a run ends between two files, within seconds, with the right exit code."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flows.signals import exit_code_of
from tests.peers.project import allowed

RUNNING = """
import time
from flows import signals
from tasks.shared.stop import Stop
signals.install()
signals.STOP_SECONDS = {seconds}
stop = Stop()
with signals.stopping(stop, lambda reason: print("gave up:", reason, flush=True)):
    print("runs", flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end and not ({looks} and stop.requested):
        time.sleep(0.05)
print("ended:", stop.reason, flush=True)
"""
"""A flow whose step looks at its stop, or does not."""

COMMAND = """
import time
from flows import signals
signals.install()
print("runs", flush=True)
time.sleep(60)
"""


@contextmanager
def process(program: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "runs\n"
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_looks_at_its_stop_ends_itself(number: signal.Signals) -> None:
    with process(RUNNING.format(seconds=7, looks=True)) as child:
        child.send_signal(number)
        out, err = child.communicate(timeout=10)
    assert out == f"ended: {number.name}\n"
    shown = "Ctrl-C" if number is signal.SIGINT else number.name
    assert err == f"{shown}: stopping after this file, within 7 s; repeat to end at once\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_does_not_is_ended_after_its_time(number: signal.Signals, code: int) -> None:
    with process(RUNNING.format(seconds=1, looks=False)) as child:
        began = time.monotonic()
        child.send_signal(number)
        out, _ = child.communicate(timeout=20)
        assert 1 <= time.monotonic() - began < allowed(2)
    assert (child.returncode, out) == (code, f"gave up: {number.name}\n")


def test_a_second_signal_ends_it_at_once() -> None:
    with process(RUNNING.format(seconds=60, looks=False)) as child:
        assert child.stderr is not None
        child.send_signal(signal.SIGTERM)
        child.stderr.readline()
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 143


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_without_a_flow(number: signal.Signals, code: int) -> None:
    with process(COMMAND) as child:
        child.send_signal(number)
        _, err = child.communicate(timeout=10)
    assert (child.returncode, err) == (code, "")


@pytest.mark.parametrize(
    ("reason", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("suspend", 130), ("cancel", 1), (None, 130)]
)
def test_exit_codes_of_stopped_runs(reason: str | None, code: int) -> None:
    assert exit_code_of(reason) == code
