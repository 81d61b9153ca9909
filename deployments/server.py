"""A Prefect server for several machines: ``python -m deployments.server --host 127.0.0.1 --port 4200``.

Like ``prefect server start``, with the settings that Sluice needs (``SERVER`` in ``flows/engine/server/start.py``):
slots of lost runs are freed after a ``kill -9``, a run that has not begun an hour after its time is reported, no page
calls an analytics host, and no request goes to the internet. Environment variables take precedence; they also set the
database, the login and ``PREFECT_HOME``. Without a login it listens on loopback only.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from flows.engine import patches
from flows.engine.patches import UnfitPrefectError
from flows.engine.server.start import SERVER
from tasks.shared.errors import InputError

LOGIN = "PREFECT_SERVER_API_AUTH_STRING"

ENDS_WITHIN = 10
"""Seconds for the requests under way when it is told to end; a page of the UI keeps one open for ever."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(prog="deployments.server", description="A Prefect server for Sluice.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on [default: 127.0.0.1]")
    parser.add_argument("--port", type=int, default=4200, help="[default: 4200]")
    args = parser.parse_args(argv)
    login = os.environ.get(LOGIN)
    if not login and not is_loopback(args.host):
        refusal = InputError(
            "server-login", "without a login everybody who reaches this server could start and approve jobs",
            context=f"--host {args.host}",
            hint=f"set {LOGIN} to user:password",
        )  # fmt: skip
        sys.stderr.write(refusal.render() + "\n")
        return refusal.exit_code
    os.umask(0o077)
    for name, value in settings(args.port).items():
        os.environ.setdefault(name, value)

    import prefect
    import uvicorn

    try:
        patches.require("server")
    except UnfitPrefectError as unfit:
        sys.stderr.write(unfit.render() + "\n")
        return unfit.exit_code
    from flows.engine.server.app import application

    place = Path(prefect.settings.PREFECT_HOME.value())
    sys.stdout.write(f"Prefect UI: http://{args.host}:{args.port}\n")
    sys.stdout.flush()
    uvicorn.run(
        application(place), host=args.host, port=args.port, log_level="warning", lifespan="on",
        timeout_keep_alive=30, timeout_graceful_shutdown=ENDS_WITHIN,
    )  # fmt: skip
    return 0


def settings(port: int) -> dict[str, str]:
    """Return the settings of the server for which no environment variable is set."""
    return SERVER | {"PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://127.0.0.1:{port}"}


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches that address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


if __name__ == "__main__":
    sys.exit(main())
