"""``kill -9`` and restart in every state (document 3 §2, "restart"; document 2, "version")."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployments.sandbox.child import SandboxChild, start_child
from deployments.sandbox.data import DATA, DEMO_CRTDL
from deployments.sandbox.extraction.app import ExtractionOptions, extraction_service
from deployments.sandbox.extraction.store import JobStore
from deployments.sandbox.options import SandboxOptions
from deployments.sandbox.serve import SandboxStartError, serve_in_thread
from tests.deployments.sandbox.extraction.conftest import Client, Start, crtdl, progress
from tests.deployments.sandbox.extraction.test_task import version

CRTDL = DEMO_CRTDL.read_bytes()


@pytest.fixture
def sandbox(tmp_path: Path) -> Callable[..., SandboxChild]:
    def begin(**settings: str) -> SandboxChild:
        return start_child(SandboxOptions(state=tmp_path, settings={"batchsize": "4"} | settings))

    return begin


def kill(child: SandboxChild) -> None:
    os.kill(child.pid, signal.SIGKILL)
    child.stop()


def undisturbed(start: Start) -> tuple[dict[str, Any], dict[str, Any]]:
    result = start(DATA, batchsize=4).extract(CRTDL)
    return result.resources, result.core


SLOW = {"batch_delay": "0.4", "maxconcurrency": "1"}


@pytest.mark.parametrize("state", ["PENDING", "RUNNING_GET_COHORT", "RUNNING_PROCESS_BATCH", "RUNNING_PROCESS_CORE"])
def test_an_unfinished_job_goes_on_under_its_id_and_its_versions_rise(
    sandbox: Callable[..., SandboxChild], start: Start, state: str
) -> None:
    with sandbox(**SLOW) as child, Client(child.urls["extraction"]) as client:
        if state == "PENDING":
            client.submit(CRTDL)
        job = client.submit(CRTDL)
        before = client.reach(job, state)
        kill(child)
    with sandbox() as child, Client(child.urls["extraction"]) as client:
        assert version(client.task(job)) >= version(before)
        result = client.result(job)
        assert (result.resources, result.core) == undisturbed(start)
        assert client.task(job)["authoredOn"] == before["authoredOn"]


def test_a_paused_job_stays_paused_and_resumes_to_where_it_was(
    sandbox: Callable[..., SandboxChild], start: Start
) -> None:
    with sandbox(**SLOW) as child, Client(child.urls["extraction"]) as client:
        job = client.submit(CRTDL)
        client.until(job, lambda task: "extension" in task and progress(task)["batchesCompleted"] == 1)
        client.operate(job, "pause")
        kill(child)
    with sandbox() as child, Client(child.urls["extraction"]) as client:
        task = client.task(job)
        assert task["businessStatus"]["coding"][0]["code"] == "PAUSED"
        assert progress(task)["active"] == []
        assert client.poll(job).headers["x-progress"] == "Paused"
        assert client.operate(job, "resume").json()["businessStatus"]["coding"][0]["code"] == "RUNNING_PROCESS_BATCH"
        result = client.result(job)
        assert (result.resources, result.core) == undisturbed(start)


def test_finished_jobs_load_unchanged_and_their_results_survive(sandbox: Callable[..., SandboxChild]) -> None:
    with sandbox() as child, Client(child.urls["extraction"]) as client:
        completed = client.submit(CRTDL)
        texts = client.result(completed).texts
        deleted = client.submit(CRTDL)
        client.result(deleted)
        client.delete(f"/fhir/Task/{deleted}")
        cancelled = client.submit(CRTDL)
        client.operate(cancelled, "cancel")
        tasks = {job: client.task(job) for job in (completed, cancelled)}
        kill(child)
    with sandbox() as child, Client(child.urls["extraction"]) as client:
        assert {job: client.task(job) for job in tasks} == tasks
        assert client.result(completed).texts == texts
        assert client.poll(cancelled).status_code == 410
        assert client.poll(deleted).status_code == 404


def test_a_temporarily_failed_job_is_tried_again(tmp_path: Path, start: Start, hospital: Path) -> None:
    state, away = tmp_path / "state", tmp_path / "away"
    options = ExtractionOptions(data=hospital, state=state, retry_delay=60)
    with serve_in_thread(extraction_service(options)) as served, Client(served.url) as client:
        (hospital / "data.ndjson").rename(away)
        job = client.submit(crtdl())
        before = client.reach(job, "TEMP_FAILED")
    away.rename(hospital / "data.ndjson")
    result = start(hospital, state=state).result(job)
    assert set(result.resources) == {"Patient/a", "Patient/b", "Patient/c"}
    assert version(result.client.task(job)) > version(before)


def test_finished_batches_are_not_done_again(sandbox: Callable[..., SandboxChild], tmp_path: Path) -> None:
    with sandbox(**SLOW) as child, Client(child.urls["extraction"]) as client:
        job = client.submit(CRTDL)
        client.until(job, lambda task: "extension" in task and progress(task)["batchesCompleted"] == 1)
        kill(child)
    directory = tmp_path / "extraction" / "results" / job
    before = {path.name: path.stat().st_ino for path in directory.glob("*.ndjson")}
    with sandbox() as child, Client(child.urls["extraction"]) as client:
        attempts = [
            batch["attempts"] for batch in client.result(job).manifest["extension"][0]["valueObject"]["batches"]
        ]
    assert attempts == [1, 1, 1]
    first = min(before, key=lambda name: (directory / name).stat().st_mtime_ns)
    assert (directory / first).stat().st_ino == before[first]


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_moments_the_result_is_that_of_an_undisturbed_run(
    sandbox: Callable[..., SandboxChild], start: Start, seed: int
) -> None:
    moments = random.Random(seed)
    job = None
    for _ in range(4):
        with sandbox(batch_delay="0.1", maxconcurrency="2") as child, Client(child.urls["extraction"]) as client:
            timer = threading.Timer(moments.random() * 0.4, os.kill, (child.pid, signal.SIGKILL))
            timer.start()
            try:
                job = job or client.submit(CRTDL)
                while True:
                    assert client.poll(job).status_code in (200, 202)
            except httpx.TransportError:
                timer.join()
    with sandbox() as child, Client(child.urls["extraction"]) as client:
        job = job or client.submit(CRTDL)
        result = client.result(job)
        assert (result.resources, result.core) == undisturbed(start)
        assert client.get("/fhir/Task").json()["total"] == 1
        rows = [json.loads(line)["id"] for text in result.texts.values() for line in text.splitlines()]
        assert len(rows) == len(set(rows))


def test_a_second_server_on_the_same_state_is_refused(start: Start, hospital: Path, tmp_path: Path) -> None:
    start(hospital, state=tmp_path / "state")
    with pytest.raises(SandboxStartError, match="in use"):
        JobStore(tmp_path / "state")
