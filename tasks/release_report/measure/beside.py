"""The process that measures beside the steps: ``import/`` while a step works, and what leaves as files are finished.

One for each job, on one core and with a lower priority. It reads the job as a line of JSON, then, when the report is
made, the files that leave; it prints the bytes that it reads, a number a line, and what was measured. It ends when its
input does, so also when the process of the job is killed. If it fails, or the files are others than those that leave,
the report measures them itself.
"""

from __future__ import annotations

import gc
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import IO, Final

import msgspec

from tasks.release_report.measure.delivery import Delivery, Measurer, Measures, decode, encode, measuring
from tasks.shared.files.out_file import write_all
from tasks.shared.log import logger
from tasks.shared.stop import Stop

COMMAND: Final = (sys.executable, "-m", "tasks.release_report.measure.beside")

_LOOK: Final = 0.1
"""Seconds between two looks for a finished file, and between two numbers of bytes."""
_LISTEN: Final = 0.25
"""Seconds between two looks whether the job is to stop."""
_NICE: Final = 5
_COMPRESSED: Final = ".zst"
_NEW_OBJECTS: Final = 50_000
"""New objects after which the collector looks for cycles. Measuring makes none, and each look takes its time."""


class _Begin(msgspec.Struct):
    """The first line: the job, and the directory whose files will leave if they are made of those of ``import/``."""

    base: str
    imported: list[str]
    today: date
    k: int
    region_prefix: int
    largest: int
    expected: str | None


class _Leaving(msgspec.Struct):
    """The second line: the files that leave."""

    files: list[str]


class BesideProcess:
    """The process, from the side of the job. ``close`` ends it; a failure of it is no failure of the job."""

    def __init__(self, job: Delivery, expected: Path | None) -> None:
        began = _Begin(
            str(job.base.absolute()), _names(job.imported), job.today, job.k, job.region_prefix, job.largest,
            str(expected.absolute()) if expected is not None else None,
        )  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(OSError):  # no process, no memory: the report measures
            self._process = subprocess.Popen(  # noqa: S603 - this program
                COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
                start_new_session=True, cwd=Path(__file__).parents[3],
            )  # fmt: skip
        self._write_order(began)

    def result(self, delivery: Delivery) -> Measures | None:
        """Return what was measured, once, when it has measured the files that leave; ``None`` if it failed.

        Raises ``Stopped``.
        """
        self._write_order(_Leaving(_names(delivery.leaving)))
        try:
            text = self._answer(delivery.stop, delivery.read)
        finally:
            self.close()
        found = decode(text)
        if found is None:
            logger.warning("the process that measures for the release report ended; the report reads the data itself")
        return found

    def _write_order(self, line: msgspec.Struct) -> None:
        process = self._process
        with suppress(OSError):
            if process is not None and process.stdin is not None:
                process.stdin.write(msgspec.json.encode(line) + b"\n")

    def _answer(self, stop: Stop, read: Callable[[int], None]) -> bytes:
        if self._process is None or self._process.stdout is None:
            return b""
        answers, text = self._process.stdout.fileno(), b""
        while True:
            stop.check()
            if not select.select([answers], [], [], _LISTEN)[0]:
                continue
            piece = os.read(answers, 1 << 20)
            if not piece:
                return text
            *numbers, text = (text + piece).split(b"\n")
            read(sum(int(number) for number in numbers if number))

    def close(self) -> None:
        """End the process. Safe to call twice."""
        if (process := self._process) is None:
            return
        self._process = None
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _names(paths: Iterable[Path]) -> list[str]:
    return [str(path.absolute()) for path in paths]


class _NotExpectedError(Exception):
    """The files that leave are not those that were expected."""


class _Orders:
    """The lines that come while files are measured, read by a thread that ends the process where they end."""

    def __init__(self, orders: IO[bytes]) -> None:
        self.begin = msgspec.json.decode(orders.readline(), type=_Begin)
        self.leaving: _Leaving | None = None
        self._orders = orders
        self._told = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        if line := self._orders.readline():
            self.leaving = msgspec.json.decode(line, type=_Leaving)
            self._told.set()
            self._orders.read()
        os._exit(1)

    def wait(self) -> _Leaving:
        """Return the files that leave when it is known which they are."""
        self._told.wait()
        assert self.leaving is not None  # noqa: S101 - for the type checker
        return self.leaving

    def ready(self, path: Path) -> Path:
        """Return the file at ``path``, compressed or not, when it is finished. Raises ``_NotExpectedError``."""
        names = {path, Path(f"{path}{_COMPRESSED}"), Path(str(path).removesuffix(_COMPRESSED))}
        while True:
            over = self.leaving
            if found := next((name for name in names if name.is_file()), None):
                return found
            if over is not None:
                raise _NotExpectedError
            time.sleep(_LOOK)


class _Progress:
    """Prints the bytes of content that were read since the report waits for the measures, which its rate is about."""

    def __init__(self, orders: _Orders) -> None:
        self._orders = orders
        self._bytes = 0
        self._next = 0.0

    def add(self, count: int) -> None:
        if self._orders.leaving is None:
            return
        self._bytes += count
        if (now := time.monotonic()) >= self._next:
            self._next = now + _LOOK
            os.write(sys.stdout.fileno(), b"%d\n" % self._bytes)
            self._bytes = 0


def measured(orders: _Orders, measurer: Measurer, job: Delivery) -> Measures:
    """Return what was measured of the files that leave: as they were finished, if they are those of ``import/``."""
    found, expected = None, orders.begin.expected
    if expected is not None and measurer.imported is not None and not measurer.imported.tables:
        paths = [Path(expected, *path.relative_to(job.base).parts[1:]) for path in job.imported]
        with suppress(_NotExpectedError):
            found = measurer.measure_outgoing(paths, like=job.imported, ready=orders.ready)
    leaving = orders.wait()
    files = list(map(Path, leaving.files))
    if found is None or found.unread or {job.base / file.name for file in found.files} != set(files):
        found = measurer.measure_outgoing(files)
    return measurer.imported, found


def collect_rarely() -> None:
    """Look for cycles of new objects rarely, and no more among those of the modules."""
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)


def main() -> None:
    """Measure the job that stdin names, and print what was found."""
    os.nice(_NICE)
    os.umask(0o077)
    collect_rarely()
    orders = _Orders(sys.stdin.buffer)
    begin = orders.begin
    job = Delivery(
        base=Path(begin.base), leaving=(), imported=tuple(map(Path, begin.imported)), k=begin.k,
        region_prefix=begin.region_prefix, largest=begin.largest, today=begin.today, stop=Stop(),
        read=_Progress(orders).add,
    )  # fmt: skip
    with measuring(job) as measurer:
        answer = encode(measured(orders, measurer, job))
    write_all(sys.stdout.fileno(), answer)
    os._exit(0)


if __name__ == "__main__":
    main()
