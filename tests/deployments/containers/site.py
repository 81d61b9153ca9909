"""A new user's machine: a clone of the project, its two files of secrets, and the containers that compose makes of it.

``SLUICE_REAL_COMPOSE`` names the program (``docker compose``), ``SLUICE_REAL_PYTHON_IMAGE`` the base of the image, and
``SLUICE_REAL_POSTGRES_IMAGE`` the database where it is not the one of ``compose.yaml``. What pip needs on this machine
comes from ``SLUICE_BUILD_PIP`` and ``SLUICE_BUILD_CERTIFICATES``, as it would for a user.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ROOT, Ran, free_ports, wait_until
from tests.docs.pages import example

HOW = 'a container runtime, SLUICE_REAL_COMPOSE="docker compose", SLUICE_REAL_PYTHON_IMAGE=<the base in Containerfile>'
CLONED = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "config", "tasks", "flows", "deployments")
LOADER_PASSWORD = "canary-$word-81c2"
"""What a configuration names as ``${LOADER_PASSWORD}``; compose must not expand its ``$``."""
HOSPITAL = "fhir.hospital.test"
"""How containers name this machine."""

# Apart from the user's own: another image, another port. The rest is compose.yaml's.
_BESIDE = """
services:
  database: {{image: "{postgres}"}}
  server:
    image: {image}
    build: {{args: {{PYTHON: "{python}"}}}}
    ports: !override ["127.0.0.1:{port}:4200"]
  deploy: {{image: {image}}}
  worker:
    image: {image}
    extra_hosts: ["{hospital}:host-gateway"]
"""


def named(variable: str) -> str:
    """Return the value of the environment variable; skip the test without it."""
    value = os.environ.get(variable, "")
    if not value:
        pytest.skip(f"{variable} is not set; {HOW}")
    return value


@dataclass
class ContainerSite:
    """A clone with its own containers, networks and volumes."""

    clone: Path
    words: list[str]
    project: str
    port: int
    login: str = field(default_factory=lambda: f"sluice:{secrets.token_hex(24)}", repr=False)
    database: str = field(default_factory=lambda: secrets.token_hex(24), repr=False)

    @property
    def configuration(self) -> Path:
        """Host directory of ``/etc/sluice`` in the containers."""
        return self.clone / "deployments/configuration"

    @property
    def export(self) -> Path:
        """Host directory of ``/srv/export`` in the worker."""
        return self.clone.parent / "export"

    @property
    def image(self) -> str:
        return f"{self.project}:test"

    @property
    def environment(self) -> dict[str, str]:
        """The user's environment, without variables for other containers."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("COMPOSE_", "SLUICE_"))}
        built = {key: value for key, value in os.environ.items() if key.startswith("SLUICE_BUILD_")}
        return kept | built | {"COMPOSE_PROJECT_NAME": self.project}

    def secrets(self, *, login: str | None = None, database: str | None = None) -> None:
        """Write ``deployments/.env`` as the page says; ``""`` leaves a line out."""
        values = {
            "SLUICE_API_AUTH": self.login if login is None else login,
            "SLUICE_DB_PASSWORD": self.database if database is None else database,
        }
        lines = example("docs/deployment.md", "SLUICE_API_AUTH=sluice:").text.splitlines()
        assert [line.partition("=")[0] for line in lines] == list(values)
        write(self.clone / "deployments/.env", "".join(f"{name}={text}\n" for name, text in values.items() if text))

    def run(self, command: list[str], *, seconds: float = 180) -> Ran:
        """Run a command in the clone, under a umask that hides everything from others, as hospitals have it."""
        ran = subprocess.run(
            command, cwd=self.clone, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=seconds, umask=0o077, check=False,
        )  # fmt: skip
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    def page(self, beginning: str, *, seconds: float = 900) -> list[Ran]:
        """Run a block of the page, line by line."""
        lines = example("docs/deployment.md", beginning).text.splitlines()
        said = "docker compose --file deployments/compose.yaml "
        assert all(line.startswith(said) for line in lines), lines
        return [self.compose(*shlex.split(line.removeprefix(said)), seconds=seconds) for line in lines]

    def compose(self, *words: str, seconds: float = 180) -> Ran:
        if words[0] == "exec":
            words = ("exec", "-T", *words[1:])  # a test has no terminal
        files = [f"--file={name}" for name in ("deployments/compose.yaml", "deployments/site.yaml", "beside.yaml")]
        return self.run([*self.words, *files, *words], seconds=seconds)

    def engine(self, *words: str) -> str:
        """Run a command of the container runtime itself, below compose, and return its output."""
        ran = self.run([self.words[0], *words])
        assert ran.code == 0, ran.err
        return ran.out

    def up(self, *words: str) -> Ran:
        ran = self.compose("up", "--detach", *words, seconds=300)
        assert ran.code == 0, ran.err[-3000:]
        return ran

    def sluice(self, *words: str) -> Ran:
        """Run a command in a living worker; `compose exec` uses the first one, which may be dead."""
        return self.run([self.words[0], "exec", self.workers()[0], "sluice", *words])

    def containers(self) -> list[dict[str, Any]]:
        ran = self.compose("ps", "--all", "--format", "json")
        assert ran.code == 0, ran.err
        return [json.loads(line) for line in ran.out.splitlines()]

    def workers(self) -> list[str]:
        """Return the names of the worker containers that run."""
        found = [one for one in self.containers() if one["Service"] == "worker" and one["State"] == "running"]
        return sorted(str(one["Name"]) for one in found)

    def healthy(self) -> bool:
        """Return whether every service is healthy and the deploying container has succeeded."""
        states = {(one["Service"], one["State"], one["Health"] or one["ExitCode"]) for one in self.containers()}
        stays = {(name, "running", "healthy") for name in ("database", "server", "worker")}
        return states == {*stays, ("deploy", "exited", 0)}

    def call_prefect(self, method: str, path: str, body: object = None, *, login: str | None = None) -> httpx.Response:
        """Call Prefect from the machine itself, as a browser does; ``""`` for no login."""
        said = self.login if login is None else login
        headers = {"Authorization": f"Basic {base64.b64encode(said.encode()).decode()}"} if said else {}
        url = f"http://127.0.0.1:{self.port}{path}"
        return httpx.request(method, url, json=body, headers=headers, trust_env=False, timeout=60)

    def state(self, config: str, job: str) -> str:
        shown = self.sluice("pipeline", "status", config, job, "--json")
        assert shown.code == 0, shown.err
        return str(json.loads(shown.out)["state"])

    def reaches(self, config: str, job: str, state: str) -> None:
        """Wait until the job is there, through the API, because a command takes seconds of a core."""
        wanted = {"waiting": "PAUSED", "completed": "COMPLETED"}[state]

        def there() -> bool:
            found = self.call_prefect("GET", f"/api/flow_runs/{job}").json()["state_type"]
            assert found not in {"FAILED", "CANCELLED"}, self.job_log(job)
            time.sleep(0.2)
            return bool(found == wanted)

        wait_until(there, 240)
        assert self.state(config, job) == state

    def job_log(self, job: str) -> str:
        return self.engine("exec", self.workers()[0], "cat", f"/var/lib/sluice/jobs/{job}/job.log")


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


@contextmanager
def new_site(directory: Path) -> Iterator[ContainerSite]:
    """Yield a clone in ``directory``, and nothing of it afterwards."""
    words, python = shlex.split(named("SLUICE_REAL_COMPOSE")), named("SLUICE_REAL_PYTHON_IMAGE")
    project = f"sluice-test-{secrets.token_hex(4)}"
    site = ContainerSite(directory / "clone", words, project, free_ports())
    site.clone.mkdir(mode=0o700)
    for name in CLONED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".env", "*.env", "configuration")
            shutil.copytree(ROOT / name, site.clone / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, site.clone / name)
    for path in site.clone.rglob("*"):  # as a clone under umask 077 is
        path.chmod(0o700 if path.is_dir() else 0o600)
    postgres = os.environ.get("SLUICE_REAL_POSTGRES_IMAGE") or "postgres:17.6-alpine"
    beside = _BESIDE.format(python=python, postgres=postgres, image=site.image, port=site.port, hospital=HOSPITAL)
    write(site.clone / "beside.yaml", beside)
    site.export.mkdir(mode=0o755)
    own = example("docs/deployment.md", "services:\n  worker:\n").text
    assert own.count("/srv/export:/") == 1
    write(site.clone / "deployments/site.yaml", own.replace("/srv/export:/", f"{site.export}:/"))
    site.secrets()
    write(site.clone / "deployments/worker.env", f"LOADER_PASSWORD='{LOADER_PASSWORD}'\n")
    site.configuration.mkdir(mode=0o755)
    try:
        yield site
    finally:
        site.secrets()
        ended = site.compose("down", "--volumes", "--timeout", "5")
        site.run([words[0], "image", "rm", site.image])  # it may not have been built
        assert ended.code == 0, ended.err
