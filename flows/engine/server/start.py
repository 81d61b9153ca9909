"""The embedded Prefect server of a jobs directory, for users who have set up no Prefect API of their own.

``4-product.md`` §6: one server process per jobs directory, on a free loopback port, with SQLite under
``jobs_dir/.prefect``. The first command that needs it starts it, later commands share it, and it ends after the last of
them or a while later (``lingering``, ``child.py``). ``server start`` keeps one until ``server stop``. The server
answers only to clients with the secret of the jobs directory, and clients trust it only after it has proved that it has
the secret, too (``flows/engine/server/proof.py``).

Nothing here imports Prefect: the server starts while the command imports it.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import IO, Self

import msgspec

from flows.engine.api_address import QUIET, ApiAddress
from flows.engine.server.database import MIGRATE, check_database, prepare_database
from flows.engine.server.proof import (
    NAME,
    START_TIMEOUT,
    STARTED,
    Announced,
    announce,
    announced,
    make_secret,
    read_secret,
)
from flows.engine.server.watch import find
from flows.jobs_dir import check_jobs_dir
from flows.output import patience, print_line
from tasks.shared.errors import InputError, NetworkError, StorageError
from tasks.shared.files.out_file import OutFile, open_lock

LINGER = timedelta(minutes=1)
"""Time that a server stays after the last command on a terminal (``4-product.md`` §6)."""

LEASES = "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"
LEASES_IN_FILES = "prefect.server.concurrency.lease_storage.filesystem"

SERVER = QUIET | {
    # Prefect's own order holds events back for 15 minutes after a restart, and those of a schedule's runs.
    "PREFECT_SERVER_EVENTS_CAUSAL_ORDERING": "flows.engine.server.event_order",
    # A relative address: else a server on another port shows a UI that calls port 4200.
    "PREFECT_SERVER_UI_API_URL": "/api",
    # UI v2 calls an analytics host from the browser.
    "PREFECT_SERVER_UI_V2_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    # A job that waits for a person, or whose machine died, is ours to judge (4-product.md §4).
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_ENABLED": "false",
    # A run not started an hour after its time is late; it may still begin.
    "PREFECT_SERVER_SERVICES_LATE_RUNS_AFTER_SECONDS": "3600",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "60",
    # Files below PREFECT_HOME: in memory, a kill -9 would leave the slots of lost runs taken for ever.
    LEASES: LEASES_IN_FILES,
    # Web pages of other origins have no business with this API.
    "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "http://127.0.0.1",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
}
"""Settings of all our servers, including that of ``deployments/``."""

NO_BLOCKS = {
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
    # Prefect must not cache the registration disabled above as done.
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
}
"""Without the catalogue of the UI's page Blocks, a quarter of a first start; no job needs it."""


def lingering(asked: timedelta | None) -> timedelta:
    """Return how long the server stays after this command: ``server_linger``, else ``LINGER`` on a terminal.

    In a pipe, a scheduler or CI, no next command is expected soon.
    """
    if asked is not None:
        return asked
    seen = sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("CI")
    return LINGER if seen else timedelta(0)


class EmbeddedServer:
    """This process's share in the server of one jobs directory.

    ``begin()`` starts the server if none runs and returns at once; ``address()`` waits until it answers;
    ``release()`` gives the share back and, if it was the last one and no user requested ``linger``, waits until
    the server has ended.
    """

    def __init__(self, jobs_dir: Path, *, linger: timedelta = timedelta(0), stay_at: int | None = None) -> None:
        """Prepare a share; ``stay_at`` is the port of a server that stays until ``server stop`` (0: a free one).

        Raises:
            InputError: another user can change the jobs directory (``jobs-dir-unsafe``).
        """
        check_jobs_dir(jobs_dir)
        self.home = jobs_dir.absolute() / ".prefect"
        self._linger = linger.total_seconds()
        self._stay_at = stay_at
        self._share: IO[bytes] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._address: ApiAddress | None = None
        self._telling = ExitStack()

    def running(self) -> ApiAddress | None:
        """Return the server's address if one answers that proves itself; takes no share. Raises as ``find``."""
        return find(self.home)

    def begin(self) -> Self:
        """Take a share, and start the server unless one runs already. Print a message after a second of waiting.

        Raises:
            StorageError: the jobs directory cannot be written, or the database cannot be used.
            NetworkError: a server of this jobs directory lives and does not prove itself.
        """
        self._telling.enter_context(report_wait())
        try:
            with ExitStack() as unless_begun:
                unless_begun.callback(self.release)
                self._begin()
                unless_begun.pop_all()
            if not self.starts:
                self._telling.close()  # it runs already: the time until the first request is not a wait
        except OSError as error:
            raise StorageError(
                "jobs-dir", f"cannot write the jobs directory: {error.strerror}",
                context=str(self.home), hint="check jobs_dir and its permissions",
            ) from None  # fmt: skip
        return self

    def _begin(self) -> None:
        make_home(self.home)
        self._share = open_lock(self.home / "clients.lock")
        with open_lock(self.home / "start.lock") as starting:
            locked(self._share, fcntl.LOCK_SH, f"a server that is ending: {self.home / 'clients.lock'}")
            locked(starting, fcntl.LOCK_EX, f"a command that is starting one: {self.home / 'start.lock'}")
            self._address = find(self.home, wait=False)
            if self._address is None:
                stay, port = self._stay_at is not None, self._stay_at or 0
                self._child, self._address = spawn(self.home, stay=stay, linger=self._linger, port=port)
                return
            said = announced(self.home)
            if said is not None and self._stay_at is not None:
                announce(self.home, msgspec.structs.replace(said, stay=True, linger=0.0, until=None))
            elif said is not None and (self._linger or said.until):
                wanted = max(self._linger, said.linger)
                announce(self.home, msgspec.structs.replace(said, linger=wanted, until=None))

    def announced(self) -> ApiAddress:
        """Return the address of the server, which may not answer yet."""
        if self._address is None:
            raise ValueError("begin() comes first")
        return self._address

    @property
    def starts(self) -> bool:
        """True if this process started the server, which then reports the wait itself."""
        return self._child is not None

    def address(self) -> ApiAddress:
        """Wait until the server answers, and return its address."""
        with self._telling, nullcontext() if self.starts else report_wait():
            wait_until_up(self.announced(), self._child)
        return self.announced()

    def release(self) -> None:
        """Give the share back; if it was the last one and the server does not linger, wait for its end."""
        self._telling.close()
        if self._share is not None:
            self._share.close()
            self._share = None
        if self._child is None or _outlives(announced(self.home)):
            return
        deadline = time.monotonic() + 10
        with patience("waiting for the local Prefect server to end, for 10 s at most"):
            while time.monotonic() < deadline and self._child.poll() is None:
                if time.monotonic() > deadline - 8 and (self.home / NAME).exists():
                    return  # another process still uses it
                time.sleep(0.02)

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(self, *exc: object) -> None:
        self.release()


def make_home(home: Path) -> None:
    """Make the directory of a server (0700)."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)


def _outlives(found: Announced | None) -> bool:
    return found is not None and bool(found.stay or found.linger or found.until)


def report_wait() -> AbstractContextManager[None]:
    """Print that the server is waited for, and how long at most, if it takes more than a moment."""
    return patience(f"waiting for the local Prefect server, {START_TIMEOUT:.0f} s at most")


def locked(handle: IO[bytes], how: int, holder: str) -> None:
    """Take a lock that others hold only briefly; ``holder`` names them and the path of the lock.

    Raises:
        NetworkError: it is held for longer than ``START_TIMEOUT``.
    """
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        try:
            return fcntl.flock(handle, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise NetworkError(
                    "prefect-server-silent", "the local Prefect server is held up by another process",
                    context=holder,
                    hint="is a process of yours suspended (Ctrl-Z)? Resume or end it, then run the command again",
                ) from None  # fmt: skip
        time.sleep(0.05)


def spawn(
    home: Path, *, stay: bool = False, linger: float = 0.0, port: int = 0
) -> tuple[subprocess.Popen[bytes], ApiAddress]:
    """Start a server process in a new session, so that a terminal's Ctrl-C does not reach it.

    It holds neither the terminal nor the pipes of this process. The caller holds ``start.lock`` and has checked that no
    server lives. If a server died without removing its address, another program may listen there and have received the
    secret, so a new secret is made.

    Raises:
        InputError: the port is in use.
        StorageError: the database is of a newer version, or damaged.
    """
    current = prepare_database(home)
    left_behind = home / NAME
    if left_behind.exists():
        print_line(
            "the local Prefect server had ended unexpectedly; another one is started at a new address",
            err=True,
        )
        secret = make_secret(home)
        left_behind.unlink()
    else:
        secret = read_secret(home) or make_secret(home)
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
    address = ApiAddress.local(home, listener.getsockname()[1], secret)
    environment = {key: value for key, value in os.environ.items() if key not in _OURS_ALONE}
    environment |= SERVER | ({} if stay else NO_BLOCKS)
    # A library of Prefect's queue would compile checks of types into itself at each import.
    environment["PY_KEY_VALUE_DISABLE_BEARTYPE"] = "true"
    environment |= {"PREFECT_HOME": str(home), "PREFECT_PROFILES_PATH": str(home / "profiles.toml")}
    if current:  # Prefect would read all its migrations to find that there is nothing to do
        environment[MIGRATE] = "false"
    command = [sys.executable, "-m", "flows.engine.server.child", str(home)]
    with ExitStack() as stack:
        stack.enter_context(listener)
        log = stack.enter_context(stack.enter_context(OutFile(home / "server.log")).opened())
        # Locked before the server starts, so that a live server never appears dead.
        lock = stack.enter_context(open_lock(home / "server.lock"))
        locked(lock, fcntl.LOCK_EX, f"another server: {home / 'server.lock'}")
        if os.fstat(lock.fileno()).st_size:  # not shortened: on a full disk the server could not write it again
            os.pwrite(lock.fileno(), b" " * len(STARTED), 0)
        child = subprocess.Popen(  # noqa: S603 - our own module
            [*command, "--listener", str(listener.fileno()), "--lock", str(lock.fileno())],
            env=environment,
            cwd=str(Path(__file__).parent.parent.parent),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[listener.fileno(), lock.fileno()],
        )
    announce(home, Announced(address.url, child.pid, stay, linger))
    return child, address


_OURS_ALONE = frozenset(
    {"PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING"}
    | {"PREFECT_SERVER_API_BASE_PATH", "PREFECT_UI_SERVE_BASE", "PREFECT_SERVER_UI_SERVE_BASE"}
)
"""Environment variables that a server must not get: those that select an API and its credentials, and those that
move its API to a path that ``RequestGuard`` does not check."""


def wait_until_up(address: ApiAddress, child: subprocess.Popen[bytes] | None) -> None:
    """Wait until a local server has started; ``child`` when this process started it.

    Raises:
        NetworkError: it ended, or did not prove itself in time, or had not started within ``START_TIMEOUT``.
    """
    home = address.home or Path()
    try:
        if find(home) == address:
            return
    except NetworkError:
        if child is None:
            raise
    check_database(home, thoroughly=True)
    raise NetworkError(
        "prefect-server", "the embedded Prefect server did not start",
        context=f"its log: {home / 'server.log'}",
        hint="free some memory or disk, or name a server of your own with PREFECT_API_URL",
    )  # fmt: skip
