"""Examples on the pages for operators: server, deployment, workers, script, nightly jobs, and the life of a job."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.fhir.app import fhir_service
from tests.conftest import ROOT, Ran, seed, wait_until
from tests.docs.pages import example, read
from tests.e2e.docs.place import ExamplePlace
from tests.peers.sandbox import Sandboxed

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(400)]


@pytest.fixture
def place(tmp_path: Path, migrated_database: Path) -> Iterator[ExamplePlace]:
    """Yield the first configuration and data, a FHIR server, and a Prefect database that needs no migration."""
    seed(tmp_path / "jobs", migrated_database)
    with serve_in_thread(fhir_service()) as served:
        place = ExamplePlace(tmp_path, None, fhir=served.url, config="first.yaml")
        # A worker looks for runs every ten seconds otherwise.
        place.environment |= {"PREFECT_WORKER_QUERY_SECONDS": "1", "PREFECT_WORKER_HEARTBEAT_SECONDS": "5"}
        place.run(example("docs/first-job.md", "mkdir -p data").text)
        place.save("first.yaml", example("docs/first-job.md", "services:\n  local_import:").text)
        yield place


def state(place: ExamplePlace) -> str:
    return str(json.loads(place.run("sluice pipeline status CONFIG JOB --json"))["state"])


def approve(place: ExamplePlace) -> None:
    """See the job through: it waits, is approved, and completes."""
    wait_until(lambda: state(place) == "waiting", 120)
    place.run("sluice pipeline continue CONFIG JOB --approve --despite made-up")
    wait_until(lambda: state(place) == "completed", 120)


def test_the_server_runs_in_the_background_until_it_is_stopped(place: ExamplePlace) -> None:
    started, status, stopped = place.lines(example("docs/prefect-ui.md", "sluice server start first.yaml").text)
    ((link, address),) = re.findall(
        r"^Prefect UI: ((http://127\.0\.0\.1:\d+)/sluice/sign-in#[\w+/=]+)$", started, re.MULTILINE
    )
    assert link in status
    assert stopped == "the server is stopped\n"
    with pytest.raises(httpx.ConnectError):
        httpx.get(address, trust_env=False)


def test_a_deployment_is_served_and_takes_what_is_detached(place: ExamplePlace) -> None:
    server, serve, start = example("docs/prefect-ui.md", "sluice server start\npython -m").text.splitlines()
    place.run(server)
    try:
        with place.running(serve, "serving pipeline/sluice"):
            tries: list[Ran] = []

            def is_accepted() -> bool:
                tries.append(place.ran(start))
                return "error[no-deployment]" not in tries[-1].err  # served, and a moment later known to the API

            wait_until(is_accepted, 60)
            assert tries[-1].code == 0, tries[-1].err
            approve(place)
    finally:
        place.run("sluice server stop")


def test_a_worker_takes_runs_of_the_deployments_of_the_file(place: ExamplePlace) -> None:
    pool, deploy, worker = example("docs/prefect-ui.md", "prefect work-pool create").text.splitlines()
    place.save("deployments/prefect.yaml", read(ROOT / "deployments/prefect.yaml"))
    (api,) = re.findall(r"^API: (\S+)", place.run("sluice server start"), re.MULTILINE)
    place.environment["PREFECT_API_URL"] = api
    place.environment["PREFECT_API_AUTH_STRING"] = (place.directory / "jobs/.prefect/api-secret").read_text()
    try:
        place.run(pool)
        deployed = place.run(deploy)
        assert "sluice" in deployed
        assert "nightly" in deployed
        with place.running(worker, "started!"):
            place.run("sluice pipeline start first.yaml --detach")
            approve(place)
    finally:
        place.run("sluice server stop")


def test_the_script_continues_a_job_that_failed_for_now(place: ExamplePlace) -> None:
    place.environment |= {"APP_PIPELINE_ENABLED_STEPS": "local_import,send", "APP_RETRY_MAX_ATTEMPTS": "1"}
    fault = {"action": "status", "status": 503, "method": "POST", "path": "/fhir"}
    Sandboxed(place.known["fhir"]).faults(fault)
    script = place.ran(example("docs/json.md", "sluice pipeline start first.yaml --json > status.json").text)
    assert "error[service-busy]" in script.err
    assert script.code == 0, script.err
    status = json.loads((place.directory / "status.json").read_text())
    assert status["state"] == "completed"
    assert len(place.run("sluice job list CONFIG").splitlines()) == 2


def test_the_nights_of_a_crontab(place: ExamplePlace) -> None:
    place.environment |= {"APP_PIPELINE_ENABLED_STEPS": "local_import,send", "APP_REPORT_ENABLED": "false"}
    place.save("nightly.yaml", read(place.directory / "first.yaml"))
    lines = example("docs/nightly.md", "PATH=/srv/sluice/.venv/bin").text.splitlines()
    night, morning, weekend = (
        line.split(maxsplit=5)[5].replace("cd /srv/sluice", f"cd {place.directory}") for line in lines[2:]
    )
    for line in (night, morning, weekend):
        assert place.ran(line) == Ran(0, "", "")  # what cron would mail
    (job,) = json.loads(place.run("sluice job list nightly.yaml --json"))  # not a month old
    assert job["state"] == "completed"
    assert "error[input-not-found]" in place.ran(f"{night} --dir nowhere").err


def test_room_is_made_by_a_prune(place: ExamplePlace) -> None:
    place.environment["APP_PIPELINE_ENABLED_STEPS"] = "local_import,send"
    place.run("sluice pipeline start CONFIG")
    dry, prune = example("docs/disk.md", "sluice job prune CONFIG").text.replace("P30D", "0s").splitlines()
    place.run(dry)
    assert len(json.loads(place.run("sluice job list CONFIG --json"))) == 1
    place.run(prune)
    assert json.loads(place.run("sluice job list CONFIG --json")) == []
    assert not [path for path in (place.directory / "jobs").iterdir() if not path.name.startswith(".")]


def test_the_commands_of_a_job_s_life(place: ExamplePlace) -> None:
    place.run("sluice config check FILE")
    assert json.loads(place.run("sluice config schema"))["properties"]
    assert "retry.max_attempts" in place.run("sluice config show FILE")
    rows = json.loads(place.run("sluice config show CONFIG --json"))
    assert {"key", "value", "source"} == set(rows[0])
    assert "no server runs" in place.ran("sluice server status").out

    place.run("sluice server start")
    assert "wait: waiting for approval" in place.run("sluice pipeline start CONFIG")
    assert "waiting" in place.run("sluice pipeline status CONFIG JOB")
    assert "waiting" in place.run("sluice pipeline status CONFIG JOB --watch")
    assert "nothing is decided" in place.run("sluice pipeline continue CONFIG JOB")
    assert "send: complete" in place.run("sluice pipeline continue CONFIG JOB --approve --despite made-up")
    assert json.loads(place.run("sluice job list CONFIG --json"))[0]["state"] == "completed"
    place.known["step"] = "send"
    refused = place.ran("sluice job run CONFIG JOB --step STEP")
    assert refused.code == 2
    assert "error[step-complete]" in refused.err
    assert "send: complete" in place.run("sluice job run CONFIG JOB --step STEP --force")
    place.run("sluice job prune CONFIG --older-than P30D")
    place.run("sluice job prune CONFIG --older-than 1s --dry-run")
    place.run("sluice job delete CONFIG JOB")
    assert json.loads(place.run("sluice job list CONFIG --json")) == []
    place.run("sluice server stop")
