"""A hospital's machine, set up with the commands of docs/deployment.md: server, worker, database, sandbox services."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.conftest import Ran, wait_until
from tests.deployments.systemd.guest import Guest, guest
from tests.docs.pages import example

PAGE = "docs/deployment.md"
UNITS = ("sluice-server", "sluice-worker")
SECRET = f"secret-{secrets.token_hex(8)}"
NAME = "Canaryname"
"""What must not get out: the password of a service, and the name of every patient."""

CONFIGURATION = "/etc/sluice/nightly.yaml"
SMALL = "/etc/sluice/load.yaml"
FHIR = "http://127.0.0.1:8090"

_SANDBOX = """
[Service]
DynamicUser=yes
StateDirectory=sandbox
ExecStart=/usr/local/lib/sluice/bin/python -m deployments.sandbox --port 8090 --state /var/lib/sandbox
[Install]
WantedBy=multi-user.target
"""

_LOAD = """
services:
  local_import: {{dir: {source}}}
  send: {{send_as: direct_resource_load, url: "{url}", batch_size: {batch}, max_concurrent_requests: 1}}
pipeline: {{enabled_steps: [local_import, send]}}
jobs_dir: {jobs}
"""

_EVERY_MINUTE = """
name: sluice
prefect-version: 3.8.8
build: null
push: null
pull: []
deployments:
  - name: minutely
    entrypoint: flows.pipeline.pipeline
    work_pool: {name: sluice, job_variables: {working_dir: /var/lib/sluice}}
    parameters: {config: /etc/sluice/load.yaml}
    schedules: [{cron: "* * * * *", timezone: Europe/Berlin, active: true}]
"""


class SystemdSite:
    """The machine, and what an administrator asks it."""

    def __init__(self, machine: Guest) -> None:
        self.machine = machine
        self.login = f"sluice:{secrets.token_hex(24)}"
        self.password = secrets.token_hex(24)

    def install(self) -> None:
        """Run the page's commands word for word, with values for its placeholders."""
        machine, known = self.machine, {"sluice:<24 random bytes in hex>": self.login, "sluice:<the same>": self.login}
        machine.prepare(example(PAGE, "useradd --system").text, timeout=900)
        server = example(PAGE, "PREFECT_SERVER_API_AUTH_STRING=sluice:").text
        worker = example(PAGE, "PREFECT_API_URL=").text + f"SERVICE_PASSWORD={SECRET}\n"
        for name, text in (("server", server), ("worker", worker)):
            for written, meant in (known | {"<24 random bytes in hex>": self.password}).items():
                text = text.replace(written, meant)
            machine.write(f"/etc/sluice/{name}.env", text, mode=0o600)
        machine.write("/etc/systemd/system/sandbox.service", _SANDBOX)
        machine.power_on()
        database = example(PAGE, "runuser --user postgres").text
        machine.run(database.replace("<the same as in server.env>", self.password))
        machine.run("systemctl enable --now sandbox")
        wait_until(lambda: machine.ran("ls /var/lib/sandbox/sandbox.yaml").code == 0)
        self._configure()
        machine.run(example(PAGE, "systemctl daemon-reload").text, timeout=300)

    def _configure(self) -> None:
        machine = self.machine
        text = machine.run("cat /var/lib/sandbox/sandbox.yaml")
        (demo,) = re.findall(r"\S+demo\.crtdl", text)
        text = re.sub(r"^jobs_dir:.*$", "jobs_dir: jobs", text, flags=re.MULTILINE)
        login = '\n    auth: {username: sluice, password: "${SERVICE_PASSWORD}"}'
        machine.write(CONFIGURATION, re.sub(r'(url: "http://127\.0\.0\.1:8092")', rf"\1{login}", text))
        machine.run(f"install --mode 0644 {demo} /etc/sluice/nightly.crtdl")
        machine.write(SMALL, _LOAD.format(source="/srv/source", url=FHIR, batch=3, jobs="jobs"))
        machine.write("/etc/sluice/minutely.yaml", _EVERY_MINUTE)

    def load_configuration(self, path: str, *, source: str, jobs: str, batch: int) -> None:
        """One more configuration that imports a directory and sends it."""
        self.machine.write(path, _LOAD.format(source=source, url=FHIR, batch=batch, jobs=jobs))

    def patients(self, prefix: str, count: int, *, source: str = "/srv/source", filling: int = 0) -> None:
        """Write the input directory: so many patients, in three files, with unique ids."""
        for file in range(3):
            lines = [
                json.dumps({"resourceType": "Patient", "id": f"{prefix}-{file}-{number}",
                            "name": [{"family": NAME + secrets.token_hex(filling)}]})
                for number in range(count // 3)
            ]  # fmt: skip
            self.machine.write(f"{source}/{file}.ndjson", "\n".join(lines) + "\n")

    def stored(self, prefix: str, count: int) -> int:
        """Count the patients among these that the FHIR server has."""
        ids = [f"{prefix}-{file}-{number}" for file in range(3) for number in range(count // 3)]
        status, answer = self.machine.http("GET", f"{FHIR}/fhir/Patient?_summary=count&_id={','.join(ids)}")
        assert status == 200, answer
        total: int = json.loads(answer)["total"]
        return total

    @contextmanager
    def slow_server(self) -> Iterator[None]:
        """Yield a FHIR server that takes half a second for each transaction."""
        faults = f"{FHIR}/_sandbox/faults"
        rule = {"action": "delay", "method": "POST", "times": None, "seconds": 0.5}
        assert self.machine.http("PUT", faults, [rule])[0] < 300
        try:
            yield
        finally:
            assert self.machine.http("PUT", faults, [])[0] < 300

    def sluice(self, words: str) -> Ran:
        """Run a command as root."""
        return self.machine.ran(f"sluice {words}")

    def start(self, config: str, *more: str) -> str:
        """Hand a job to the worker; its id."""
        ran = self.sluice(f"pipeline start {config} {' '.join(more)} --detach")
        assert ran.code == 0, ran.err
        return ran.job

    def start_as_the_page_does(self) -> str:
        """Start the page's own job, which its list names; return its id."""
        said = self.machine.run(example(PAGE, "sluice pipeline start /etc/sluice").text)
        job, listed = re.findall(r"^(?:job )?([0-9a-f]{8}-\S+)", said, re.MULTILINE)[:2]
        assert listed == job, said
        return str(job)

    def go_on(self, config: str, job: str) -> None:
        ran = self.sluice(f"pipeline continue {config} {job}")
        assert ran.code == 0, ran.err

    def status(self, config: str, job: str) -> dict[str, Any]:
        ran = self.sluice(f"pipeline status {config} {job} --json")
        assert ran.code == 0, ran.err
        found: dict[str, Any] = json.loads(ran.out)
        return found

    def reaches(self, config: str, job: str, state: str, *, before: tuple[str, ...] = ("pending", "running")) -> None:
        """Wait until a job is in a state; on the way it may be ``before``, and ``interrupted`` while a run begins."""
        seen: list[str] = []

        def there() -> bool:
            seen.append(self.status(config, job)["state"])
            assert seen[-1] in (state, "interrupted", *before), seen
            return seen[-1] == state

        wait_until(there, 180)

    def is_up(self) -> None:
        """Whatever a test before did: both units run, and the server answers."""
        self.machine.run("systemctl start sluice-server sluice-worker", timeout=300)

    def processes(self, unit: str) -> set[int]:
        """Return the processes of a unit."""
        path = f"/sys/fs/cgroup/system.slice/{unit}.service/cgroup.procs"
        return {int(pid) for pid in self.machine.ran(f"cat {path}").out.split()}

    def alive(self, pids: set[int]) -> set[int]:
        """Return those of them that are still there."""
        return {pid for pid in pids if self.machine.ran(f"test -e /proc/{pid}").code == 0}


@contextmanager
def site() -> Iterator[SystemdSite]:
    """Yield a site where everything runs."""
    with guest() as machine:
        built = SystemdSite(machine)
        built.install()
        yield built
