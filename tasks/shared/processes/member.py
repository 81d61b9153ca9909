"""What runs in each of the processes: ``python -m tasks.shared.processes.member CONTROL SEAT …``, numbers of sockets.

A *seat* is a socket over which one item at a time comes in and what became of it goes out; a thread sits at each. The
first message of the *control* socket says what the work is, later ones that it is to stop; log lines go back over it.
When that socket closes, the run is gone, and so is this process at once: it holds nothing that is to be kept.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from tasks.shared.defects import translate_defect
from tasks.shared.errors import SluiceError, Stopped
from tasks.shared.processes.channel import Channel
from tasks.shared.processes.work import Begin, Done, Logged, Plain, StopNow
from tasks.shared.progress import RequestStats
from tasks.shared.stop import Stop

log = logging.getLogger("sluice")


class _Requests(RequestStats):
    """Keeps the requests that each thread makes, for the process that counts them."""

    def __init__(self) -> None:
        super().__init__()
        self._made = threading.local()

    def record(self, seconds: float, *, retry: bool = False) -> None:
        """Keep one request of this thread."""
        self._made.__dict__.setdefault("requests", []).append((seconds, retry))

    def taken(self) -> tuple[tuple[float, bool], ...]:
        """The requests of this thread since the last time."""
        return tuple(self._made.__dict__.pop("requests", ()))


class _Lines(logging.Handler):
    """Sends the lines of the log to the run, without tracebacks: these may quote data."""

    def __init__(self, control: Channel) -> None:
        super().__init__()
        self._control = control

    def emit(self, record: logging.LogRecord) -> None:
        """Called under the handler's lock, so one thread sends at a time."""
        text, arguments = str(record.msg), _plain(record.args or ())
        if arguments is None:
            text, arguments = record.getMessage(), ()
        with suppress(EOFError):  # the run is gone, which ends this process
            self._control.send(Logged(record.name, record.levelno, text, arguments))


def _plain(arguments: object) -> tuple[Plain, ...] | None:
    """Arguments of a line as the run can read them, if they are all of that kind."""
    if not isinstance(arguments, tuple):
        return None
    plain = tuple(one for one in arguments if isinstance(one, Plain))
    return plain if len(plain) == len(arguments) else None


def main(control: Channel, seats: list[Channel]) -> None:
    """Work until the run closes the seats or the control socket."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # also when all processes of a service get it: the run tells when to stop
    sys.excepthook = lambda _kind, error, _trace: _give_up(error)
    threading.excepthook = lambda thread: _give_up(thread.exc_value)
    log.addHandler(_Lines(control))
    log.propagate = False
    begin: Begin = control.receive()
    log.setLevel(begin.level)
    stop, requests = Stop(), _Requests()
    threading.Thread(target=_listen, args=(control, stop), daemon=True).start()
    with begin.work.opened(slots=begin.slots, stop=stop, stats=requests) as work:
        threads = [threading.Thread(target=_sit, args=(seat, work, requests)) for seat in seats]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _give_up(error: BaseException | None) -> NoReturn:
    """End this process at once: the run would wait for ever for a seat at which nobody sits."""
    if error is not None and not isinstance(error, EOFError):  # that is the run, gone
        known = error if isinstance(error, SluiceError) else translate_defect(error)
        log.error("a process of this step gives up: %s", known.message)
    os._exit(1)


def _listen(control: Channel, stop: Stop) -> None:
    while True:
        message = control.receive()
        if isinstance(message, StopNow):
            stop.request(message.reason)


def _sit(seat: Channel, work: Callable[[Any], Any], requests: _Requests) -> None:
    with suppress(EOFError):
        while True:
            _answer(seat, work, requests)


def _answer(seat: Channel, work: Callable[[Any], Any], requests: _Requests) -> None:
    """Work on one item. Its texts are let go of when this returns, not when the next item comes."""
    result, error = None, None
    item = seat.receive()
    try:
        result = work(item)
    except (SluiceError, Stopped) as known:
        error = known
    except Exception as unknown:  # noqa: BLE001 - its text may quote data, and it may not be one that can be sent
        error = translate_defect(unknown)
    del item
    made = requests.taken()
    try:
        seat.send(Done(result, error, made))
    except EOFError:
        raise
    except Exception as unsendable:  # noqa: BLE001 - nothing was sent yet, and the run waits for an answer
        seat.send(Done(None, translate_defect(unsendable), made))


if __name__ == "__main__":
    sockets = [Channel(socket.socket(fileno=int(number))) for number in sys.argv[1:]]
    main(sockets[0], sockets[1:])
