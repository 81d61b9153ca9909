"""A shared Prefect server that goes away under a running job, and comes back, or not in time (4-product.md §6)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from flows.engine.api import PrefectApi
from flows.engine.api_address import QUIET
from flows.engine.flow_runs import run_deployment
from flows.job.running.proof import LeaseTimes
from tests.conftest import Commands, address_of, seed, wait_until
from tests.e2e.machines import deployment, other_machine, starting_with, this_machine, times_of
from tests.e2e.test_nightly import working
from tests.peers.bridge import Bridge
from tests.peers.project import Fhir, many_transactions

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TRANSACTIONS = 10 + 10 + 10 + 1
"""30 resources a file, 3 a transaction, and the one of ``core.ndjson``."""
TIMES = LeaseTimes(lease=6.0, renew=1.5, retry=0.5, beat=0.5, give_up=4.0, sure=2.0, call=1.0, look=0.5, gap=3.0)
"""A tenth of the real ones."""
PATIENCE = 2.0
IMPATIENT = f"""
import flows.engine.api, flows.job.running.lease
flows.engine.api.PATIENCE = flows.job.running.lease.PATIENCE = {PATIENCE}
flows.engine.api.PrefectApi.__init__.__kwdefaults__["patience"] = {PATIENCE}
"""
"""Code for the start of a process whose calls that belong to no job are given up sooner."""
BRIDGE = """
import flows.engine.outage
flows.engine.outage.BRIDGE = 4.0
"""
"""Code for the start of a process that does not do without the server for long."""


class SlowBridge(Bridge):
    """A bridge that delays every transaction by so many seconds."""

    pause = 0.25

    def passes(self, method: str, path: str, upstream: socket.socket) -> bool:
        if method == "POST":
            threading.Event().wait(self.pause)
        return super().passes(method, path, upstream)


class RestartableServer:
    """A Prefect server of a site, on one port for ever."""

    def __init__(self, home: Path) -> None:
        self._home = home
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self._port}/api"
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "uvicorn", "--factory", "prefect.server.api.server:create_app"]
        with (self._home / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(self._port)], cwd=self._home, stdout=log, stderr=log,
                env=os.environ | QUIET | {"PREFECT_HOME": str(self._home), "PREFECT_API_URL": ""},
            )  # fmt: skip
        return self.process

    def ready(self) -> None:
        def answers() -> bool:
            try:
                return httpx.get(f"{self.url}/health", trust_env=False, timeout=5).status_code == 200
            except httpx.HTTPError:
                return False

        wait_until(answers, 90)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=30)

    def signalled(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@pytest.fixture(scope="module")
def site_server(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[RestartableServer]:
    site = tmp_path_factory.mktemp("site")
    seed(site, migrated_database)
    found = RestartableServer(site / ".prefect")
    yield found
    found.signalled(signal.SIGCONT)
    found.kill()


@pytest.fixture
def server(site_server: RestartableServer) -> RestartableServer:
    """Return the server, which runs whatever the test before did to it."""
    site_server.signalled(signal.SIGCONT)
    if site_server.process.poll() is not None:
        site_server.start()
    site_server.ready()
    return site_server


@pytest.fixture
def between(fhir: Fhir) -> Iterator[SlowBridge]:
    made = SlowBridge(fhir.url)
    yield made
    made.close()


@pytest.fixture
def commands(tmp_path: Path, server: RestartableServer, between: SlowBridge) -> Iterator[Commands]:
    """local_import → send in many small transactions, one after the other."""
    many_transactions(tmp_path, between.url)
    commands = Commands(tmp_path, server.url)
    yield commands
    commands.close()


class OutageTrial:
    """A job that runs in a process, and the directory of it."""

    def __init__(self, commands: Commands, fhir: Fhir, environment: dict[str, str]) -> None:
        self._commands, self._fhir = commands, fhir
        self.child = commands.start("pipeline", "start", "config.yaml", "--no-progress", env=environment)
        assert self.child.stdout
        self.job = self.child.stdout.readline().split()[1]
        self.directory = commands.cwd / "jobs" / self.job
        self.sent(3)

    def sent(self, transactions: int, seconds: float = 120) -> None:
        wait_until(lambda: len(self._fhir.posts()) >= transactions or self.child.poll() is not None, seconds)
        assert self.child.poll() is None, self.child.communicate()

    def completes(self, seconds: float = 120) -> str:
        """Wait until the job completes as if undisturbed; return its output."""
        out, err = self.child.communicate(timeout=seconds)
        assert self.child.returncode == 0, (out, err)
        assert len(self._fhir.posts()) == TRANSACTIONS
        status = self._commands.status(self.job)
        assert status["state"] == "completed"
        assert [step["state"] for step in status["steps"]] == ["completed", "completed"]
        said = (self.directory / "job.log").read_text()
        expected = [(name, "Completed") for name in ("local_import", "release report", "send")]
        wait_until(lambda: sorted(self.task_runs()) == expected)  # the server makes them of events, after a while
        assert "Traceback" not in err + said
        assert not (self.directory / ".heartbeat").exists()
        return said

    def task_runs(self) -> list[tuple[str, str]]:
        """Return the task runs as Prefect shows them."""
        body = {"flow_runs": {"id": {"any_": [self.job]}}}
        url = f"{self._commands.environment['PREFECT_API_URL']}/task_runs/filter"
        rows = httpx.post(url, json=body, trust_env=False, timeout=30).json()
        return [(row["name"], row["state_name"]) for row in rows]


def test_a_job_goes_on_without_the_server_and_nobody_takes_it(
    commands: Commands, fhir: Fhir, server: RestartableServer, tmp_path: Path
) -> None:
    """For longer than a lease, and back again before the end."""
    elsewhere = other_machine(tmp_path / "other", TIMES)
    trial = OutageTrial(commands, fhir, this_machine(tmp_path / "one", TIMES))
    server.kill()
    time.sleep(1.5 * TIMES.lease)
    trial.sent(TRANSACTIONS - 8)
    server.start()
    server.ready()
    refused = commands("pipeline", "continue", "config.yaml", trial.job, env=elsewhere)
    assert refused.code == 4 or trial.child.poll() is not None, refused.err
    said = trial.completes()
    # said once an outage, and once that it is over; a server that is slow on a busy machine may be one more
    away = "the Prefect API does not answer: the job continues, and its record waits"
    told = [line for line in said.splitlines() if away in line or "the Prefect API answers again" in line]
    assert told, said
    assert [away in line for line in told] == [True, False] * (len(told) // 2), told


def test_a_job_that_ends_while_the_server_is_away_waits_with_its_record(
    commands: Commands, fhir: Fhir, server: RestartableServer, between: SlowBridge, tmp_path: Path
) -> None:
    trial = OutageTrial(commands, fhir, this_machine(tmp_path / "one", TIMES))
    server.kill()
    between.pause = 0.0
    wait_until(lambda: len(fhir.posts()) == TRANSACTIONS, 60)
    time.sleep(TIMES.lease)
    assert trial.child.poll() is None
    server.start()
    trial.completes()


def test_a_run_of_a_worker_that_has_just_begun_waits_for_the_server_too(
    commands: Commands,
    fhir: Fhir,
    server: RestartableServer,
    between: SlowBridge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For longer than a call waits that belongs to no job."""
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "made-up:login")  # which this server does not ask for
    commands.environment |= starting_with(tmp_path / "one", IMPATIENT)
    between.pause = 0.0
    deployed = deployment(server.url, "begins", tmp_path)
    with working(commands, server.url, "begins", "one") as worker, PrefectApi(address_of(server.url)) as prefect:
        job = run_deployment(prefect, deployed, {"config": str(tmp_path / "config.yaml")})
        wait_until(lambda: b"Beginning flow run" in worker.log.read_bytes(), 120)
        server.kill()
        time.sleep(3 * PATIENCE)
        server.start()
        server.ready()
        wait_until(lambda: (prefect.read_run(job) or {})["state_type"] == "COMPLETED", 120)
    assert len(fhir.posts()) == TRANSACTIONS


def test_a_signal_ends_a_job_within_10_seconds_while_the_server_is_away(
    commands: Commands, fhir: Fhir, server: RestartableServer, tmp_path: Path
) -> None:
    trial = OutageTrial(commands, fhir, this_machine(tmp_path / "one", TIMES))
    server.signalled(signal.SIGSTOP)
    time.sleep(3)
    asked = time.monotonic()
    trial.child.send_signal(signal.SIGTERM)
    trial.child.communicate(timeout=60)
    assert trial.child.returncode == 143
    assert time.monotonic() - asked < 10.5


def test_a_lasting_outage_ends_the_job_between_files_and_keeps_what_was_done(
    commands: Commands, fhir: Fhir, server: RestartableServer, between: SlowBridge, tmp_path: Path
) -> None:
    here = starting_with(tmp_path / "one", times_of(TIMES) + BRIDGE)
    trial = OutageTrial(commands, fhir, here)
    server.kill()
    _, err = trial.child.communicate(timeout=90)
    assert trial.child.returncode == 3, err
    done = len(fhir.posts())
    assert done < TRANSACTIONS
    assert "away for more than" in (trial.directory / "job.log").read_text()
    server.start()
    server.ready()
    shown = commands("pipeline", "status", "config.yaml", trial.job, env=here)
    assert "interrupted since 20" in shown.out
    assert "1 local_import: completed" in shown.out
    between.pause = 0.0
    went_on = commands("pipeline", "continue", "config.yaml", trial.job, env=here)
    assert went_on.code == 0, went_on.err
    assert TRANSACTIONS <= len(fhir.posts()) < done + TRANSACTIONS  # the files under way again, no finished one
