"""Finds and runs the programs of other people that these tests talk to.

Every program is optional: a test that misses one is skipped, and says what to install. The environment variable wins
over ``PATH``, so that nothing needs to be installed for everybody.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

HOST = "127.0.0.1"
_SYSTEM = "/usr/local/sbin:/usr/sbin:/sbin"  # where distributions put servers, often outside a user's PATH


def program(name: str, variable: str, how: str) -> Path:
    """Return the executable that ``variable`` names, or ``name`` on the path; the test is skipped without it."""
    given = os.environ.get(variable)
    search = os.pathsep.join((os.environ.get("PATH", os.defpath), _SYSTEM))
    found = shutil.which(given or name, path=search)
    if found is None:
        pytest.skip(f"{name} is not there ({variable if given else 'PATH'}); {how}")
    return Path(found)


def directory(variable: str, holds: str, how: str) -> Path:
    """Return the directory that ``variable`` names, with a file or directory ``holds`` in it; skipped without it."""
    given = os.environ.get(variable)
    if not given:
        pytest.skip(f"{variable} is not set; {how}")
    path = Path(given)
    if not (path / holds).exists():
        pytest.skip(f"{variable} has no {holds}; {how}")
    return path


def whole_lines(log: Path) -> list[str]:
    """Return the lines of a file that a program still writes to, without one that is not whole yet."""
    return log.read_text(encoding="utf-8", errors="replace").rpartition("\n")[0].splitlines()


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a short-lived directory that a program without our privileges can reach, if it is given to that user."""
    path = Path(tempfile.mkdtemp(prefix="sluice-real-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Running:
    """A program that runs: its process, and what it has printed so far."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self._log = log

    def output(self) -> str:
        """Everything on its standard output and error."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def line(self, prefix: str) -> str | None:
        """Return the text after ``prefix`` in the first whole line that begins with it."""
        for line in whole_lines(self._log):
            if line.startswith(prefix):
                return line.removeprefix(prefix).strip()
        return None

    def wait(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until it is ready; a program that ends or takes longer fails the test with its last output."""
        deadline = time.monotonic() + seconds
        while not ready():
            if self.process.poll() is not None:
                pytest.fail(f"{self.name} ended with {self.process.returncode}:\n{self.output()[-3000:]}")
            if time.monotonic() > deadline:
                pytest.fail(f"{self.name} was not ready after {seconds} s:\n{self.output()[-3000:]}")
            time.sleep(0.02)


@contextmanager
def running(
    name: str,
    command: Sequence[str | Path],
    log: Path,
    *,
    environ: Mapping[str, str] | None = None,
    port: int | None = None,
    seconds: float = 60.0,
    ends_with_input: bool = False,
) -> Iterator[Running]:
    """Run a program while the block runs; with ``port``, the block begins when the program listens there.

    Its standard input stays open for as long as it is wanted, its output goes to ``log``, and it gets no more of our
    environment than it needs. It is ended with SIGTERM, or by the end of its input alone with ``ends_with_input``.
    """
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "JAVA_HOME", "TMPDIR") if key in os.environ}
    with log.open("ab") as output:
        process = _start(command, output, kept | dict(environ or {}))
    child = Running(name, process, log)
    try:
        if port is not None:
            child.wait(lambda: listens(port), seconds)
        yield child
    finally:
        _end(process, gently=ends_with_input)


def listens(port: int) -> bool:
    """Return whether a process accepts connections on this port of loopback."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def _start(command: Sequence[str | Path], output: IO[bytes], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environ,
        start_new_session=True,  # Ctrl-C is for the tests, which then end their programs in order
    )


def _end(process: subprocess.Popen[bytes], *, gently: bool) -> None:
    assert process.stdin is not None
    process.stdin.close()
    if not gently:
        process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
