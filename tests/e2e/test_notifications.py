"""A webhook is called, and mail sent, when a job needs a person (issue "Notifications and retention").

As docs/deployment.md says it: its command makes the blocks and the automation, in a server of the test's own. What
arrives is compared as a whole, so a call too many is found as well as one too few.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flows.engine.api import PrefectApi
from flows.engine.server.start import EmbeddedServer
from flows.job.running.sweep import Sweep
from tests.conftest import ROOT, Commands, address_of, ask_prefect, kill, seed, wait_until
from tests.peers.mail import Mailbox
from tests.peers.project import Fhir
from tests.peers.server import Loopback, Reply, SeenRequest

PAGE = (ROOT / "docs/deployment.md").read_text(encoding="utf-8")
EXECUTED = "prefect.automation.action.executed"
PERSON = "Umläut"
"""A name in the data."""


class Receiver:
    """An HTTP server that records its calls; ``stop`` closes its port and ``start`` opens it again."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.texts: list[str] = []
        self._status = 204
        self._server = Loopback(self._record_call)

    def _record_call(self, seen: SeenRequest) -> Reply:
        assert seen.headers["content-type"] == "application/json"
        self.texts.append(f"{seen.headers}{seen.body.decode()}")
        self.calls.append(json.loads(seen.body))
        return Reply(self._status)

    def start(self, *, status: int = 204) -> None:
        self._status = status
        self._server = Loopback(self._record_call, port=self._server.port)

    def stop(self) -> None:
        self._server.close()

    @property
    def url(self) -> str:
        return f"{self._server.url}/hooks/made-up-secret"

    def of(self, job: str) -> list[str]:
        """Return the states of a job from the calls."""
        return [call["state"] for call in self.calls if call["job"] == job]

    def last(self, job: str) -> tuple[str, str]:
        """Step and reason of the last call about a job."""
        call = [call for call in self.calls if call["job"] == job][-1]
        return call["step"], call["reason"]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.stop()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[str]:
    """Yield a server of this module's own: an automation speaks of every run there is."""
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


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as mailbox:
        yield mailbox


def documented() -> str:
    """Return the command of the page."""
    (section,) = re.findall(r"^## Notifications$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    (block,) = re.findall(r"^```bash\n(python -m deployments.notify.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(block)


def test_the_page_has_the_command() -> None:
    """The other tests here are run now and then: this one each time."""
    assert documented().startswith("python -m deployments.notify --webhook ")


def announce(commands: Commands, receiver: Receiver, mailbox: Mailbox) -> None:
    """Type the page's command."""
    mail = f"mailto://127.0.0.1:{mailbox.port}?from=sluice@hospital.test&to=team@hospital.test&mode=insecure"
    for name, address in (("webhook.url", receiver.url), ("mail.url", mail)):
        (commands.cwd / name).write_text(address + "\n")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["sh", "-e", "-c", documented().replace("/etc/sluice/", "")], cwd=commands.cwd,
        env=commands.environment | {"PATH": path}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert receiver.url not in ran.stdout + ran.stderr
    assert mail not in ran.stdout + ran.stderr


@pytest.fixture
def announced(commands: Commands, api: str, receiver: Receiver, mailbox: Mailbox) -> Iterator[Receiver]:
    announce(commands, receiver, mailbox)
    yield receiver
    for automation in ask_prefect("POST", f"{api}/automations/filter", {}):
        ask_prefect("DELETE", f"{api}/automations/{automation['id']}")


def refuse(fhir: Fhir) -> None:
    """Every transaction is refused, and the answer quotes a person."""
    body = json.dumps({"resourceType": "OperationOutcome", "issue": [{"diagnostics": PERSON}]})
    fhir.faults({"action": "status", "status": 422, "body": body, "method": "POST", "times": None})


def events(api: str, name: str) -> list[dict[str, Any]]:
    """Return the events of that name."""
    found = ask_prefect("POST", f"{api}/events/filter", {"filter": {"event": {"name": [name]}}, "limit": 50})
    return list(found["events"])


def nothing_but_words_of_ours(receiver: Receiver, project: Path) -> None:
    """No path, no payload, no identifier in what was called: the keys, and where a text could hide something."""
    for call, text in zip(receiver.calls, receiver.texts, strict=True):
        assert set(call) == {"text", "job", "state", "step", "reason"}
        at = f" at {call['step']}" if call["step"] else ""
        told = re.escape(f" is {call['state']}{at}: {call['reason']} (job {call['job']})")
        assert re.fullmatch(rf"config [-\d]+ [:\d]+ {call['job'][:8]}{told}", call["text"]), call["text"]
        for canary in (PERSON, str(project), "jobs/", "ndjson", "Patient"):
            assert canary not in text


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_a_local_run_notifies_of_each_wait_failure_and_interruption_only(
    commands: Commands, announced: Receiver, mailbox: Mailbox, api: str, project: Path, fhir: Fhir
) -> None:
    announce(commands, announced, mailbox)  # twice makes one automation
    job = commands("pipeline", "start", "config.yaml").job
    wait_until(lambda: announced.of(job) == ["Paused"], 60)
    assert announced.last(job) == ("wait", "step 2 waits for a decision: Resume asks for it")
    refuse(fhir)
    assert commands("pipeline", "continue", "config.yaml", job, "--approve").code == 1
    wait_until(lambda: announced.of(job) == ["Paused", "Failed"], 60)
    step, reason = announced.last(job)
    assert step == "send"
    assert reason.startswith("send: error[")
    assert commands("pipeline", "continue", "config.yaml", job).code == 1
    wait_until(lambda: announced.of(job) == ["Paused", "Failed", "Failed"], 60)
    fhir.faults({"action": "delay", "method": "POST", "times": None, "seconds": 60})
    child = commands.start("pipeline", "continue", "config.yaml", job)
    wait_until(lambda: (commands.cwd / "jobs" / job / "job.log").read_text().count("step 3 send begins") == 3, 120)
    kill(child.pid)
    child.communicate()
    assert commands("job", "list", "config.yaml").code == 0
    wait_until(lambda: announced.of(job) == ["Paused", "Failed", "Failed", "Interrupted"], 60)
    assert announced.last(job) == ("send", "interrupted at send: the process that ran it is gone")
    assert ask_prefect("GET", f"{api}/flow_runs/{job}")["state_name"] == "Interrupted"
    fhir.faults()
    assert commands("pipeline", "continue", "config.yaml", job).code == 0
    last = commands("pipeline", "start", "config.yaml").job  # what comes of it comes after all that came before
    wait_until(lambda: announced.of(last) == ["Paused"], 60)
    assert announced.of(job) == ["Paused", "Failed", "Failed", "Interrupted"]
    assert len(announced.calls) == 5
    wait_until(lambda: len(mailbox.mails) == 5, 60)
    subjects = [str(mail["subject"]) for mail in mailbox.mails]
    assert [subject.partition(" is ")[2] for subject in subjects] == [
        "Paused at wait", "Failed at send", "Failed at send", "Interrupted at send", "Paused at wait",
    ]  # fmt: skip
    assert announced.calls[1]["text"] in mailbox.text(1)
    nothing_but_words_of_ours(announced, project)


def start(api: str, project: Path) -> str:
    """Start a run of the deployment, as a schedule does."""
    wait_until(lambda: bool(ask_prefect("POST", f"{api}/deployments/filter", {})), 90)
    (deployment,) = ask_prefect("POST", f"{api}/deployments/filter", {})
    body = {"parameters": {"config": str(project / "config.yaml"), "input": str(project / "data")}}
    return str(ask_prefect("POST", f"{api}/deployments/{deployment['id']}/create_flow_run", body)["id"])


@pytest.mark.campaign
@pytest.mark.timeout(400)
def test_a_deployment_run_notifies_when_suspended_failed_dead_stopped_or_unstarted(
    commands: Commands, announced: Receiver, api: str, project: Path, fhir: Fhir, monkeypatch: pytest.MonkeyPatch
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
        fhir.faults({"action": "delay", "method": "POST", "times": None, "seconds": 1})
        assert commands("pipeline", "continue", "config.yaml", last, "--approve").code == 0
        wait_until(lambda: "step 3 send begins" in (commands.cwd / "jobs" / last / "job.log").read_text(), 120)
        served.terminate()
        served.wait(timeout=60)
        wait_until(lambda: announced.of(last) == ["Suspended", "Stopped"], 60)
        assert announced.last(last) == ("send", "stopped by SIGTERM")
        never = start(api, project)
        late = {"state": {"type": "SCHEDULED", "name": "Late"}}  # as Prefect's service does after an hour
        ask_prefect("POST", f"{api}/flow_runs/{never}/set_state", late)
        wait_until(lambda: announced.of(never) == ["Late"], 60)
        assert announced.last(never) == ("", "no worker has taken it up")
        behind = start(api, project)
        waits = {"state": {"type": "SCHEDULED", "name": "AwaitingConcurrencySlot"}}
        ask_prefect("POST", f"{api}/flow_runs/{behind}/set_state", waits)
        monkeypatch.setattr("flows.job.running.sweep.LATE", timedelta(0))
        for _ in range(2):  # two workers
            with PrefectApi(address_of(api)) as prefect:
                told = list(Sweep(prefect).run_once("tell"))
            assert any(line.startswith(f"job {behind}: does not run") for line in told)
        wait_until(lambda: announced.of(behind) == ["Late"], 60)
        assert announced.last(behind) == ("", "it waits for another run of its deployment to end")
        for _ in (never, behind):
            announced.calls.pop()  # their names are Prefect's until they begin
            announced.texts.pop()
        assert len(announced.calls) == 6
        nothing_but_words_of_ours(announced, project)
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
    announced.stop()
    announced.start(status=500)
    refused = commands("pipeline", "start", "config.yaml").job
    wait_until(lambda: announced.of(refused) == ["Paused"], 60)
    wait_until(lambda: 500 in [told["payload"].get("status_code") for told in events(api, EXECUTED)], 60)
    assert len(events(api, "prefect.automation.action.failed")) == 1
    assert announced.url not in json.dumps(events(api, EXECUTED))
