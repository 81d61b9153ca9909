"""Handle SIGINT and SIGTERM with one handler that is safe inside a signal handler.

The handler stores the signal and wakes a thread through a pipe. While a flow runs, the thread asks its steps to stop
(``Stop``), and ends the process after ``STOP_SECONDS``, or at once on a second signal. Before and after a flow there is
nothing to clean up: the handler raises ``Interrupted``.

The thread also prints at once what happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tasks.shared.stop import Stop

STOP_SECONDS = 7.0
"""How long a stop may take before the process ends without waiting for its threads (10 s in ``4-product.md`` §4)."""

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A signal came while no flow was running."""


FIRST = "{name}: stopping after this file, within {seconds:.0f} s; repeat to end at once"
FIRST_BESIDE = "{name}: stopping"
SECOND = "ending at once; completed work is kept, and the job can be continued"
SECOND_BESIDE = "ending at once"
TOO_LONG = "{seconds:.0f} s are over: ending without this file; the job can be continued"
"""What a person is told: at a signal while a flow runs, and beside; at the next one; when the time is over."""

SAID = 0.5
"""Seconds that the end of the process waits for the words."""


class Signals:
    """The signals of this process."""

    def __init__(self) -> None:
        self.seen: str | None = None
        self._words: Callable[[str], None] = _nobody
        self._said = threading.Event()
        self._stop: Stop | None = None
        self._give_up: Callable[[str], None] | None = None
        self._pipe: tuple[int, int] | None = None

    def fix_exit_code(self, code: int) -> None:
        """Keep the exit code from now on: a signal while the interpreter ends must not change it.

        The first signal ends the process at once. After an earlier one, the process has ``STOP_SECONDS`` and ignores
        others.
        """
        if self.seen is not None:
            self._said.wait(SAID)  # a thread that prints while the interpreter ends would make it crash
            ignore()
        elif threading.current_thread() is threading.main_thread():
            for number in NUMBERS:
                signal.signal(number, lambda *_: os._exit(code))

    def install(self, words: Callable[[str], None] | None = None) -> None:
        """Set the handlers, in the main thread only. ``words`` prints a text for the person and returns soon."""
        self._words = words or self._words
        if threading.current_thread() is not threading.main_thread():
            return
        if self._pipe is None:
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[1], False)
            threading.Thread(target=self._serve, args=(self._pipe[0],), name="signals", daemon=True).start()
        for number in NUMBERS:
            signal.signal(number, self._handle)

    @contextmanager
    def stopping(self, stop: Stop, give_up: Callable[[str], None]) -> Iterator[None]:
        """Let signals request a stop while a flow runs; ``give_up`` records it and ends the process."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in NUMBERS}
        self._stop, self._give_up = stop, give_up
        # Anew, because Prefect has put a handler of its own in place around the flow.
        self.install()
        if self.seen is not None:
            stop.request(self.seen)
        try:
            yield
        finally:
            self._stop = None
            for number, handler in before.items():
                signal.signal(number, handler)

    def announce_ui_stop(self, name: str) -> None:
        """Print that the UI requested a stop, and end the process if that takes longer than after a signal."""

        def over() -> None:
            if self._stop is stop and give_up is not None:
                give_up(name)

        stop, give_up = self._stop, self._give_up
        if stop is not None:
            self._announce(FIRST.partition(";")[0], f"{name} in the Prefect UI")
            timer = threading.Timer(STOP_SECONDS, over)
            timer.daemon = True
            timer.start()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.seen is None:
            self.seen = signal.Signals(number).name
        if self._pipe is not None:
            with contextlib.suppress(OSError):
                os.write(self._pipe[1], bytes([number]))
        if self._stop is None:
            raise Interrupted(self.seen)

    def _serve(self, source: int) -> None:
        os.read(source, 1)
        name = self.seen or signal.SIGTERM.name
        stop = self._stop
        if stop is not None:
            stop.request(name)
        self._announce(FIRST if stop is not None else FIRST_BESIDE, name)
        self._said.set()
        # From here on the process is ending. It has so long to do that by itself.
        again, _, _ = select.select([source], [], [], STOP_SECONDS)
        if self._stop is not None:
            self._announce(SECOND if again else TOO_LONG, name)
        elif again:
            self._announce(SECOND_BESIDE, name)
        give_up = self._give_up or _exit_process
        give_up(name)

    def _announce(self, text: str, name: str) -> None:
        self._words(text.format(name="Ctrl-C" if name == signal.SIGINT.name else name, seconds=STOP_SECONDS))


SUPERVISOR = "SLUICE_SUPERVISOR"
"""The environment variable with the process id of whoever started this process and cares for its end."""

_PR_SET_PDEATHSIG = 1


def end_with_supervisor(*, every: float = 0.5) -> None:
    """Kill this process when its supervisor is gone, however that ended. Without a supervisor, do nothing.

    Linux does it at once (``PR_SET_PDEATHSIG``), also while this process is held still. A thread that looks for the
    parent each half second does it where the kernel does not.
    """
    supervisor = os.environ.pop(SUPERVISOR, None)
    if supervisor is None:
        return
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == int(supervisor):
            time.sleep(every)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="supervisor", daemon=True).start()


def ignore() -> None:
    """Ignore signals from now on: the interpreter removes handlers before it ends, and a signal would kill it."""
    if threading.current_thread() is threading.main_thread():
        for number in NUMBERS:
            signal.signal(number, signal.SIG_IGN)


def _nobody(_text: str) -> None:
    """Print nothing: a worker's run."""


def _exit_process(name: str) -> None:
    os._exit(exit_code_of(name))


def exit_code_of(signal_name: str | None) -> int:
    """Return 130 for SIGINT, 143 for SIGTERM."""
    if signal_name is None or signal_name not in signal.Signals.__members__:
        return 130
    return 128 + int(signal.Signals[signal_name])


signals = Signals()
"""Those of this process."""
