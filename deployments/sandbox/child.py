"""Run the sandbox as a child process, for ``demo`` and for tests."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

from deployments.sandbox.common.child import Child, start_process
from deployments.sandbox.options import SandboxOptions


class SandboxChild(Child):
    """A running sandbox process."""

    def __init__(self, process: subprocess.Popen[bytes], config_path: Path, urls: dict[str, str]) -> None:
        super().__init__(process)
        self.config_path = config_path
        """The complete configuration file that the sandbox wrote."""
        self.urls = urls
        """Root URL of each service by name, without a trailing slash."""


def start_child(options: SandboxOptions) -> SandboxChild:
    """Start a sandbox process and return when every service answers. The sandbox ends with this process.

    Raises ``SandboxStartError`` with the child's error message if the sandbox does not start.
    """
    words = arguments(replace(options, ready_file=None, parent=None))
    process, startup = start_process("deployments.sandbox", words)
    return SandboxChild(process, Path(startup["configuration"]), startup["urls"])


def arguments(options: SandboxOptions) -> list[str]:
    """Return the command line arguments for the options."""
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
