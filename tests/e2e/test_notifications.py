"""A webhook is called when a job fails or waits for a person (issue "Notifications and retention").

As docs/deployment.md says it: its commands make the webhook block and the automation of ``deployments/notify.yaml``, in
a server of the test's own. What arrives is compared as a whole, so a call too many is found as well as one too few.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.engine.server import EmbeddedServer
from tests.conftest import ROOT, Commands, ask_prefect, kill, seed, wait_until
from tests.peers.project import Fhir
from tests.peers.server import Loopback, Reply, Seen

PAGE = (ROOT / "docs/deployment.md").read_text(encoding="utf-8")
PERSON = "Umläut"
"""A name in the data."""


class Receiver:
    """An HTTP server that keeps what it is told; ``stop`` and ``start`` take its port away and back."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.texts: list[str] = []
        self._server = Loopback(self._take)

    def _take(self, seen: Seen) -> Reply:
        assert seen.headers["content-type"] == "application/json"
        self.texts.append(f"{seen.headers}{seen.body.decode()}")
        self.calls.append(json.loads(seen.body))
        return Reply(204)

    def start(self) -> None:
        self._server = Loopback(self._take, port=self._server.port)

    def stop(self) -> None:
        self._server.close()

    @property
    def url(self) -> str:
        return f"{self._server.url}/hooks/made-up-secret"

    def of(self, job: str) -> list[str]:
        """The states that were told of a job."""
        return [call["state"] for call in self.calls if call["job"] == job]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.stop()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[str]:
    """A server of this module's own: an automation speaks of every run there is."""
    jobs = tmp_path_factory.mktemp("notifications")
    seed(jobs, migrated_database)
    with EmbeddedServer(jobs) as server, pytest.MonkeyPatch.context() as patched:
        patched.setenv("PREFECT_API_AUTH_STRING", str(server.address().secret))
        yield server.address().url


@pytest.fixture
def commands(tmp_path: Path, api: str) -> Iterator[Commands]:
    commands = Commands(tmp_path, api)
    yield commands
    commands.close()


def documented() -> str:
    """The commands of the page, in which the files of an installation are those of the checkout."""
    (section,) = re.findall(r"^## Notifications$(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    (block,) = re.findall(r"^```bash\n(.*?prefect automation create.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(block).replace("deployments/notify.yaml", str(ROOT / "deployments/notify.yaml"))


def announce(commands: Commands, receiver: Receiver) -> None:
    """Type the page's commands."""
    (commands.cwd / "webhook.url").write_text(receiver.url + "\n")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["sh", "-e", "-c", documented().replace("/etc/sluice/webhook.url", "webhook.url")], cwd=commands.cwd,
        env=commands.environment | {"PATH": path}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert receiver.url not in ran.stdout + ran.stderr


@pytest.fixture
def announced(commands: Commands, api: str, receiver: Receiver) -> Iterator[Receiver]:
    announce(commands, receiver)
    yield receiver
    for automation in ask_prefect("POST", f"{api}/automations/filter", {}):
        ask_prefect("DELETE", f"{api}/automations/{automation['id']}")


def refuse(fhir: Fhir) -> None:
    """Every transaction is refused, and the answer quotes a person."""
    body = json.dumps({"resourceType": "OperationOutcome", "issue": [{"diagnostics": PERSON}]})
    fhir.faults({"action": "status", "status": 422, "body": body, "method": "POST", "times": None})


def events(api: str, name: str) -> list[dict[str, Any]]:
    """The events of that name."""
    found = ask_prefect("POST", f"{api}/events/filter", {"filter": {"event": {"name": [name]}}, "limit": 50})
    return list(found["events"])


def nothing_but_run_and_state(receiver: Receiver, project: Path) -> None:
    """No path, no payload, no identifier in what was called: the keys, and where a text could hide something."""
    for call, text in zip(receiver.calls, receiver.texts, strict=True):
        assert set(call) == {"text", "job", "state"}
        assert re.fullmatch(rf"config \S+( \S+)? is {call['state']}: {call['job']}", call["text"]), call["text"]
        for canary in (PERSON, str(project), "jobs/", "ndjson", "Patient"):
            assert canary not in text


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_a_local_run_calls_when_it_waits_and_when_it_fails_each_time_and_not_when_it_completes(
    commands: Commands, announced: Receiver, project: Path, fhir: Fhir
) -> None:
    job = commands("pipeline", "start", "config.yaml").job
    wait_until(lambda: announced.of(job) == ["Paused"], 60)
    refuse(fhir)
    assert commands("pipeline", "continue", "config.yaml", job, "--approve").code == 1
    wait_until(lambda: announced.of(job) == ["Paused", "Failed"], 60)
    assert commands("pipeline", "continue", "config.yaml", job).code == 1
    wait_until(lambda: announced.of(job) == ["Paused", "Failed", "Failed"], 60)
    fhir.faults()
    assert commands("pipeline", "continue", "config.yaml", job).code == 0
    last = commands("pipeline", "start", "config.yaml").job  # what comes of it comes after all that came before
    wait_until(lambda: announced.of(last) == ["Paused"], 60)
    assert announced.of(job) == ["Paused", "Failed", "Failed"]
    assert len(announced.calls) == 4
    nothing_but_run_and_state(announced, project)


def start(api: str, project: Path) -> str:
    """Start a run of the deployment, as a schedule does."""
    wait_until(lambda: bool(ask_prefect("POST", f"{api}/deployments/filter", {})), 90)
    (deployment,) = ask_prefect("POST", f"{api}/deployments/filter", {})
    body = {"parameters": {"config": str(project / "config.yaml"), "input": str(project / "data")}}
    return str(ask_prefect("POST", f"{api}/deployments/{deployment['id']}/create_flow_run", body)["id"])


@pytest.mark.campaign
@pytest.mark.timeout(400)
def test_a_run_of_a_deployment_calls_when_it_is_suspended_fails_and_when_its_process_dies(
    commands: Commands, announced: Receiver, api: str, project: Path, fhir: Fhir
) -> None:
    log = commands.cwd / "serve.log"
    with log.open("wb") as file:
        served = subprocess.Popen(
            [sys.executable, "-m", "deployments.serve", "--name", "sluice"], cwd=commands.cwd,
            env=commands.environment | {"PYTHONUNBUFFERED": "1"}, stdout=file, stderr=file,
        )  # fmt: skip
    try:
        wait_until(lambda: b"serving pipeline/" in log.read_bytes(), 90)
        job = start(api, project)
        wait_until(lambda: announced.of(job) == ["Suspended"], 120)
        refuse(fhir)
        ask_prefect("POST", f"{api}/flow_runs/{job}/resume", {"run_input": {"decision": "release", "by": "Anna"}})
        wait_until(lambda: announced.of(job) == ["Suspended", "Failed"], 120)
        assert commands("pipeline", "continue", "config.yaml", job).code == 0
        wait_until(lambda: announced.of(job) == ["Suspended", "Failed", "Failed"], 120)
        fhir.faults({"action": "delay", "method": "POST", "times": None, "seconds": 60})
        assert commands("pipeline", "continue", "config.yaml", job).code == 0
        directory = commands.cwd / "jobs" / job
        wait_until(lambda: (directory / "job.log").read_text().count("step 3 send begins") == 3, 120)
        kill(json.loads((directory / ".lock").read_text())["process"])
        wait_until(lambda: announced.of(job) == ["Suspended", "Failed", "Failed", "Crashed"], 120)
        fhir.faults()
        assert commands("pipeline", "continue", "config.yaml", job).code == 0
        wait_until(lambda: ask_prefect("GET", f"{api}/flow_runs/{job}")["state_type"] == "COMPLETED", 120)
        last = start(api, project)
        wait_until(lambda: announced.of(last) == ["Suspended"], 120)
        assert len(announced.calls) == 5
        nothing_but_run_and_state(announced, project)
    finally:
        served.terminate()
        served.wait(timeout=60)


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_a_call_that_is_not_taken_is_not_repeated_and_an_event_says_so(
    commands: Commands, announced: Receiver, api: str, project: Path
) -> None:
    announced.stop()
    lost = commands("pipeline", "start", "config.yaml").job
    wait_until(lambda: len(events(api, "prefect.automation.action.failed")) == 1, 60)
    announced.start()
    job = commands("pipeline", "start", "config.yaml").job
    wait_until(lambda: announced.of(job) == ["Paused"], 60)
    assert announced.of(lost) == []
    (failed,) = events(api, "prefect.automation.action.failed")
    assert "ConnectError" in failed["payload"]["reason"]
    assert announced.url not in json.dumps(failed)
