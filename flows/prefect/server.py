"""The local Prefect server of a jobs directory, for users who have set up no Prefect API of their own.

It is a plain ``prefect server start`` on 127.0.0.1, in a session of its own, and runs until ``server stop``. All its
files are in ``jobs_dir/.prefect``, its home: ``server.json`` names the process, ``api-secret`` (0600) has the password,
``server.log`` has the output. A lock keeps two commands from starting two servers on one database.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import httpx
import msgspec

from flows.jobs_dir import check_jobs_dir
from flows.output import patience
from flows.prefect.address import QUIET, ApiAddress, basic, configured_api
from flows.prefect.api import reach
from flows.shell import for_server
from tasks.shared.errors import NetworkError, TerminalError, storage_errors
from tasks.shared.files.part_file import write_whole

START_SECONDS = 120.0
"""Seconds to wait for a start. On a busy machine, a new database takes half a minute."""

ANSWER_SECONDS = 10.0
STOP_SECONDS = 15.0
PORT = 4200

SETTINGS = QUIET | {
    "PREFECT_SERVER_UI_API_URL": "/api",  # else pages of a server on another port call port 4200
    "PREFECT_SERVER_UI_V2_ENABLED": "false",  # the pages of the new UI call an analytics host
    # Write task runs in few large batches: else a write of labels often finds the database locked (SQLite).
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
}


class Known(msgspec.Struct, frozen=True):
    """The content of ``server.json``. A later process with the same ``pid`` has another ``started``."""

    port: int
    pid: int
    started: str
    version: str

    def lives(self) -> bool:
        """Return whether the process exists. It may not answer yet."""
        return _start_time(self.pid) == self.started


def home_of(jobs_dir: Path) -> Path:
    """Return the server's home in a jobs directory. Raises ``InputError`` if other users can write to the latter."""
    check_jobs_dir(jobs_dir)
    return jobs_dir.absolute() / ".prefect"


def known(home: Path) -> Known | None:
    """Return the server that was started last, or ``None``."""
    try:
        return msgspec.json.decode((home / "server.json").read_bytes(), type=Known)
    except (OSError, msgspec.DecodeError):
        return None


def find(home: Path) -> ApiAddress | None:
    """Return the address of the jobs directory's server if it answers a request with our password.

    Raises:
        TerminalError: the server has another version of Prefect.
    """
    server = known(home)
    if server is None or not server.lives():
        return None
    address = _address(home, server)
    try:
        with address.client() as client:
            answers = client.get("/admin/version", timeout=ANSWER_SECONDS).status_code == 200
    except httpx.HTTPError:
        return None
    if answers and server.version != version("prefect"):
        raise TerminalError(
            "server-version", f"the local Prefect server has version {server.version}, not {version('prefect')}",
            context=address.ui, hint=f"stop it, so that another is started: {for_server('stop', home.parent)}",
        )  # fmt: skip
    return address if answers else None


def begin(home: Path) -> None:
    """Start the server unless its process exists. Does not wait for it (``wait``). Raises ``StorageError``."""
    with storage_errors(home):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (home / "start.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            last = known(home)
            if last is None or not last.lives():
                _spawn(home, _port(last))


def wait(home: Path) -> ApiAddress:
    """Wait until the server answers. If another program took its port meanwhile, start it again.

    Raises:
        NetworkError: the server ended, or does not answer within ``START_SECONDS``.
        TerminalError: the server has another version of Prefect.
    """
    deadline = time.monotonic() + START_SECONDS
    while (address := find(home)) is None:
        server = known(home)
        lives = server is not None and server.lives()
        if server is None or time.monotonic() > deadline or not (lives or _free(server.port) is None):
            hint = "free some memory or disk, or name a server of your own with PREFECT_API_URL"
            raise NetworkError(
                "prefect-server", f"the local Prefect server {'does not answer' if lives else 'did not start'}",
                context=f"its log: {home / 'server.log'}",
                hint=f"stop it, then try again: {for_server('stop', home.parent)}" if lives else hint,
            )  # fmt: skip
        if not lives:
            begin(home)
        time.sleep(0.1)
    return address


def start(jobs_dir: Path) -> ApiAddress:
    """Start the server unless it runs, and wait until it answers. Raises as ``begin`` and ``wait``."""
    home = home_of(jobs_dir)
    first = " (first start: up to half a minute)" if not (home / "prefect.db").exists() else ""
    with patience(f"starting Prefect{first}"):
        begin(home)
        return wait(home)


def stop(home: Path) -> bool:
    """End the server; return whether one ran."""
    server = known(home)
    if server is None or not server.lives():
        return False
    os.kill(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    with patience("stopping the local Prefect server"):
        while server.lives():
            if time.monotonic() > deadline:
                os.kill(server.pid, signal.SIGKILL)
            time.sleep(0.05)
    return True


def chosen_api(jobs_dir: Path) -> ApiAddress:
    """Check and return the API that the user has set up, else the local server's. Raises as ``reach`` and ``start``."""
    configured, home = configured_api(), home_of(jobs_dir)
    if configured is None:
        return find(home) or start(jobs_dir)
    reach(configured)
    return configured


def _spawn(home: Path, port: int) -> None:
    password = _password(home) or f"sluice:{secrets.token_urlsafe(32)}"
    write_whole(home / "api-secret", password.encode())
    ours = {"PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH"}
    environment = {name: value for name, value in os.environ.items() if name not in ours} | SETTINGS
    environment |= {"PREFECT_HOME": str(home), "PREFECT_API_AUTH_STRING": password}
    environment |= {"PREFECT_SERVER_API_AUTH_STRING": password}
    arguments = ["server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (home / "server.log").open("wb") as log:
        child = subprocess.Popen(  # noqa: S603 - Prefect's own command
            [sys.executable, "-m", "prefect", *arguments], env=environment, cwd=home, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True, umask=0o077,
        )  # fmt: skip
    child.returncode = 0  # else Python warns that the child still runs: it outlives this process
    server = Known(port, child.pid, _start_time(child.pid) or "", version("prefect"))
    write_whole(home / "server.json", msgspec.json.encode(server))


def _address(home: Path, server: Known) -> ApiAddress:
    password = _password(home)
    url = f"http://127.0.0.1:{server.port}/api"
    return ApiAddress(url, {"Authorization": basic(password)}, home, password)


def _password(home: Path) -> str:
    try:
        return (home / "api-secret").read_text().strip()
    except FileNotFoundError:
        return ""


def _port(last: Known | None) -> int:
    """Return the last server's port, so that a running job finds the server again; if in use, 4200 or any free one."""
    wanted = last.port if last else PORT
    return next((free for port in (wanted, PORT, 0) if (free := _free(port))), PORT)


def _free(port: int) -> int | None:
    """Return ``port`` if nothing listens on it, a free port for 0, else ``None``."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return None
        return int(probe.getsockname()[1])


def _start_time(pid: int) -> str | None:
    """Return when a process started, in clock ticks since boot; ``None`` if it does not exist or is a zombie."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else fields[18]
