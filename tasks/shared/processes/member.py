"""What runs in each of the processes: ``python -m tasks.shared.processes.member CONTROL SEAT …``, numbers of sockets.

A *seat* is a socket over which one item at a time comes in and what became of it goes out; a thread sits at each. The
first message of the *control* socket says what the work is, later ones that it is to stop; log lines go back over it.
When that socket closes, the run is gone, and so is this process at once: it holds nothing that is to be kept.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from tasks.shared.defects import translate_defect
from tasks.shared.errors import SluiceError, Stopped
from tasks.shared.processes.channel import Channel
from tasks.shared.processes.work import Begin, Done, Logged, StopNow
from tasks.shared.progress import RequestStats
from tasks.shared.stop import Stop


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
    """Sends the lines of the log to the run."""

    def __init__(self, control: Channel) -> None:
        super().__init__()
        self._control = control

    def emit(self, record: logging.LogRecord) -> None:
        """Called under the handler's lock, so one thread sends at a time."""
        record.exc_info = None  # cannot be sent, and may quote data
        self._control.send(Logged(record))


def main(control: Channel, seats: list[Channel]) -> None:
    """Work until the run closes the seats or the control socket."""
    begin: Begin = control.receive()
    logger = logging.getLogger("sluice")
    logger.setLevel(begin.level)
    logger.addHandler(_Lines(control))
    logger.propagate = False
    stop, requests = Stop(), _Requests()
    threading.Thread(target=_listen, args=(control, stop), daemon=True).start()
    with begin.work.opened(slots=begin.slots, stop=stop, stats=requests) as work:
        threads = [threading.Thread(target=_sit, args=(seat, work, requests)) for seat in seats]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _listen(control: Channel, stop: Stop) -> None:
    try:
        while True:
            message = control.receive()
            if isinstance(message, StopNow):
                stop.request(message.reason)
    except EOFError:
        os._exit(1)


def _sit(seat: Channel, work: Callable[[Any], Any], requests: _Requests) -> None:
    try:
        while True:
            item = seat.receive()
            result, error = None, None
            try:
                result = work(item)
            except (SluiceError, Stopped) as known:
                error = known
            except Exception as unknown:  # noqa: BLE001 - its text may quote data, and it may not be one that can be sent
                error = translate_defect(unknown)
            del item
            seat.send(Done(result, error, requests.taken()))
            del result
    except (EOFError, OSError):
        return


if __name__ == "__main__":
    sockets = [Channel(socket.socket(fileno=int(number))) for number in sys.argv[1:]]
    main(sockets[0], sockets[1:])
