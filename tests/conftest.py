"""Shared test set-up: one Prefect server a run, commands in this process or as real ones."""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import certifi
import httpx
import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from flows.prefect.address import ApiAddress
    from tests.peers.project import Fhir

# A busy machine is no failure. Every run draws the same examples: one that fails now would have failed before, too.
# A few do between two thoughts; .ci/run draws them all. Others come with --hypothesis-profile=explore, which is for
# looking for them.
for profile, drawn in {"quick": 25, "suite": 100, "explore": 1000}.items():
    settings.register_profile(
        profile, deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=drawn,
        derandomize=profile != "explore",
    )  # fmt: skip
settings.load_profile("quick")


def examples(count: int) -> int:
    """Return the number of examples of a property in this profile that has ``count`` in a profile with 100."""
    return max(10, count * settings().max_examples // 100)


# Before anything imports Prefect: nothing of the user's settings, nothing of the user's home.
for name in [key for key in os.environ if key.startswith(("PREFECT_", "APP_"))]:
    del os.environ[name]
for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"):
    os.environ.pop(name, None)
# A shell that runs the tests in its background has SIGINT ignored, and so would every process that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
_SCRATCH = Path(tempfile.mkdtemp(prefix="sluice-tests-"))
os.environ["PREFECT_HOME"] = str(_SCRATCH / "prefect")
os.environ["PREFECT_SERVER_EPHEMERAL_ENABLED"] = "false"
os.environ["DO_NOT_TRACK"] = "1"
# Prefect sets its log lines up when it is imported, and never takes back what it did: as commands ask for it.
LOGGING = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "sluice",
}
os.environ.update(LOGGING)
# Nobody here is vouched for by a public authority: with one of them a client costs 2 ms, with all of them 20 to 50.
_END = "-----END CERTIFICATE-----\n"
_AUTHORITY = _SCRATCH / "authority.pem"
_AUTHORITY.write_text(Path(certifi.where()).read_text().partition(_END)[0] + _END)
certifi.where = lambda: str(_AUTHORITY)
os.environ["SSL_CERT_FILE"] = str(_AUTHORITY)

from tasks.shared.blanked import forget  # noqa: E402 - after the environment is as it is to be

ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", action="store_true", help="run every command as a process of its own")


PROCESSES = {"sluice_process", "sluice_alone"}
"""Fixtures that say of a test that it needs processes of its own."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Workers of a whole run import the test modules beforehand, each beginning elsewhere.

    In an empty clone each would rewrite the assertions of all of them; so it reads what another one has written.
    """
    config = session.config
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args != config.getini("testpaths"):
        return
    modules = [path.relative_to(ROOT) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    begin = len(modules) * int(str(worker["workerid"])[2:]) // int(worker["workercount"])
    for path in modules[begin:] + modules[:begin]:
        with suppress(Exception, pytest.skip.Exception, pytest.fail.Exception):  # the collection says what is wrong
            importlib.import_module(".".join(path.with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if PROCESSES & set(getattr(item, "fixturenames", ())):
            item.add_marker("e2e")
    items.sort(key=lambda item: not _takes_minutes(item))  # else one of them runs alone at the end


def _takes_minutes(item: pytest.Item) -> bool:
    limit = item.get_closest_marker("timeout")
    return limit is not None and int(limit.args[0]) >= 600


def pytest_collection_finish() -> None:
    # Seven thousand tests are many objects, all of which stay: else every full collection looks at them again, in the
    # time of whichever test it falls into.
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    shutil.rmtree(_SCRATCH, ignore_errors=True)


@dataclass
class Ran:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def job(self) -> str:
        """The job id it printed."""
        for line in (self.out + "\n" + self.err).splitlines():
            if line.startswith("job ") and len(line.split()) == 2:
                return line.split()[1]
        raise AssertionError(f"no job id in:\n{self.out}\n{self.err}")


def without_waiting(err: str) -> str:
    """Return a command's stderr without the lines about waiting, which appear on a busy machine."""
    return "".join(line for line in err.splitlines(keepends=True) if not line.startswith("waiting for "))


class Commands:
    """Runs ``python -m flows.run`` as a user would, each a process of its own; or calls in this process."""

    def __init__(self, cwd: Path, api: str | None, *, in_process: bool = False) -> None:
        self.cwd = cwd
        self.in_process = in_process
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith("COV_") and key not in LOGGING
        }
        self.environment |= {"PREFECT_HOME": str(cwd / "prefect-home"), "PYTHONPATH": str(ROOT)}
        if api:
            self.environment["PREFECT_API_URL"] = api
        else:
            self.environment.pop("PREFECT_API_AUTH_STRING", None)
        self._children: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a command and leave it running: a process, always."""
        child = subprocess.Popen(
            [sys.executable, "-m", "flows.run", *map(str, arguments)],
            cwd=self.cwd,
            env=self.environment | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._children.append(child)
        return child

    def __call__(self, *arguments: str | Path, env: dict[str, str] | None = None, timeout: float = 120) -> Ran:
        """Run a command to its end. A call in this process has no time limit but the test's."""
        if self.in_process:
            assert not any(name.startswith("PYTHON") for name in env or ()), "only an interpreter that starts reads it"
            return self.here(*arguments, env=env)
        child = self.start(*arguments, env=env)
        out, err = child.communicate(timeout=timeout)
        return Ran(child.returncode, out, err)

    def status(self, job: str, config: str | Path = "config.yaml", *, env: dict[str, str] | None = None) -> Any:
        """Return the output of ``pipeline status --json`` for a job.

        Beside a server that runs it is no process: tests that wait for a state ask again and again.
        """
        shared = env is None and "PREFECT_API_URL" in self.environment and self.environment["PYTHONPATH"] == str(ROOT)
        ran = (self.here if shared else self)("pipeline", "status", config, job, "--json", env=env)
        assert ran.code == 0, ran.err
        return json.loads(ran.out)

    def here(self, *arguments: str | Path, env: dict[str, str] | None = None) -> Ran:
        """Run a command in this process: one that is not what a test of processes is about costs a second less."""
        from tests import in_process

        environment = self.environment | (env or {})
        return Ran(*in_process.run(list(map(str, arguments)), cwd=self.cwd, environment=environment))

    def close(self) -> None:
        """End what still runs."""
        for child in self._children:
            if child.poll() is None:
                child.kill()
            child.communicate()


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[str]:
    """Yield the address of a Prefect server that all workers of this run share; its password is in the environment.

    It ends when the whole run has ended, however that was. Tests see the records of each other's jobs in it.
    """
    import flows.pipeline  # noqa: F401 - what a worker imports once is no test's time
    from flows.prefect import server

    alone = worker_id == "master"
    base = tmp_path_factory.getbasetemp()
    jobs_dir = (base if alone else base.parent) / "prefect-shared"
    with (base.parent / "prefect-shared.lock").open("a") as lock:  # one worker starts it
        fcntl.flock(lock, fcntl.LOCK_EX)
        first = not jobs_dir.exists()
        if first:
            not_on_4200(jobs_dir)
        address = server.start(jobs_dir)
    found = server.known(server.home_of(jobs_dir))
    if first and found:
        run = os.getpid() if alone else os.getppid()
        watch = f"while kill -0 {run}; do sleep 1; done; kill {found.pid}"
        subprocess.Popen(["sh", "-c", watch], start_new_session=True, stderr=subprocess.DEVNULL).returncode = 0
    os.environ["PREFECT_API_AUTH_STRING"] = str(address.password)
    yield address.url
    del os.environ["PREFECT_API_AUTH_STRING"]


def not_on_4200(jobs_dir: Path) -> None:
    """Let the server of a jobs directory start on a port of its own: others test on this machine, too."""
    home = jobs_dir / ".prefect"
    home.mkdir(mode=0o700, parents=True)
    last = {"port": free_ports(), "pid": 0, "started": "", "version": ""}
    (home / "server.json").write_text(json.dumps(last))


def address_of(url: str) -> ApiAddress:
    """Return the shared server, or a bridge in front of it, as this process may use it."""
    from flows.prefect.address import configured_api

    found = configured_api({"PREFECT_API_URL": url, "PREFECT_API_AUTH_STRING": os.environ["PREFECT_API_AUTH_STRING"]})
    assert found is not None
    return found


def own_name(directory: Path) -> str:
    """Return a name that no other test of this run has, for what a test leaves with the shared server."""
    return f"{directory.name}-{os.environ.get('PYTEST_XDIST_WORKER', 'gw0')}"


@pytest.fixture(autouse=True)
def no_secrets_of_another_test() -> Iterator[None]:
    """Forget the secrets that a test sent, which would be blanked in the answers of the next test."""
    yield
    forget()


def is_apart(request: pytest.FixtureRequest) -> bool:
    """Return whether a test's commands are processes: marked ``e2e``, or with ``--processes``."""
    marks = {mark.name for mark in request.node.iter_markers()}
    return bool(request.config.getoption("--processes") or "e2e" in marks)


@pytest.fixture
def sluice(tmp_path: Path, prefect_api: str, request: pytest.FixtureRequest) -> Iterator[Commands]:
    """Commands against the shared Prefect server in an empty working directory, in this process unless ``is_apart``."""
    commands = Commands(tmp_path, prefect_api, in_process=not is_apart(request))
    yield commands
    commands.close()


@pytest.fixture
def sluice_process(tmp_path: Path, prefect_api: str) -> Iterator[Commands]:
    """Commands as processes, for tests of encodings, signals, exits and parallel processes."""
    commands = Commands(tmp_path, prefect_api)
    yield commands
    commands.close()


@pytest.fixture
def sluice_alone(tmp_path: Path) -> Iterator[Commands]:
    """Commands with a local server of their own under ``jobs/`` of an empty working directory."""
    from flows.prefect import server

    not_on_4200(tmp_path / "jobs")
    commands = Commands(tmp_path, None)
    yield commands
    commands.close()
    server.stop(tmp_path / "jobs/.prefect")


@pytest.fixture
def fhir(tmp_path: Path) -> Iterator[Fhir]:
    """Yield a sandbox FHIR server."""
    from deployments.sandbox.fhir.app import fhir_service
    from deployments.sandbox.serve import serve_in_thread
    from tests.peers.project import Fhir

    with serve_in_thread(fhir_service(state=tmp_path / "fhir-state")) as served:
        yield Fhir(served.url)


@pytest.fixture
def project(tmp_path: Path, fhir: Fhir) -> Path:
    """Write a configuration for local_import → wait → send in the working directory, and its input in ``data/``.

    Without release reports: its patients have names, which a release would need a reason for.
    """
    from tests.peers.project import write_input

    write_input(tmp_path / "data")
    (tmp_path / "config.yaml").write_text(
        f"""
services:
  local_import: {{dir: data}}
  send: {{send_as: direct_resource_load, url: "{fhir.url}"}}
pipeline: {{enabled_steps: [local_import, wait, send]}}
retry: {{max_attempts: 2, initial_backoff_ms: 10, max_backoff_ms: 20}}
jobs_dir: jobs
report: {{enabled: false}}
"""
    )
    return tmp_path


def ask_prefect(method: str, url: str, body: object = None) -> Any:
    """Call Prefect's API as a browser does. 503 means that its database is busy: the call is repeated.

    A machine that other people use, too, may stand still for a minute: that is no failure of what is tested.
    """
    auth = os.environ["PREFECT_API_AUTH_STRING"]
    for _ in range(60):
        answer = httpx.request(
            method, url, json=body, trust_env=False, timeout=150, auth=tuple(auth.split(":", 1))
        )  # fmt: skip
        if answer.status_code != 503:
            break
        time.sleep(0.5)
    answer.raise_for_status()
    return answer.json() if answer.content else None


def started(child: subprocess.Popen[str]) -> str:
    """Return the job id that a command has printed."""
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line.startswith("job "), line
    return line.split()[1]


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait for something that another process does; it may meet a Prefect server that stands still (docs/sizes.md)."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen in time")
        time.sleep(0.02)


def free_ports(count: int = 1) -> int:
    """Return the first of so many free ports in a row, for programs that cannot choose one themselves.

    They lie below the ports that systems give out by themselves, and each worker process of the tests has its own:
    nobody takes one between this look and the program that is told to listen there.
    """
    share = 10_000 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    start = 20_000 + share * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for first in random.Random().sample(range(start, start + share - count), share - count):
        with ExitStack() as bound:
            try:
                for port in range(first, first + count):
                    bound.enter_context(closing(socket.create_server(("127.0.0.1", port))))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")


def kill(pid: int) -> None:
    """``kill -9``."""
    os.kill(pid, signal.SIGKILL)
