"""A process of the sandbox that a program starts: it tells when it is ready, and ends with the program.

``PR_SET_PDEATHSIG`` would not do: Linux ties it to the *thread* that started the child, so a sandbox started from a
worker thread would die with that thread. A process descriptor tells about the process, at once as well; where there is
none the parent is looked at twice a second.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from deployments.sandbox.common.serve import COMPLAINT, SandboxStartError

_INTERVAL = 0.5


async def watch(pid: int, stop: Callable[[], None]) -> None:
    """Call ``stop`` once the process is gone, then return. A process that is gone already counts."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        stop()
        return
    except (AttributeError, OSError):  # another system, or a kernel before 5.3
        await _poll(pid, stop)
        return
    try:
        await _readable(descriptor)
    finally:
        os.close(descriptor)
    stop()


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)


async def _poll(pid: int, stop: Callable[[], None]) -> None:
    is_child = os.getppid() == pid
    while _alive(pid) and (not is_child or os.getppid() == pid):
        await asyncio.sleep(_INTERVAL)
    stop()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it is there and belongs to somebody else
    return True


def write_whole(path: Path, text: str) -> None:
    """Write a file that appears whole. Raises ``SandboxStartError``."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise SandboxStartError(f"{path} cannot be written: {error.strerror}") from None


_ROOT = Path(__file__).resolve().parents[3]
"""Where the packages lie: the child must find the same ones, whatever its working directory holds."""
_POLL = 0.02
_PATIENCE = 60.0


class Child:
    """A running process. As a context manager it ends with the block, without one with this process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def stop(self, timeout: float = 5.0) -> None:
        """End it and wait until it is gone; after ``timeout`` seconds by force. Once is enough."""
        _end(self._process, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def start_process(module: str, words: list[str]) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Run a module and wait until it has written its ``--ready-file``; what that says comes back beside the process.

    It has its own session, so that a Ctrl-C in the terminal reaches this program first, and it ends with this process
    (``--parent``) even when that is killed. Raises ``SandboxStartError`` with what the child said when it does not come
    up in a minute.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-start-") as directory:
        ready, complaints = Path(directory) / "ready.json", Path(directory) / "stderr"
        told = ["--ready-file", str(ready), "--parent", str(os.getpid())]
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with complaints.open("wb") as stderr:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", module, *words, *told],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
            )
        try:
            _wait(process, ready, complaints)
            return process, json.loads(ready.read_text(encoding="utf-8"))
        except BaseException:
            _end(process, 2.0)
            raise


def _wait(process: subprocess.Popen[bytes], ready: Path, complaints: Path) -> None:
    """Return when the child has said that it is ready; raise when it ended, or took too long."""
    deadline = time.monotonic() + _PATIENCE
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            said = complaints.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            reason = said[-1].removeprefix(COMPLAINT) if said else f"no answer within {_PATIENCE:g} s"
            raise SandboxStartError(reason)
        time.sleep(_POLL)


def _end(process: subprocess.Popen[bytes], timeout: float) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
