"""Run the sandbox as a child process. It imports none of the sandbox's libraries."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tasks.shared.errors import TerminalError

ERROR: Final = "error[sandbox]: "
"""Prefix of the sandbox's errors."""
FIRST_LINE: Final = "configuration: "
"""Begin of its first line; the path of the configuration follows."""
MISSING: Final = "install Sluice with its extra demo, as the README's first command does"
"""What to do without the sandbox's libraries."""
_ROOT: Final = Path(__file__).resolve().parents[2]


class SandboxStartError(Exception):
    """The sandbox could not be started. The message gives the reason, without data."""


@contextmanager
def sandbox_child(state: Path) -> Iterator[Path]:
    """Run a sandbox process; yield the path of its configuration when every service answers.

    It ends with the block, or else with this process. It has its own session, so that Ctrl-C in the terminal reaches
    this program first. Raises ``TerminalError`` if a service did not start.
    """
    environment = os.environ | {"PYTHONPATH": str(_ROOT)}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-P", "-m", "flows.run", "sandbox", "--state", str(state), "--with-parent"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True,
            start_new_session=True,
        )  # fmt: skip
        line = process.stdout.readline() if process.stdout else ""
        if not line.startswith(FIRST_LINE):
            process.communicate()
            errors.seek(0)
            why = errors.read().strip().rpartition(ERROR)[2] or "it ended without an error message"
            raise TerminalError("sandbox", f"the sandbox did not start: {why}")
        try:
            yield Path(line.removeprefix(FIRST_LINE).rstrip("\n"))
        finally:
            process.terminate()
            try:
                process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
