"""Which Prefect API a command talks to, and the embedded one when the user has none.

The user's own API is taken when ``PREFECT_API_URL``, a Prefect profile or a ``prefect.toml`` names one
(``4-product.md`` §6). Otherwise one server process a jobs directory, on a free loopback port, with SQLite under
``jobs_dir/.prefect``: started by the first command that needs it, shared by those that come while it runs, gone with
the last of them (``flows/server_child.py``). ``server start`` keeps one until ``server stop``.

Nothing here imports Prefect: the server starts while the command imports it.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self
from urllib.parse import urlsplit

import httpx

from tasks.shared.errors import InputError, NetworkError, StorageError, TerminalError

START_TIMEOUT = 120.0
"""Seconds to wait for the server: a cold disk and a fresh database together take up to half a minute."""

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # Where an OpenTelemetry SDK is configured, Prefect's own spans would carry the labels of a run, approvals included.
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
}
"""No telemetry, no outbound connection; a forgotten API address is an error instead of a second server."""

SERVER = QUIET | {
    # A relative address: else a server on another port shows a UI that calls port 4200.
    "PREFECT_SERVER_UI_API_URL": "/api",
    # UI v2 calls an analytics host from the browser.
    "PREFECT_SERVER_UI_V2_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    # A job that waits for a person, or whose machine died, is ours to judge (4-product.md §4).
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
    # Web pages of other origins have no business with this API.
    "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "http://127.0.0.1",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
}


@dataclass(frozen=True)
class ApiAddress:
    """Where a Prefect API is and how to talk to it. ``home`` is set for an embedded server only."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    home: Path | None = None

    @property
    def ui(self) -> str:
        """The address a person opens."""
        return self.url.removesuffix("/").removesuffix("/api")


def configured_api(environ: Mapping[str, str] | None = None) -> ApiAddress | None:
    """The API the user has set up for Prefect, or ``None``."""
    env = os.environ if environ is None else environ
    settings = _profile(env) | {key: value for key, value in env.items() if key.startswith("PREFECT_")}
    url = settings.get("PREFECT_API_URL") or _prefect_toml_url()
    if not url:
        return None
    headers = {}
    if key := settings.get("PREFECT_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    elif auth := settings.get("PREFECT_API_AUTH_STRING"):
        headers["Authorization"] = "Basic " + base64.b64encode(auth.encode()).decode()
    return ApiAddress(url=url.rstrip("/"), headers=headers)


def _profile(env: Mapping[str, str]) -> dict[str, str]:
    try:
        home = Path(env.get("PREFECT_HOME") or Path(env.get("HOME") or "~").expanduser() / ".prefect")
    except RuntimeError:
        return {}  # this user has no home directory, and so no profile
    path = Path(env.get("PREFECT_PROFILES_PATH") or home / "profiles.toml")
    try:
        document = tomllib.loads(path.read_text())
    except OSError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise TerminalError(
            "prefect-profile", f"the Prefect profile file {path} is no TOML",
            hint="mend it, or name another with PREFECT_PROFILES_PATH",
        ) from None  # fmt: skip
    name = env.get("PREFECT_PROFILE") or document.get("active", "")
    profile = document.get("profiles", {}).get(name, {})
    return {key: str(value) for key, value in profile.items()}


def _prefect_toml_url() -> str | None:
    try:
        document = tomllib.loads(Path("prefect.toml").read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return None
    url = document.get("api", {}).get("url")
    return str(url) if url else None


class EmbeddedServer:
    """This process's share in the server of one jobs directory.

    ``begin()`` starts the server if none runs and returns at once; ``address()`` waits until it answers;
    ``release()`` gives the share back and, if it was the last one, waits until the server is gone.
    """

    def __init__(self, jobs_dir: Path) -> None:
        self.home = jobs_dir.absolute() / ".prefect"
        self._share: IO[bytes] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._address: ApiAddress | None = None

    def running(self) -> ApiAddress | None:
        """The server's address if it answers now; takes no share."""
        address = self._announced()
        return address if address is not None and _answers(address) else None

    def begin(self) -> Self:
        """Take a share, and start the server unless one runs already.

        Raises:
            StorageError: the jobs directory cannot be written.
        """
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._share = _open_private(self.home / "clients.lock")
            starting = _open_private(self.home / "start.lock")
        except OSError as error:
            raise StorageError(
                "jobs-dir", f"cannot write the jobs directory: {error.strerror}",
                context=str(self.home), hint="check jobs_dir and its permissions",
            ) from None  # fmt: skip
        with starting:
            # Waits for a server that is just ending; then for whoever is just starting one.
            fcntl.flock(self._share, fcntl.LOCK_SH)
            fcntl.flock(starting, fcntl.LOCK_EX)
            self._address = self._announced()
            if self._address is None:
                self._child, self._address = spawn(self.home)
        return self

    def announced(self) -> ApiAddress:
        """Where the server is or will be; it may not answer yet."""
        if self._address is None:
            raise ValueError("begin() comes first")
        return self._address

    def address(self) -> ApiAddress:
        """Wait until the server answers, and say where."""
        wait_until_up(self.announced(), self._child)
        return self.announced()

    def _announced(self) -> ApiAddress | None:
        """The address in ``server.json``, if somebody listens there; it may still be starting."""
        try:
            state = json.loads((self.home / "server.json").read_text())
            address = ApiAddress(url=str(state["url"]), home=self.home)
        except (OSError, ValueError, KeyError):
            return None
        return address if _listens(address) else None

    def release(self) -> None:
        """Give the share back; when nobody else has one, wait for the server's end."""
        if self._share is not None:
            self._share.close()
            self._share = None
        if self._child is None:
            return
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and self._child.poll() is None:
            if (self.home / "server.json").exists() and time.monotonic() > deadline - 8 and self.running():
                return  # somebody else still uses it
            time.sleep(0.02)

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(self, *exc: object) -> None:
        self.release()


def _open_private(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")


def spawn(home: Path, *, stay: bool = False, port: int = 0) -> tuple[subprocess.Popen[bytes], ApiAddress]:
    """Start a server process in a session of its own, so that a terminal's Ctrl-C does not reach it.

    Raises:
        InputError: the port is in use.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise InputError(
            "port-in-use", f"port {port} on 127.0.0.1 is in use", hint="name another with --port, or --port 0"
        ) from None
    address = ApiAddress(url=f"http://127.0.0.1:{listener.getsockname()[1]}/api", home=home)
    (home / "server.json").unlink(missing_ok=True)
    environment = {key: value for key, value in os.environ.items() if key != "PREFECT_API_URL"}
    environment |= SERVER | {"PREFECT_HOME": str(home), "PREFECT_PROFILES_PATH": str(home / "profiles.toml")}
    command = [sys.executable, "-m", "flows.server_child", str(home), "--listener", str(listener.fileno())]
    log = os.open(home / "server.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        child = subprocess.Popen(  # noqa: S603 - our own module
            command,
            env=environment,
            cwd=str(Path(__file__).parent.parent),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[listener.fileno()],
        )
    finally:
        os.close(log)
        listener.close()
    announce(home, address.url, child.pid, stay=stay)
    return child, address


def announce(home: Path, url: str, pid: int, *, stay: bool) -> None:
    """Write ``server.json`` by rename, readable by this user only. The server removes it when it ends."""
    part = home / f"server.json.{os.getpid()}.part"
    with _open_private(part) as file:
        file.write(json.dumps({"url": url, "pid": pid, "stay": stay}).encode())
    part.replace(home / "server.json")


def wait_until_up(address: ApiAddress, child: subprocess.Popen[bytes] | None) -> None:
    """Wait for a first answer; ``child`` when this process started the server.

    Raises:
        NetworkError: the server ended or did not answer within ``START_TIMEOUT``; names its log.
    """
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if _answers(address):
            return
        if (child is not None and child.poll() is not None) or not _listens(address):
            break
        time.sleep(0.05)
    raise NetworkError(
        "prefect-server", "the embedded Prefect server did not start",
        context=f"its log: {(address.home or Path()) / 'server.log'}",
        hint="free some memory or disk, or name a server of your own with PREFECT_API_URL",
    )  # fmt: skip


def _listens(address: ApiAddress) -> bool:
    """Whether the server's socket is open. It is bound before the server starts, and goes with its process."""
    parts = urlsplit(address.url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), timeout=5).close()
    except OSError:
        return False
    return True


def _answers(address: ApiAddress) -> bool:
    try:
        return httpx.get(f"{address.url}/health", timeout=START_TIMEOUT, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def use(address: ApiAddress, jobs_dir: Path) -> None:
    """Point this process's Prefect, not imported yet, at ``address``; keep it quiet on the terminal."""
    settings: dict[str, Any] = {
        "PREFECT_API_URL": address.url,
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(jobs_dir.absolute()),
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        # Our own log lines appear beside Prefect's in the UI; those of threads without a run stay in job.log.
        "PREFECT_LOGGING_EXTRA_LOGGERS": "sluice",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
        **QUIET,
    }
    if address.home is not None:
        settings |= {
            "PREFECT_HOME": str(address.home),
            "PREFECT_PROFILES_PATH": str(address.home / "profiles.toml"),
        }
    os.environ.update({key: str(value) for key, value in settings.items()})
