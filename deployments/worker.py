"""A Prefect worker whose runs end cleanly when it is stopped: ``python -m deployments.worker --pool sluice --limit 2``.

Options are those of ``prefect worker start``, of a process worker. That one kills its runs (SIGKILL) within a second of
its own SIGTERM or SIGINT, so that they would be ``interrupted``. Here it is held still first, so that it takes up
nothing new, and its runs get the signal: each ends between two files and records that it is ``stopped``
(``4-product.md`` §4, "Stop": within 10 seconds). Then the worker goes. Whoever starts this must signal it alone, not
its children: ``KillMode=mixed`` in systemd, and in a container it is so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from flows.engine.api_address import configured_api, not_proxied
from flows.engine.reached import own_server
from flows.engine.server import is_alive

PATIENCE = 15.0
"""Seconds that the runs have; those that still run then are killed with the worker, and can be continued."""

LOOK_EVERY = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Work until a signal; the exit code of the worker."""
    options = sys.argv[1:] if argv is None else argv
    address = configured_api()
    home = None
    if address is not None:
        not_proxied(address, os.environ)
        home = own_server(Path(os.environ.get("APP_JOBS_DIR") or "./jobs"), address.url)
    command = [sys.executable, "-m", "prefect", "worker", "start", "--type", "process", *options]
    return supervise(command, lost=lambda: home is not None and not is_alive(home))


def supervise(command: Sequence[str], *, patience: float = PATIENCE, lost: Callable[[], bool] = lambda: False) -> int:
    """Run a worker until it ends; at the first SIGTERM or SIGINT let its children end first.

    When its local server is ``lost``, it ends with 3: whoever takes that server's place is sent nothing.
    """
    asked: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        asked.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, remember)
    # A session of its own: Ctrl-C on a terminal reaches this process alone.
    worker = subprocess.Popen(command, start_new_session=True)  # noqa: S603 - Prefect's command line
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
    """Let the children of a worker end, then the worker; a second signal (``again``) waits no longer."""
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
    """The child processes of ``parent`` that still do something; those that ended wait for it to notice."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, above = (
                    (entry / "stat").read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()[:2]
                )
            except OSError:
                continue  # it ended meanwhile
            if int(above) == parent and state != "Z":
                found.add(int(entry.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
