"""A run through a served deployment: started from outside, parked, resumed by the API (issue 1; 4-product.md §4)."""

import json
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ask_prefect, own_name, wait_until
from tests.peers.project import allowed

pytestmark = pytest.mark.e2e


@pytest.fixture
def served(sluice):
    """``python -m deployments.serve`` against the shared Prefect server."""
    environment = sluice.environment | {"PYTHONUNBUFFERED": "1", "PREFECT_RUNNER_POLL_FREQUENCY": "1"}
    log = (sluice.cwd / "serve.log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "deployments.serve", "--name", own_name(sluice.cwd)],
        cwd=sluice.cwd, env=environment, stdout=log, stderr=log,
    )  # fmt: skip
    wait_until(lambda: "serving pipeline/" in (sluice.cwd / "serve.log").read_text(), 120)
    yield process
    process.terminate()
    process.wait(timeout=60)
    log.close()


def deployment(prefect_api, name):
    """The id of the served deployment, once it is there."""
    found = ask_prefect("POST", f"{prefect_api}/deployments/filter", {"deployments": {"name": {"any_": [name]}}})
    return found[0]["id"] if found else None


@pytest.mark.timeout(240)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_serves_stops_its_runs_between_two_files_before_it_goes(
    sluice, served, project, fhir, prefect_api, number
):
    name = own_name(sluice.cwd)
    wait_until(lambda: deployment(prefect_api, name) is not None, 60)
    fhir.faults({"action": "delay", "method": "POST", "times": None, "seconds": 0.5})
    overrides = ["pipeline.enabled_steps=[local_import, send]", "services.send.batch_size=1"]
    parameters = {
        "config": str(project / "config.yaml"), "input": str(project / "data"), "overrides": overrides,
    }  # fmt: skip
    create = f"{prefect_api}/deployments/{deployment(prefect_api, name)}/create_flow_run"
    job = ask_prefect("POST", create, {"parameters": parameters})["id"]
    wait_until(lambda: fhir.total() > 0, 90)
    began = time.monotonic()
    served.send_signal(number)
    served.wait(timeout=60)
    assert time.monotonic() - began < allowed(15)
    run = ask_prefect("GET", f"{prefect_api}/flow_runs/{job}")
    assert (run["state_type"], run["state_name"]) == ("CRASHED", "Stopped")
    assert 0 < fhir.total() < 19
    assert run["name"].startswith("config ")
    assert "RuntimeWarning" not in (sluice.cwd / "serve.log").read_text()


@pytest.mark.timeout(240)
def test_a_wait_parks_the_deployed_run_and_the_api_resumes_it(sluice, served, project, fhir, prefect_api):
    name = own_name(sluice.cwd)
    wait_until(lambda: deployment(prefect_api, name) is not None, 60)
    parameters = {"config": str(project / "config.yaml"), "input": str(project / "data")}
    job = ask_prefect(
        "POST", f"{prefect_api}/deployments/{deployment(prefect_api, name)}/create_flow_run", {"parameters": parameters}
    )["id"]

    wait_until(lambda: sluice.status(job)["state"] == "waiting", 90)
    url = f"{prefect_api}/flow_runs/{job}"
    asked = ask_prefect("GET", url)["state"]
    assert ask_prefect("POST", f"{url}/resume", {"run_input": {"approved": True}})["status"] == "REJECT"
    # Somebody sets the run going without an answer: it waits again, and says so.
    ask_prefect("POST", f"{url}/set_state", {"state": {"type": "SCHEDULED", "name": "Resuming"}, "force": True})

    def again():
        now = ask_prefect("GET", url)["state"]
        return now if now["id"] != asked["id"] and now["name"] == "Suspended" else None

    wait_until(again, 90)
    assert again()["message"].startswith("resumed without a decision; step 2 waits for a decision")
    assert "resumed without a decision" in (project / "jobs" / job / "job.log").read_text()
    assert sluice.status(job)["state"] == "waiting"
    assert fhir.total() == 0

    answer = {"decision": "release", "by": "Anna", "comment": "from the API"}
    assert ask_prefect("POST", f"{url}/resume", {"run_input": answer})["status"] == "ACCEPT"
    wait_until(lambda: sluice.status(job)["state"] == "completed", 90)
    assert fhir.total() == 19
    text = sluice.here("pipeline", "status", "config.yaml", job).out
    assert "step 2 was approved by Anna in the Prefect UI or through its API" in text
    run = ask_prefect("GET", f"{prefect_api}/flow_runs/{job}")
    assert run["name"].startswith("config ")
    rows = json.loads(sluice.here("job", "list", "config.yaml", "--json").out)
    assert [row["id"] for row in rows] == [job]
