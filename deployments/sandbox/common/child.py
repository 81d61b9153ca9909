"""Start a sandbox service as a child process that reports when it is ready and ends with its parent.

``PR_SET_PDEATHSIG`` is not enough: Linux ties it to the *thread* that started the child, so a sandbox started from a
worker thread would die with that thread. A process descriptor signals the end of the process at once. Without process
descriptors, the parent is checked twice a second.
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

from deployments.sandbox.common.serve import ERROR_PREFIX, SandboxStartError

_INTERVAL = 0.5


async def watch(pid: int, stop: Callable[[], None]) -> None:
    """Call ``stop`` once the process has ended, also if it ended before the call."""
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
        return True  # the process exists and belongs to another user
    return True


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically. Raises ``SandboxStartError``."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise SandboxStartError(f"{path} cannot be written: {error.strerror}") from None


_ROOT = Path(__file__).resolve().parents[3]
"""Root of the packages: the child imports the same ones, whatever its working directory contains."""
_POLL = 0.02
_PATIENCE = 60.0


class Child:
    """A running child process. It ends with the ``with`` block, or else with this process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def stop(self, timeout: float = 5.0) -> None:
        """End the process and wait for it; kill it after ``timeout`` seconds. Further calls do nothing."""
        _end(self._process, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def start_process(module: str, words: list[str]) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Run a module, wait for its ``--ready-file``, and return the process with the content of that file.

    The child has its own session, so that Ctrl-C in the terminal reaches this program first. It ends with this process
    (``--parent``), even if this process is killed. Raises ``SandboxStartError`` with the child's error message if the
    child is not ready within a minute.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-start-") as directory:
        ready, error_output = Path(directory) / "ready.json", Path(directory) / "stderr"
        options = ["--ready-file", str(ready), "--parent", str(os.getpid())]
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with error_output.open("wb") as stderr:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", module, *words, *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
            )
        try:
            _wait(process, ready, error_output)
            return process, json.loads(ready.read_text(encoding="utf-8"))
        except BaseException:
            _end(process, 2.0)
            raise


def _wait(process: subprocess.Popen[bytes], ready: Path, error_output: Path) -> None:
    """Wait until the child is ready. Raises ``SandboxStartError`` if the child has ended or takes too long."""
    deadline = time.monotonic() + _PATIENCE
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            messages = error_output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            reason = messages[-1].removeprefix(ERROR_PREFIX) if messages else f"no answer within {_PATIENCE:g} s"
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
