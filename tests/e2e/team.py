"""A site of a team, for campaigns: PostgreSQL, a Prefect server, two workers on machines of their own, the services.

Server and workers are started with what ``deployments/`` sets up: the settings of the compose file, ``prefect.yaml``,
``python -m deployments.worker``. The machines differ in host name and home, know that they are elsewhere, and see the
locks on files of their own only (``machines.py``); what both see is the jobs directory and Prefect's API.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import yaml

from deployments.sandbox.child import SandboxChild, start_child
from deployments.sandbox.data import ANONYMIZATION_RULES, DATA
from deployments.sandbox.options import SandboxOptions
from flows.engine.api import PrefectApi
from flows.engine.api_address import ApiAddress, configured_api
from flows.engine.flow_runs import find_deployments, run_deployment
from tests.conftest import ROOT, Ran, wait_until
from tests.e2e.machines import descendants, other_machine
from tests.peers.postgres import Postgres
from tests.peers.sandbox import Sandboxed

STEPS = ("local_import", "pseudonymizer", "send")

BATCH = 10
"""Resources of a transaction."""


@dataclass
class TeamServer:
    """A Prefect server with the settings of the compose file."""

    place: Path
    database: Postgres
    port: int
    auth: str
    process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> None:
        settings = yaml.safe_load((ROOT / "deployments/compose.yaml").read_text())["services"]["server"]["environment"]
        inside = {key: value for key, value in settings.items() if key.startswith("PREFECT_") and "$" not in value}
        home = self.place / "server"
        own = {
            "PREFECT_HOME": str(home), "PREFECT_SERVER_API_AUTH_STRING": self.auth,
            "PREFECT_API_DATABASE_CONNECTION_URL": self.database.url,
            "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(home / "ui"), "DO_NOT_TRACK": "1",
        }  # fmt: skip
        gone = {key for key in inside if "DATABASE" in key}
        # Paths of the container are paths below the home of this one.
        kept = {key: value.replace("/var/lib/prefect", str(home)) for key, value in inside.items() if key not in gone}
        with (self.place / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)],
                env=outside() | kept | own, stdout=log, stderr=log, start_new_session=True, cwd=self.place,
            )  # fmt: skip
        if wait:
            wait_until(self.answers, 180)

    def answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{self.port}/api/health", trust_env=False, timeout=5).status_code == 200
        return False

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self.process is not None
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        self.process.wait(60)


def outside() -> dict[str, str]:
    """The environment without what is set for Prefect or for a configuration."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "APP_"))}


@dataclass
class Machine:
    """A machine with a worker."""

    site: TeamSite
    name: str
    more: dict[str, str] = field(default_factory=dict)
    worker: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        home = self.site.place / self.name
        home.mkdir(exist_ok=True)
        return outside() | self.site.client | {"PREFECT_HOME": str(home), "PYTHONUNBUFFERED": "1"} | self.more

    def command(self, *words: str) -> list[str]:
        """Run a command under this machine's name."""
        return ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name, sys.executable, *words]

    def start(self, *words: str) -> None:
        with (self.site.place / f"{self.name}.log").open("ab") as log:
            command = self.command("-m", "deployments.worker", "--pool", "sluice", "--name", self.name, "--limit", "2")
            self.worker = subprocess.Popen(
                [*command, *words], env=self.environment | {"PREFECT_WORKER_QUERY_SECONDS": "2"}, stdout=log,
                stderr=log, cwd=self.site.place,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return (self.site.place / f"{self.name}.log").read_text()

    def sluice(self, *words: str) -> Ran:
        ran = subprocess.run(
            self.command("-m", "flows.run", *words), env=self.environment, capture_output=True, text=True, timeout=600,
            cwd=self.site.place, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    def kill(self) -> None:
        """``kill -9`` for the worker and everything it started, as when the machine loses its power."""
        assert self.worker is not None
        frozen: list[int] = []
        pids = (self.worker.pid, *descendants(self.worker.pid))
        while new := [pid for pid in pids if pid not in frozen]:
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            frozen += new
            pids = (self.worker.pid, *descendants(self.worker.pid))
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.worker.wait(30)

    def kill_worker(self) -> None:
        """``kill -9`` for the processes of the worker; its runs live on as long as they can."""
        assert self.worker is not None
        runs = set(self.runs())
        for pid in (self.worker.pid, *descendants(self.worker.pid)):
            if pid not in runs:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.worker.wait(30)

    def runs(self) -> list[int]:
        """Return the processes that run a job here, and their children."""
        assert self.worker is not None
        found = []
        for pid in descendants(self.worker.pid):
            with contextlib.suppress(OSError):
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                if b"PREFECT__FLOW_RUN_ID=" in environment:
                    found.append(pid)
        return found

    def stop(self) -> int:
        """SIGTERM, as systemd sends it."""
        assert self.worker is not None
        self.worker.send_signal(signal.SIGTERM)
        return self.worker.wait(60)


@dataclass
class TeamSite:
    """All of it."""

    place: Path
    database: Postgres
    server: TeamServer
    services: SandboxChild
    client: dict[str, str]
    machines: tuple[Machine, ...] = ()

    @property
    def address(self) -> ApiAddress:
        found = configured_api(self.client)
        assert found is not None
        return found

    def configure(self, seconds: float) -> None:
        """Write a configuration with which ``send`` takes about so many seconds."""
        document = {
            "services": {
                "local_import": {"dir": str(DATA)},
                "pseudonymizer": {
                    "url": self.services.urls["pseudonymizer"], "anonymization_config": str(ANONYMIZATION_RULES),
                },
                "send": {
                    "send_as": "direct_resource_load", "url": self.services.urls["fhir"], "batch_size": BATCH,
                    "max_concurrent_requests": 1,
                },
            },
            "pipeline": {"enabled_steps": list(STEPS)},
            "jobs_dir": str(self.place / "jobs"),
        }  # fmt: skip
        (self.place / "config.yaml").write_text(yaml.safe_dump(document))
        self.slow(seconds)

    def slow(self, seconds: float) -> None:
        """Delay each transaction by so many seconds."""
        rule = {
            "action": "delay",
            "seconds": seconds,
            "at": "applied",
            "method": "POST",
            "path": "/fhir",
            "times": None,
        }
        self.service("fhir").faults(rule)

    def service(self, name: str) -> Sandboxed:
        return Sandboxed(self.services.urls[name])

    def deploy(self) -> None:
        """The work pool and the deployments of the file, with this place as working directory."""
        document = yaml.safe_load((ROOT / "deployments/prefect.yaml").read_text())
        for one in document["deployments"]:
            one["work_pool"] = {"name": "sluice", "job_variables": {"working_dir": str(self.place)}}
        (self.place / "prefect.yaml").write_text(yaml.safe_dump(document))
        for words in (
            ("work-pool", "create", "sluice", "--type", "process"),
            ("--no-prompt", "deploy", "--prefect-file", str(self.place / "prefect.yaml"), "--all"),
        ):
            subprocess.run(
                [sys.executable, "-m", "prefect", *words], env=self.machines[0].environment, check=True, timeout=120,
                cwd=self.place, stdout=subprocess.DEVNULL,
            )  # fmt: skip

    def start(self, jobs: int) -> list[str]:
        """Ask for so many jobs; their ids."""
        config = str(self.place / "config.yaml")
        with PrefectApi(self.address) as api:
            (deployed,) = (
                one
                for one in find_deployments(
                    api,
                )
                if one["name"] == "sluice"
            )
            return [run_deployment(api, str(deployed["id"]), {"config": config}) for _ in range(jobs)]

    def states(self, jobs: list[str]) -> Counter[str]:
        """Count the jobs by Prefect state."""
        with PrefectApi(self.address) as api:
            return Counter(str((api.read_run(job) or {"state_name": "gone"})["state_name"]) for job in jobs)

    def completed(self, jobs: list[str], within: float) -> float:
        """Wait until all are complete; seconds."""
        begun = time.monotonic()
        while self.states(jobs) != {"Completed": len(jobs)}:
            assert time.monotonic() - begun < within, (
                self.states(jobs),
                [machine.log[-2000:] for machine in self.machines],
            )
            time.sleep(2)
        return time.monotonic() - begun


@contextlib.contextmanager
def site(place: Path, *, second: dict[str, str] | None = None) -> Iterator[TeamSite]:
    """Yield a site in ``place``; ``second`` is what the environment of the second machine has more."""
    with contextlib.ExitStack() as stack, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        database = Postgres(Path("/tmp", f"sluice-{place.name[-20:]}-{port}"))
        stack.callback(shutil.rmtree, database.place)
        database.start()
        stack.callback(database.end)
        server = TeamServer(place, database, port, f"sluice:{secrets.token_hex(24)}")
        server.start()
        stack.callback(server.stop)
        services = stack.enter_context(start_child(SandboxOptions(data=DATA)))
        client = {
            "PREFECT_API_URL": f"http://127.0.0.1:{port}/api", "PREFECT_API_AUTH_STRING": server.auth,
            "PYTHONPATH": str(ROOT), "DO_NOT_TRACK": "1",
        }  # fmt: skip
        made = TeamSite(place, database, server, services, client)
        made.machines = (
            Machine(made, "one"),
            Machine(made, "two", other_machine(place / "other-machine") | (second or {})),
        )
        made.deploy()
        for machine in made.machines:
            machine.start()
            stack.callback(_ended, machine)
        yield made


def _ended(machine: Machine) -> None:
    if machine.worker is not None and machine.worker.poll() is None:
        machine.kill()
