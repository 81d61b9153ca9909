"""The Prefect server goes away under a running job, and comes back, or not."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows.prefect import runs, server
from flows.prefect.api import PrefectApi
from tests.conftest import ROOT, Commands, address_of, kill, started, wait_until
from tests.peers.bridge import Bridge
from tests.peers.project import Fhir, many_transactions

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TRANSACTIONS = 10 + 10 + 10 + 1
"""30 resources a file, 3 a transaction, and the one of ``core.ndjson``."""

IMPATIENT = "import flows.prefect.api\nflows.prefect.api.JOB_SECONDS = 4.0\n"
"""Code for the start of a process that does not do without the server for long."""


class SlowBridge(Bridge):
    """A bridge that delays every transaction by so many seconds."""

    pause = 0.5

    def passes(self, method: str, path: str, upstream: Any) -> bool:
        if method == "POST":
            threading.Event().wait(self.pause)
        return super().passes(method, path, upstream)


@pytest.fixture
def between(fhir: Fhir) -> Iterator[SlowBridge]:
    made = SlowBridge(fhir.url)
    yield made
    made.close()


def killed(sluice: Commands) -> int:
    """``kill -9`` for the server of the jobs directory; return its port."""
    found = server.known(sluice.cwd / "jobs/.prefect")
    assert found is not None
    kill(found.pid)
    return found.port


def test_a_job_goes_on_while_the_server_is_away_and_is_recorded_when_it_is_back(
    sluice_alone: Commands, fhir: Fhir, between: SlowBridge, tmp_path: Path
) -> None:
    many_transactions(tmp_path, between.url)
    child = sluice_alone.start("pipeline", "start", "config.yaml", "--no-progress")
    job = started(child)
    wait_until(lambda: len(fhir.posts()) >= 3, 120)
    port = killed(sluice_alone)
    wait_until(lambda: len(fhir.posts()) == TRANSACTIONS, 150)  # the step needs no server
    said = ""
    while "if it does not run, start it" not in said:
        assert child.poll() is None
        said += child.stderr.readline()
    assert sluice_alone("server", "start").code == 0
    assert (found := server.known(tmp_path / "jobs/.prefect")) is not None
    assert found.port == port
    err = said + child.communicate(timeout=120)[1]
    assert child.returncode == 0, err
    start = rf"APP_JOBS_DIR={tmp_path / 'jobs'} \S*sluice server start\n"
    assert re.search(rf"waiting for the Prefect server at \S+\n  if it does not run, start it: {start}", err), err
    assert "Traceback" not in err
    assert len(fhir.posts()) == TRANSACTIONS
    status = sluice_alone.status(job)
    assert status["state"] == "completed"
    assert [step["state"] for step in status["steps"]] == ["completed", "completed"]


def test_a_lasting_outage_ends_the_job_with_3_and_continue_goes_on(
    sluice_alone: Commands, fhir: Fhir, between: SlowBridge, tmp_path: Path
) -> None:
    many_transactions(tmp_path, between.url)
    (tmp_path / "impatient").mkdir()
    (tmp_path / "impatient/sitecustomize.py").write_text(IMPATIENT)
    env = {"PYTHONPATH": f"{tmp_path / 'impatient'}:{ROOT}"}
    child = sluice_alone.start("pipeline", "start", "config.yaml", "--no-progress", env=env)
    job = started(child)
    wait_until(lambda: len(fhir.posts()) >= 3, 120)
    killed(sluice_alone)
    between.pause = 0.0
    _, err = child.communicate(timeout=120)
    assert child.returncode == 3, err
    assert "error[prefect-unreachable]" in err
    assert "Traceback" not in err
    assert sluice_alone.status(job)["state"] == "interrupted"
    went_on = sluice_alone("pipeline", "continue", "config.yaml", job)
    assert went_on.code == 0, went_on.err
    assert len(fhir.posts()) == TRANSACTIONS  # nothing was sent twice


def test_a_hundred_label_writes_beside_finishing_tasks_do_not_fail(prefect_api: str) -> None:
    @task
    def step(number: int) -> int:
        return number

    @flow
    def busy() -> None:
        for number in range(60):
            step(number)

    failed: list[Exception] = []
    here = {PREFECT_API_URL: prefect_api, PREFECT_API_AUTH_STRING: os.environ["PREFECT_API_AUTH_STRING"]}
    with temporary_settings(here):
        run = runs.create(busy, name="busy", parameters={})

    def write() -> None:
        with PrefectApi(address_of(prefect_api)) as api:
            for number in range(100):
                try:
                    api.set_labels(run, {"job.progress": str(number)})
                except Exception as error:
                    failed.append(error)

    writing = threading.Thread(target=write)
    writing.start()
    with temporary_settings(here):
        runs.execute(busy, run)
    writing.join()
    assert failed == []
    with PrefectApi(address_of(prefect_api)) as api:
        assert ((api.read_run(run) or {})["labels"])["job.progress"] == "99"
