"""``python -m deployments.sandbox``: run the sandbox services until Ctrl-C."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deployments.sandbox.data import DATA
from deployments.sandbox.host import run_sandbox
from deployments.sandbox.options import PASSWORD, SETTINGS, TOKEN, USERNAME, SandboxOptions


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError("expected NAME=VALUE")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deployments.sandbox",
        description="Sandbox services on 127.0.0.1, for trials and tests, not for production.",
        epilog=f"Credentials to ask for come from the environment: {USERNAME} and {PASSWORD}, or {TOKEN}.",
    )
    parser.add_argument("--data", type=Path, default=DATA, help="directory of FHIR NDJSON (default: bundled demo data)")
    parser.add_argument("--port", type=int, default=0, help="port of the first service (default: free ones)")
    parser.add_argument("--state", type=Path, help="keep the services' state there over restarts")
    names = ", ".join(sorted(SETTINGS))
    parser.add_argument(
        "--set", type=_setting, action="append", default=[], metavar="NAME=VALUE", help=f"a setting: {names}"
    )
    parser.add_argument("--ready-file", type=Path, help="write JSON there when every service answers")
    parser.add_argument("--parent", type=int, metavar="PID", help="end with this process")
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
