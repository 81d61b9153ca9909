"""``python -m deployments.sandbox``: run the sandbox services until Ctrl-C."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deployments.sandbox.data import DATA
from deployments.sandbox.host import run_sandbox
from deployments.sandbox.options import API_KEY, PASSWORD, SETTINGS, TOKEN, USERNAME, SandboxOptions


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError("expected NAME=VALUE")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deployments.sandbox",
        description="Run the sandbox services on 127.0.0.1. For trials and tests, not for production.",
        epilog=f"To require credentials, set {USERNAME} and {PASSWORD}, {TOKEN}, or {API_KEY} in the environment.",
    )
    parser.add_argument("--data", type=Path, default=DATA, help="directory of FHIR NDJSON (default: bundled demo data)")
    parser.add_argument("--port", type=int, default=0, help="port of the first service (default: free ports)")
    parser.add_argument("--state", type=Path, help="directory that keeps the services' state over restarts")
    names = ", ".join(sorted(SETTINGS))
    parser.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"change a setting (repeatable): {names}",
    )
    parser.add_argument("--ready-file", type=Path, help="file to write (JSON) when every service answers")
    parser.add_argument("--parent", type=int, metavar="PID", help="stop when this process ends")
    return parser


def main(words: list[str] | None = None) -> int:
    """Run the command and return the exit code."""
    given = _parser().parse_args(words)
    return run_sandbox(
        SandboxOptions(
            data=given.data,
            port=given.port,
            state=given.state,
            settings=dict(given.set),
            ready_file=given.ready_file,
            parent=given.parent,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
