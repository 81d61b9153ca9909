"""``server start | stop | status``: the embedded server, kept in the background until it is stopped."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from datetime import datetime
from pathlib import Path
from typing import IO

from flows.engine.api import PrefectApi
from flows.engine.api_address import configured_api
from flows.engine.reached import own_server, reach
from flows.engine.server.proof import announced, withdraw
from flows.engine.server.start import LEASES, EmbeddedServer, report_wait
from flows.engine.server.watch import is_alive
from flows.job.lock import is_held
from flows.jobs_dir import check_jobs_dir, load
from flows.output import patience, print_line
from flows.shell import command
from tasks.shared.errors import TerminalError
from tasks.shared.files.out_file import open_lock


def home_of(config: str | None, jobs_dir: str | None) -> Path:
    """Return the ``.prefect`` directory of a configuration's jobs directory, of ``jobs_dir``, or of the default one."""
    if config is not None:
        return load(config).config.jobs_dir.absolute() / ".prefect"
    place = Path(jobs_dir or os.environ.get("APP_JOBS_DIR") or "./jobs").absolute()
    check_jobs_dir(place)
    return place / ".prefect"


def start(home: Path, port: int) -> int:
    """Start a server that stays; a server that a command has started stays from now on."""
    with EmbeddedServer(home.parent, stay_at=port) as kept:
        address = kept.address()
    if kept.starts:
        print_line(f"Prefect UI: {address.link}\nAPI: {address.url} (jobs directory {home.parent})")
    else:
        print_line(f"the server runs already: {address.link}")
    return 0


def stop(home: Path) -> int:
    """Stop the server, unless a command or a run uses it."""
    with report_wait():
        running = EmbeddedServer(home.parent).running()
    if running is None:
        print_line("no server runs")
        return 0
    with PrefectApi(running, told=True) as api:
        busy = [str(run["id"]) for run in api.runs() if run.get("state_type") in {"RUNNING", "CANCELLING"}]
        held = [run for run in busy if is_held(home.parent / run)]
    with open_lock(home / "clients.lock") as clients:
        if not _alone(clients):
            held = held or ["a command"]
        if held:
            raise TerminalError(
                "server-in-use", f"the server is in use by {', '.join(held)}", context=running.ui,
                hint="wait for the running job, or stop it first",
            )  # fmt: skip
        found = announced(home)
        if found is not None:
            _end(home, found.pid)
            withdraw(home, found.pid)
    print_line("the server is stopped")
    return 0


def _alone(clients: IO[bytes]) -> bool:
    """Take the lock of the server's users if there are none. A lingering server holds it briefly."""
    for _ in range(5):
        try:
            fcntl.flock(clients, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


def _end(home: Path, pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 15
    with patience("waiting for the local Prefect server to end, for 15 s at most"):
        while is_alive(home):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                break
            time.sleep(0.05)


def status(home: Path) -> int:
    """Print the link that opens the server's UI; exit code 1 if no server answers.

    If the user has set up the API of another server, that one is checked.
    """
    address = configured_api()
    if address is not None and own_server(home.parent, address.url) is None:
        reach(address)
        print_line(f"Prefect UI: {address.ui}\nAPI: {address.shown}")
        with PrefectApi(address, told=True) as api:
            if (doubt := slots_doubt(api)) is not None:
                print_line(doubt, err=True)
        return 0
    with report_wait():
        running = EmbeddedServer(home.parent).running()
    if running is None:
        print_line(f"no server runs for {home.parent}")
        return 1
    print_line(f"Prefect UI: {running.link}\nAPI: {running.url}")
    found = announced(home)
    if found is not None and found.until is not None:
        until = datetime.fromtimestamp(found.until).astimezone()
        print_line(
            f"it lingers until {until:%H:%M:%S} for the next command (server_linger), then it ends; "
            f"to keep it: {command('server', 'start', '--jobs-dir', str(home.parent))}"
        )
    return 0


def slots_doubt(api: PrefectApi) -> str | None:
    """Return a warning if the server loses the slots of limits when it dies; ``None`` otherwise."""
    hint = "start it with python -m deployments.server, or set it there: docs/deployment.md, What runs at once"
    try:
        settings = api.request("GET", "/admin/settings")
    except TerminalError:
        settings = None
    storage = (((settings or {}).get("server") or {}).get("concurrency") or {}).get("lease_storage")
    if storage is None:
        return f"warning: this server does not report whether it keeps {LEASES}"
    if str(storage).endswith(".memory"):
        return (
            "warning: this server keeps the slots of deployment limits in memory: after a kill -9, the slots of lost "
            f"runs stay taken\n  {LEASES} is {storage}\nhint: {hint}"
        )
    return None
