"""The Logs tab of a run in the Prefect UI: our lines, and ours the last (issue 16, number 5)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.engine.flow_runs import run_deployment
from flows.prefect.api import PrefectApi
from tests.conftest import Commands, address_of, ask_prefect, own_name, wait_until
from tests.e2e.machines import WorkerProcess, deployment
from tests.peers.project import Fhir

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

Start = Callable[[dict[str, Any]], str]


@contextlib.contextmanager
def a_worker(sluice: Commands, api: str) -> Iterator[Start]:
    pool = f"pool-{own_name(sluice.cwd)}"
    deployed = deployment(api, pool, sluice.cwd)
    worker = WorkerProcess.start(sluice, api, pool, "one", {})
    try:
        worker.ready()
        with PrefectApi(address_of(api)) as prefect:
            yield lambda parameters: run_deployment(prefect, deployed, parameters)
    finally:
        worker.stop()


@contextlib.contextmanager
def commands(sluice: Commands, api: str) -> Iterator[Start]:
    yield lambda parameters: sluice("pipeline", "start", parameters["config"]).job


def log_of(api: str, job: str) -> list[dict[str, Any]]:
    wanted = {"logs": {"flow_run_id": {"any_": [job]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
    return list(ask_prefect("POST", f"{api}/logs/filter", wanted))


@pytest.mark.parametrize("kind", [commands, a_worker], ids=["command", "worker"])
def test_the_logs_of_a_run_have_the_job_log_and_its_end_as_the_last_line(
    sluice: Commands, project: Path, fhir: Fhir, prefect_api: str, kind: Callable[..., Any]
) -> None:
    ok, refused = project / "config.yaml", project / "refused.yaml"
    refused.write_text(ok.read_text().replace("local_import, wait, send", "local_import, send"))
    fhir.faults({"action": "status", "method": "POST", "status": 403, "times": None})
    with kind(sluice, prefect_api) as start:
        failed = start({"config": str(refused)})
        wait_until(lambda: sluice.status(failed, refused)["state"] == "failed", 120)
        waits = start({"config": str(ok)})
        wait_until(lambda: sluice.status(waits, ok)["state"] == "waiting", 120)
        check(prefect_api, project, waits, "the job waits at step 2 for a person's decision")
        answer = {"decision": "reject", "by": "Anna", "comment": ""}
        ask_prefect("POST", f"{prefect_api}/flow_runs/{waits}/resume", {"run_input": answer})
        if kind is commands:
            assert sluice("pipeline", "continue", "config.yaml", waits).code in {0, 1}
        wait_until(lambda: sluice.status(waits, ok)["state"] == "cancelled", 120)
        if kind is not commands:  # there the command says it, and the log of the job
            check(prefect_api, project, waits, "the job is cancelled: rejected by Anna in the Prefect UI")
        check(prefect_api, project, failed, "the job is failed: ", "in step send; continue with: ")


def check(api: str, project: Path, job: str, *last: str) -> None:
    wait_until(lambda: any(last[0] in one["message"] for one in log_of(api, job)), 60)
    lines = log_of(api, job)
    ours = [one["message"] for one in lines if one["name"].startswith("sluice")]
    log = (project / "jobs" / job / "job.log").read_text()
    said = [line.split(" ", 2)[2] for line in log.splitlines() if not line.startswith(" ")]
    assert [one.splitlines()[0] for one in ours] == said
    assert not [one for one in lines if "Traceback" in one["message"]]
    assert not [one for one in lines if one["level"] >= 40 and not one["name"].startswith("sluice")]
    after = [one["message"] for one in lines]
    assert all(text in after[-1] for text in last), after[-3:]
