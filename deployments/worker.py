"""A Prefect worker whose runs end cleanly when it is stopped: ``python -m deployments.worker --pool sluice --limit 2``.

The options are those of ``prefect worker start`` for a process worker. Prefect's own worker kills its runs (SIGKILL)
within a second of its SIGTERM or SIGINT, so that they would be ``interrupted``. This one is suspended first, so that it
takes up nothing new, and its runs get the signal: each ends between two files and records that it is ``stopped``
(``4-product.md`` §4, "Stop": within 10 seconds). Then the worker ends. Signal this process alone, not its children:
``KillMode=mixed`` in systemd; containers do so by default.

It runs two jobs at once unless ``--limit`` is given. An outage of the server ends neither the worker nor its runs
(``flows/engine/pool_worker.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from flows.engine.api_address import QUIET, configured_api, not_proxied
from flows.engine.reached import own_server
from flows.engine.server.watch import is_alive
from flows.signals import SUPERVISOR
from tasks.shared.errors import InputError, SluiceError, StorageError

PATIENCE = 15.0
"""Seconds that the runs have; those that still run then are killed with the worker, and can be continued."""

LOOK_EVERY = 0.1

LIMIT = "2"
"""Runs at once where ``--limit`` is not given: more machines add capacity, one is not flooded."""


def main(argv: Sequence[str] | None = None) -> int:
    """Work until a signal; return the exit code of the worker."""
    parser = argparse.ArgumentParser(
        prog="deployments.worker", allow_abbrev=False,
        description="A worker of a process pool; it has the options of prefect worker start, too.",
    )  # fmt: skip
    parser.add_argument("-p", "--pool", help="the work pool")
    ours, options = parser.parse_known_args(argv)
    if ours.pool is not None:
        options = ["--pool", ours.pool, *options]
    try:
        address = configured_api()
        if address is None:  # Prefect's worker would start a server of its own, which nobody knows, and wait there
            raise InputError("no-prefect-api", "no Prefect API is named", hint="set PREFECT_API_URL")
        if not address.url.startswith(("http://", "https://")):
            raise InputError(
                "no-prefect-api", "that is no address of a Prefect API", context=address.shown,
                hint="PREFECT_API_URL, or the Prefect profile, names one: http://HOST:PORT/api",
            )  # fmt: skip
    except SluiceError as error:
        sys.stderr.write(error.render() + "\n")
        return error.exit_code
    os.environ.update(QUIET)  # Prefect's spans in a run would carry the job record
    not_proxied(address, os.environ)
    home = own_server(Path(os.environ.get("APP_JOBS_DIR") or "./jobs"), address.url)
    command = [sys.executable, "-m", "flows.engine.pool_worker", *limited(options)]
    ending = threading.Event()
    return supervise(command, lost=lambda: home is not None and is_gone(home), ending=ending)


def is_gone(home: Path) -> bool:
    """Return whether the local server has ended. If this cannot be checked, it counts as alive."""
    with contextlib.suppress(StorageError):
        return not is_alive(home)
    return False


def limited(options: Sequence[str]) -> list[str]:
    """Return the options with a limit of concurrent runs, in any spelling of Prefect's command line."""
    given = any(one.startswith(("--limit", "-l")) for one in options)
    return list(options) if given else [*options, "--limit", LIMIT]


def supervise(
    command: Sequence[str],
    *,
    patience: float = PATIENCE,
    lost: Callable[[], bool] = lambda: False,
    ending: threading.Event | None = None,
) -> int:
    """Run a worker until it ends. At the first SIGTERM or SIGINT, let its children end first, and set ``ending``.

    The worker is killed with this process, because two workers would serve one place (``end_with_supervisor``). Its
    runs go on. When its local server is ``lost``, it ends with 3, so that nothing is sent to another program at that
    address.
    """
    asked: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        if ending is not None:
            ending.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, remember)
    # A session of its own: Ctrl-C on a terminal reaches this process alone.
    named = os.environ | {SUPERVISOR: str(os.getpid())}
    worker = subprocess.Popen(command, env=named, start_new_session=True)  # noqa: S603 - Prefect's command line
    while worker.poll() is None and not asked:
        if lost():
            worker.kill()
            worker.wait()
            sys.stderr.write("error[prefect-server-lost]: the local Prefect server ended; the worker ends, too\n")
            return 3
        time.sleep(LOOK_EVERY)
    if worker.poll() is None:
        stop(worker, patience, again=lambda: len(asked) > 1)
    return worker.wait()


def stop(worker: subprocess.Popen[bytes], patience: float, *, again: Callable[[], bool]) -> None:
    """Let the children of a worker end, then the worker; a second signal (``again``) ends the wait."""
    worker.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + patience
    told: set[int] = set()
    while (runs := children(worker.pid)) and time.monotonic() < deadline and not again():
        for run in runs - told:
            with contextlib.suppress(ProcessLookupError):
                os.kill(run, signal.SIGTERM)
        told |= runs
        time.sleep(LOOK_EVERY)
    # In this order: what waits for a process that is held still is delivered when it goes on.
    worker.send_signal(signal.SIGTERM)
    worker.send_signal(signal.SIGCONT)


def children(parent: int) -> set[int]:
    """Return the child processes of ``parent`` that still run, without ended ones not yet reaped.

    Python's multiprocessing tracker is left out: it ends only after its parent.
    """
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, above = (
                    (entry / "stat").read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()[:2]
                )
                if int(above) != parent or b"multiprocessing.resource_tracker" in (entry / "cmdline").read_bytes():
                    continue
            except OSError:
                continue  # it ended meanwhile
            if state != "Z":
                found.add(int(entry.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
