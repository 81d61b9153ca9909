"""The sandbox as a child process of a program, for ``demo`` and for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from deployments.sandbox.common.serve import SandboxStartError
from deployments.sandbox.options import SandboxOptions

_ROOT = Path(__file__).resolve().parents[2]
"""Where the packages lie: the child must find the same ones, whatever its working directory holds."""
_POLL = 0.02


class SandboxChild:
    """A running sandbox process. As a context manager it ends with the block, without one with this process."""

    def __init__(self, process: subprocess.Popen[bytes], config_path: Path, urls: dict[str, str]) -> None:
        self._process = process
        self.config_path = config_path
        """The complete configuration file that the sandbox wrote."""
        self.urls = urls
        """Root URL of each service by name, without a trailing slash."""

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def stop(self, timeout: float = 5.0) -> None:
        """End the sandbox and wait until it is gone; after ``timeout`` seconds by force. Once is enough."""
        _end(self._process, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start_child(options: SandboxOptions, timeout: float = 60.0) -> SandboxChild:
    """Start a sandbox process and wait until every service answers.

    It has its own session, so that a Ctrl-C in the terminal reaches this program first, and it ends with this process
    even when that is killed. Raises ``SandboxStartError`` with what the child said when it does not come up within
    ``timeout`` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-start-") as directory:
        ready, complaints = Path(directory) / "ready.json", Path(directory) / "stderr"
        options = replace(options, ready_file=ready, parent=os.getpid())
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with complaints.open("wb") as stderr:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", "deployments.sandbox", *arguments(options)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
            )
        try:
            _wait(process, ready, complaints, timeout)
            told = json.loads(ready.read_text(encoding="utf-8"))
        except BaseException:
            _end(process, 2.0)
            raise
        return SandboxChild(process, Path(told["configuration"]), told["urls"])


def _wait(process: subprocess.Popen[bytes], ready: Path, complaints: Path, timeout: float) -> None:
    """Return when the child has said that it is ready; raise when it ended, or took too long."""
    deadline = time.monotonic() + timeout
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            said = complaints.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            reason = said[-1].removeprefix("sandbox: ") if said else f"no answer within {timeout:g} s"
            raise SandboxStartError(reason)
        time.sleep(_POLL)


def arguments(options: SandboxOptions) -> list[str]:
    """The command line that stands for the options."""
    words = ["--data", str(options.data.absolute()), "--port", str(options.port)]
    if options.state is not None:
        words += ["--state", str(options.state.absolute())]
    for name, value in options.settings.items():
        words += ["--set", f"{name}={value}"]
    if options.ready_file is not None:
        words += ["--ready-file", str(options.ready_file)]
    if options.parent is not None:
        words += ["--parent", str(options.parent)]
    return words


def _end(process: subprocess.Popen[bytes], timeout: float) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
