"""A run of a deployment: started from outside, parked, resumed by the API."""

import json

import pytest

from tests.conftest import ask_prefect, own_name, wait_until
from tests.e2e.machines import WorkerProcess, deployment

pytestmark = pytest.mark.e2e


@pytest.fixture
def deployed(sluice, prefect_api):
    """Yield the id of a deployment whose runs a worker takes."""
    pool = f"pool-{own_name(sluice.cwd)}"
    created = deployment(prefect_api, pool, sluice.cwd)
    worker = WorkerProcess.start(sluice, prefect_api, pool, "one")
    worker.ready()
    yield created
    worker.stop()


@pytest.mark.timeout(240)
def test_a_wait_parks_the_deployed_run_and_the_api_resumes_it(sluice, deployed, project, fhir, prefect_api):
    parameters = {"config": str(project / "config.yaml"), "input": str(project / "data")}
    create = f"{prefect_api}/deployments/{deployed}/create_flow_run"
    job = ask_prefect("POST", create, {"parameters": parameters})["id"]

    wait_until(lambda: sluice.status(job)["state"] == "waiting", 150)
    url = f"{prefect_api}/flow_runs/{job}"
    asked = ask_prefect("GET", url)["state"]
    assert ask_prefect("POST", f"{url}/resume", {"run_input": {"approved": True}})["status"] == "REJECT"
    # Somebody sets the run going without an answer: it waits again, and says so.
    ask_prefect("POST", f"{url}/set_state", {"state": {"type": "SCHEDULED", "name": "Resuming"}, "force": True})

    def again():
        now = ask_prefect("GET", url)["state"]
        return now if now["id"] != asked["id"] and now["name"] == "Suspended" else None

    wait_until(again, 150)
    assert "continued without a decision" in (project / "jobs" / job / "job.log").read_text()
    waiting = sluice.status(job)
    assert (waiting["state"], "without a decision" in waiting["waiting"]["reason"]) == ("waiting", True)
    assert fhir.total() == 0

    answer = {"decision": "release", "by": "Anna", "comment": "from the API"}
    assert ask_prefect("POST", f"{url}/resume", {"run_input": answer})["status"] == "ACCEPT"
    wait_until(lambda: sluice.status(job)["state"] == "completed", 150)
    assert fhir.total() == 19
    text = sluice.here("pipeline", "status", "config.yaml", job).out
    assert "step 2 was approved by Anna in the Prefect UI or through its API" in text
    run = ask_prefect("GET", f"{prefect_api}/flow_runs/{job}")
    assert run["name"].startswith("config ")
    rows = json.loads(sluice.here("job", "list", "config.yaml", "--json").out)
    assert [row["id"] for row in rows] == [job]
    directory = project / "jobs" / job
    for path in (directory, *directory.rglob("*")):  # whatever the umask of the worker is
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
