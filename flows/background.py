"""``server start | stop | status``: the embedded server, kept in the background until it is stopped."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from pathlib import Path

import click

from flows import server
from tasks.shared.errors import TerminalError


def home_of(config: str | None, jobs_dir: str | None) -> Path:
    """The ``.prefect`` directory of a configuration's jobs directory, of ``jobs_dir``, or of the default one."""
    if config is not None:
        from config import load_config

        return load_config(Path(config)).config.jobs_dir.absolute() / ".prefect"
    return Path(jobs_dir or os.environ.get("APP_JOBS_DIR") or "./jobs").absolute() / ".prefect"


def start(home: Path, port: int) -> int:
    """Start a server that stays. Says so when one runs already."""
    running = server.EmbeddedServer(home.parent).running()
    if running is not None:
        click.echo(f"the server runs already: {running.ui}")
        return 0
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (home / "start.lock").open("a+b") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        child, address = server.spawn(home, stay=True, port=port)
        server.wait_until_up(address, child)
    click.echo(f"Prefect UI: {address.ui}\nAPI: {address.url} (jobs directory {home.parent})")
    return 0


def stop(home: Path) -> int:
    """Stop the server that ``start`` left, unless a command uses it."""
    running = server.EmbeddedServer(home.parent).running()
    if running is None:
        click.echo("no server runs")
        return 0
    with (home / "clients.lock").open("a+b") as clients:
        try:
            fcntl.flock(clients, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TerminalError(
                "server-in-use", "a command is using the server", context=running.ui,
                hint="wait for the running job, or stop it first",
            ) from None  # fmt: skip
        pid = int(json.loads((home / "server.json").read_text())["pid"])
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 15
        while _alive(pid):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                break
            time.sleep(0.05)
    (home / "server.json").unlink(missing_ok=True)
    click.echo("the server is stopped")
    return 0


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return not Path("/proc").exists()


def status(home: Path) -> int:
    """Say where the server answers; exit code 1 when none does."""
    running = server.EmbeddedServer(home.parent).running()
    if running is None:
        click.echo(f"no server runs for {home.parent}")
        return 1
    click.echo(f"Prefect UI: {running.ui}\nAPI: {running.url}")
    return 0
