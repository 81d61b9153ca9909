"""Run the sandbox as a child process. It imports none of the sandbox's libraries."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, Self

ERROR: Final = "error[sandbox]: "
"""Prefix of the sandbox's errors."""
FIRST_LINE: Final = "configuration: "
"""Begin of its first line; the path of the configuration follows."""
MISSING: Final = "install Sluice with its extra demo, as the README's first command does"
"""What to do without the sandbox's libraries."""
_ROOT: Final = Path(__file__).resolve().parents[2]


class SandboxStartError(Exception):
    """The sandbox could not be started. The message gives the reason, without data."""


class SandboxChild:
    """A running sandbox process. It ends with the ``with`` block, or else with this process."""

    def __init__(self, process: subprocess.Popen[str], config_path: Path) -> None:
        self._process = process
        self.config_path = config_path
        """The complete configuration file that the sandbox wrote."""

    def stop(self) -> None:
        """End the process and wait for it. Further calls do nothing."""
        self._process.terminate()
        try:
            self._process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def start_child(state: Path) -> SandboxChild:
    """Start a sandbox process and return when every service answers.

    It has its own session, so that Ctrl-C in the terminal reaches this program first. Raises ``SandboxStartError``.
    """
    environment = os.environ | {"PYTHONPATH": str(_ROOT)}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-P", "-m", "deployments.sandbox", "--state", str(state), "--with-parent"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True,
            start_new_session=True,
        )  # fmt: skip
        line = process.stdout.readline() if process.stdout else ""
        if line.startswith(FIRST_LINE):
            return SandboxChild(process, Path(line.removeprefix(FIRST_LINE).rstrip("\n")))
        process.communicate()
        errors.seek(0)
        said = errors.read().strip().splitlines()
        raise SandboxStartError(said[-1].removeprefix(ERROR) if said else "it ended without a word")
