"""Messages at a signal (``4-product.md`` §4 "Stop", §5): printed at once, with the effect of the next signal."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.peers.project import allowed

RUNNING = """
import os, sys, time
from flows.signals import exit_code_of, signals
from tasks.shared.stop import Stop
signals.install(lambda text: print(text, file=sys.stderr, flush=True))
def give_up(name): os._exit(exit_code_of(name))
with signals.stopping(Stop(), give_up):
    print("runs", flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(60)
"""
"""A flow whose step does not look at its stop."""

BESIDE = """
import sys
from flows import run
def wait(_):
    import time
    print("runs", flush=True)
    time.sleep(60)
run.run = wait
run.main([])
"""
"""A command before its flow begins."""

ENDING = """
import os, sys, time
from flows import run
class Last:
    def __del__(self, write=os.write, sleep=time.sleep):
        write(1, b"runs\\n")
        sleep(1)
def done(_):
    {then}
    return 3
run.run = done
run.main([])
"""
"""A command that is over: its exit code is decided."""

ENDINGS = {
    "what is called at the exit": "import atexit; atexit.register(Last().__del__)",
    "the modules are put away": "sys.modules['last'] = sys.last = Last()",
}


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


def answer(child: subprocess.Popen[str], number: signal.Signals) -> tuple[str, float]:
    """Return the line printed after a signal, and after how many seconds."""
    assert child.stderr is not None
    began = time.monotonic()
    child.send_signal(number)
    return child.stderr.readline(), time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize(("number", "name", "code"), [(signal.SIGINT, "Ctrl-C", 130), (signal.SIGTERM, "SIGTERM", 143)])
def test_the_first_signal_is_answered_at_once_and_the_next_ends_the_process(
    number: signal.Signals, name: str, code: int
) -> None:
    with process(RUNNING) as child:
        said, seconds = answer(child, number)
        assert said == f"{name}: stopping after this file, within 7 s; repeat to end at once\n"
        assert seconds < allowed(0.2)
        said, seconds = answer(child, number)
        assert said == "ending at once; completed work is kept, and the job can be continued\n"
        assert seconds < allowed(0.2)
        assert child.wait(10) == code


@pytest.mark.slow
def test_a_signal_while_no_flow_runs_is_answered_too() -> None:
    with process(BESIDE) as child:
        said, seconds = answer(child, signal.SIGINT)
        assert said == "Ctrl-C: stopping\n"
        assert seconds < allowed(0.2)
        assert child.wait(10) == 130


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("then", ENDINGS.values(), ids=ENDINGS)
def test_a_signal_while_the_interpreter_ends_changes_no_exit_code(number: signal.Signals, then: str) -> None:
    with process(ENDING.format(then=then)) as child:
        child.send_signal(number)
        _, err = child.communicate(timeout=10)
        assert (child.returncode, err) == (3, "")
