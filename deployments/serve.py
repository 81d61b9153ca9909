"""Serve the flow from this machine: ``python -m deployments.serve`` keeps a deployment that the Prefect UI can start.

It uses the Prefect API that ``PREFECT_API_URL`` or a profile names, else the one that ``server start`` keeps for
``APP_JOBS_DIR`` (or ``./jobs``). Each run is a process on this machine; configuration paths are paths here.

The serving process is a child of this one. At SIGTERM and Ctrl-C it is suspended, and its runs end between two files,
``stopped``, before it ends, as with a worker (``deployments/worker.py``).
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

from deployments.worker import add_unfinished, supervise, sweep
from flows.engine.api import TAG
from flows.engine.api_address import use
from flows.engine.reached import chosen_api
from flows.engine.server.start import EmbeddedServer
from flows.engine.server.watch import watched
from flows.shell import command
from flows.signals import end_with_supervisor
from tasks.shared.errors import InputError, SluiceError

CHILD = "--child"
"""Given by this module to itself: serve in this very process."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C."""
    options = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="deployments.serve", description="Serve the pipeline as a Prefect deployment."
    )
    parser.add_argument("--name", default="sluice", help="name of the deployment [default: sluice]")
    parser.add_argument("--limit", type=int, default=2, help="how many runs at once on this machine [default: 2]")
    add_unfinished(parser)
    parser.add_argument(CHILD, action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(options)
    os.umask(0o077)
    if not args.child:
        return supervise([sys.executable, "-m", "deployments.serve", CHILD, *options])
    end_with_supervisor()
    jobs_dir = Path(os.environ.get("APP_JOBS_DIR") or "./jobs")
    try:
        address = chosen_api(jobs_dir) or EmbeddedServer(jobs_dir).running_permanently()
        if address is None:
            raise InputError(
                "no-prefect-api", "no Prefect API is named and no local server is kept",
                hint=f"{command('server', 'start')}, or set PREFECT_API_URL",
            )  # fmt: skip
    except SluiceError as error:
        sys.stderr.write(error.render() + "\n")
        return error.exit_code
    use(address, jobs_dir)
    from prefect.types.entrypoint import EntrypointType

    from flows.engine import patches

    try:
        patches.require("run", "loops")
        patches.apply("loops")
        from flows.pipeline import pipeline
    except SluiceError as error:
        sys.stderr.write(error.render() + "\n")
        return error.exit_code
    sys.stdout.write(f"serving pipeline/{args.name} to {address.ui}\n")
    sys.stdout.flush()
    looking = (address, args.unfinished, threading.Event())
    threading.Thread(target=sweep, args=looking, name="sweep", daemon=True).start()
    # At SIGTERM Prefect's runner makes a coroutine that it does not run, and leaves; its runs have ended before.
    warnings.filterwarnings("ignore", "coroutine 'Runner.astop' was never awaited", RuntimeWarning)
    with watched(address):  # whoever takes the place of a dead server is asked for nothing, and sent no secret
        pipeline.serve(
            name=args.name,
            tags=[TAG],
            limit=args.limit,
            entrypoint_type=EntrypointType.MODULE_PATH,
            print_starting_message=False,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
