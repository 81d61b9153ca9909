"""The local Prefect server of a jobs directory, for users who have set up no Prefect API of their own.

It is a plain ``prefect server start`` on 127.0.0.1, in a session of its own, and runs until ``server stop``. All its
files are in ``HOME``, which is ``jobs_dir/.prefect``: ``server.json`` names the process, ``api-secret`` (0600) has the
password, ``server.log`` its output. It is started under a lock, so two commands never start two servers on a database.
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
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import httpx
import msgspec

from flows.jobs_dir import check_jobs_dir
from flows.output import patience
from flows.prefect.address import QUIET, ApiAddress, configured_api, reach
from flows.shell import about
from tasks.shared.errors import InputError, NetworkError, StorageError, TerminalError

START_SECONDS = 120.0
"""The longest start: on a busy machine a new database takes half a minute."""

ANSWER_SECONDS = 10.0
STOP_SECONDS = 15.0
PORT = 4200

SETTINGS = QUIET | {
    "PREFECT_SERVER_UI_API_URL": "/api",  # a page on another port than 4200 would call port 4200
    "PREFECT_SERVER_UI_V2_ENABLED": "false",  # its pages call an analytics host
    # Few large writes of task runs: else a write of labels often meets a locked database (SQLite).
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
}


class Known(msgspec.Struct, frozen=True):
    """The content of ``server.json``. ``started`` tells the process from a later one with the same id."""

    url: str
    pid: int
    started: str
    version: str

    @property
    def port(self) -> int:
        """The server's port."""
        return httpx.URL(self.url).port or PORT

    def lives(self) -> bool:
        """Return whether the process exists, whether it answers or not."""
        return _start_time(self.pid) == self.started


def home_of(jobs_dir: Path) -> Path:
    """Return the directory of a jobs directory's server. Raises ``InputError`` if others can change the directory."""
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
        TerminalError: it is of another version of Prefect.
    """
    server = known(home)
    if server is None or not server.lives():
        return None
    address = ApiAddress.local(home, server.port, _password(home))
    try:
        with address.client(ANSWER_SECONDS) as client:
            answers = client.get("/admin/version").status_code == 200
    except httpx.HTTPError:
        return None
    if answers and server.version != version("prefect"):
        raise TerminalError(
            "server-version", f"the local Prefect server has version {server.version}, not {version('prefect')}",
            context=address.ui,
            hint=f"stop it, so that another is started: {about('server stop')}",
        )  # fmt: skip
    return address if answers else None


def begin(jobs_dir: Path, port: int | None = None) -> tuple[ApiAddress, bool]:
    """Start the server unless its process lives. Return its address, and whether it was started; it may not answer yet.

    The port is ``port`` (0: a free one), else the last one, so that a running job finds it again, else 4200 or a free
    one.

    Raises:
        InputError: the port is in use.
        StorageError: the jobs directory cannot be written.
    """
    home = home_of(jobs_dir)
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(home):
            last = known(home)
            starts = last is None or not last.lives()
            server = _spawn(home, _port(port, last)) if last is None or starts else last
            return ApiAddress.local(home, server.port, _password(home)), starts
    except OSError as error:
        raise StorageError(
            "jobs-dir", f"cannot write the jobs directory: {error.strerror}",
            context=str(home), hint="check jobs_dir and its permissions",
        ) from None  # fmt: skip


def wait(home: Path) -> None:
    """Wait until the server answers.

    Raises:
        NetworkError: it ended, or does not answer within ``START_SECONDS``.
        TerminalError: it is of another version of Prefect.
    """
    deadline = time.monotonic() + START_SECONDS
    while find(home) is None:
        server = known(home)
        if server is None or not server.lives() or time.monotonic() > deadline:
            raise NetworkError(
                "prefect-server", "the local Prefect server did not start", context=f"its log: {home / 'server.log'}",
                hint="free some memory or disk, or name a server of your own with PREFECT_API_URL",
            )  # fmt: skip
        time.sleep(0.1)


def waiting(home: Path) -> str:
    """Return what a person is told while the server starts."""
    first = " (first start: up to half a minute)" if not (home / "prefect.db").exists() else ""
    return f"starting Prefect{first}"


def start(jobs_dir: Path, port: int | None = None) -> tuple[ApiAddress, bool]:
    """Start the server unless it runs, and wait until it answers. Return and raise as ``begin`` and ``wait``."""
    with patience(waiting(jobs_dir.absolute() / ".prefect")):
        address, starts = begin(jobs_dir, port)
        wait(jobs_dir.absolute() / ".prefect")
    return address, starts


def stop(home: Path) -> bool:
    """End the server; return whether one ran."""
    server = known(home)
    if server is None or not server.lives():
        return False
    with _locked(home):
        os.kill(server.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        with patience("stopping the local Prefect server"):
            while server.lives():
                if time.monotonic() > deadline:
                    os.kill(server.pid, signal.SIGKILL)
                time.sleep(0.05)
    return True


@contextmanager
def only_here(jobs_dir: Path) -> Iterator[ApiAddress]:
    """Run a server for a while, for the demo."""
    address, _ = begin(jobs_dir, port=0)
    try:
        yield address
    finally:
        stop(home_of(jobs_dir))


def chosen_api(jobs_dir: Path) -> ApiAddress:
    """Return the API that the user has set up, else that of the local server; it answers. Raises as ``start``."""
    configured = configured_api()
    if configured is None:
        return find(home_of(jobs_dir)) or start(jobs_dir)[0]
    reach(configured)
    return configured


def _spawn(home: Path, port: int) -> Known:
    password = _password(home) or f"sluice:{secrets.token_urlsafe(32)}"
    _write(home / "api-secret", password.encode())
    ours = {"PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH"}
    environment = {name: value for name, value in os.environ.items() if name not in ours} | SETTINGS
    environment |= {"PREFECT_HOME": str(home), "PREFECT_API_AUTH_STRING": password}
    environment |= {"PREFECT_SERVER_API_AUTH_STRING": password}
    arguments = ["server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with open(home / "server.log", "wb", opener=_private) as log:
        child = subprocess.Popen(  # noqa: S603 - Prefect's own command
            [sys.executable, "-m", "prefect", *arguments], env=environment, cwd=home, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True, umask=0o077,
        )  # fmt: skip
    child.returncode = 0  # nobody waits for it, because it outlives this process
    server = Known(f"http://127.0.0.1:{port}/api", child.pid, _start_time(child.pid) or "", version("prefect"))
    _write(home / "server.json", msgspec.json.encode(server))
    return server


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    with open(home / "start.lock", "ab", opener=_private) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(path.name + ".part")
    with open(part, "wb", opener=_private) as file:
        file.write(content)
    part.replace(path)


def _password(home: Path) -> str:
    try:
        return (home / "api-secret").read_text().strip()
    except FileNotFoundError:
        return ""


def _port(wanted: int | None, last: Known | None) -> int:
    """Return a free port: the wanted one; without a wish the last one, 4200, or any."""
    for port in [last.port if last else PORT, PORT, 0] if wanted is None else [wanted]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise InputError("port-in-use", f"port {wanted} on 127.0.0.1 is in use", hint="stop what uses it")


def _start_time(pid: int) -> str | None:
    """Return when a process started, in the kernel's own words; ``None`` if it does not exist or is a zombie."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state == "Z" else fields[18]
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return None
    shown = subprocess.run(["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S603, S607 - fixed
    state, _, started = shown.stdout.strip().partition(" ")
    return started.strip() or None if not state.startswith("Z") else None
