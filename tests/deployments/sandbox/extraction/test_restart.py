"""``kill -9`` and restart in every state (document 3 §2, "restart"; document 2, "version")."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployments.sandbox.child import SandboxChild, start_child
from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.data import DATA, DEMO_CRTDL
from deployments.sandbox.extraction.app import ExtractionOptions, extraction_service
from deployments.sandbox.options import SandboxOptions
from tests.deployments.sandbox.extraction.conftest import ExtractionServerClient, Start, progress
from tests.deployments.sandbox.extraction.pace import UnitPace
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


STANDING = {"batch_delay": "600", "maxconcurrency": "1"}
"""Settings of a server that opens its jobs but completes no unit during the test."""


@contextlib.contextmanager
def held(place: Path) -> Iterator[ExtractionServerClient]:
    """Yield a client of a server on the state of ``sandbox`` with held units, to bring jobs into a state.

    This server ends cleanly; a later one, which continues these jobs, is killed.
    """
    pace = UnitPace()
    options = ExtractionOptions(state=place / "extraction", batchsize=4, maxconcurrency=1, wait=pace)
    with serve_in_thread(extraction_service(options)) as served, ExtractionServerClient(served.url, pace) as client:
        yield client


def one_batch_done(task: Any) -> bool:
    return "extension" in task and progress(task)["batchesCompleted"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("state", ["RUNNING_GET_COHORT", "RUNNING_PROCESS_BATCH", "RUNNING_PROCESS_CORE"])
def test_unfinished_jobs_go_on_under_their_ids_and_their_versions_rise(
    sandbox: Callable[..., SandboxChild], start: Start, tmp_path: Path, state: str
) -> None:
    with held(tmp_path) as client:
        running, pending = client.submit(CRTDL), client.submit(CRTDL)
        client.reach(running, state)
    with sandbox(**STANDING) as child, ExtractionServerClient(child.urls["extraction"]) as client:
        before = {running: client.reach(running, state), pending: client.task(pending)}
        assert before[pending]["status"] == "requested"
        kill(child)
    with sandbox() as child, ExtractionServerClient(child.urls["extraction"]) as client:
        for job, task in before.items():
            assert version(client.task(job)) >= version(task)
            result = client.result(job)
            assert (result.resources, result.core) == undisturbed(start)
            assert client.task(job)["authoredOn"] == task["authoredOn"]
            assert version(client.task(job)) > version(task)


@pytest.mark.slow
def test_paused_jobs_stay_paused_and_resume_to_where_they_were(
    sandbox: Callable[..., SandboxChild], start: Start, tmp_path: Path
) -> None:
    jobs: dict[str, str] = {}
    with held(tmp_path) as client:
        for state in ("RUNNING_GET_COHORT", "RUNNING_PROCESS_BATCH", "RUNNING_PROCESS_CORE"):
            jobs[state] = client.submit(CRTDL)
            client.reach(jobs[state], state)
            if state == "RUNNING_PROCESS_BATCH":
                client.until(jobs[state], one_batch_done)
            assert client.operate(jobs[state], "pause").status_code == 200
    with sandbox() as child, ExtractionServerClient(child.urls["extraction"]) as client:
        assert {client.state(job) for job in jobs.values()} == {"PAUSED"}
        kill(child)
    with sandbox() as child, ExtractionServerClient(child.urls["extraction"]) as client:
        for state, job in jobs.items():
            task = client.task(job)
            assert task["businessStatus"]["coding"][0]["code"] == "PAUSED"
            assert "extension" not in task or progress(task)["active"] == []
            assert client.poll(job).headers["x-progress"] == "Paused"
            assert client.operate(job, "resume").json()["businessStatus"]["coding"][0]["code"] == state
            result = client.result(job)
            assert (result.resources, result.core) == undisturbed(start)


@pytest.mark.slow
def test_finished_jobs_load_unchanged_and_their_results_survive(
    sandbox: Callable[..., SandboxChild], tmp_path: Path
) -> None:
    with held(tmp_path) as client:
        completed, deleted = client.submit(CRTDL), client.submit(CRTDL)
        texts = client.result(completed).texts
        client.result(deleted)
    with sandbox(**STANDING) as child, ExtractionServerClient(child.urls["extraction"]) as client:
        assert client.delete(f"/fhir/Task/{deleted}").status_code == 204
        cancelled = client.submit(CRTDL)
        assert client.operate(cancelled, "cancel").status_code == 200
        tasks = {job: client.task(job) for job in (completed, cancelled)}
        kill(child)
    with sandbox() as child, ExtractionServerClient(child.urls["extraction"]) as client:
        assert {job: client.task(job) for job in tasks} == tasks
        assert client.result(completed).texts == texts
        assert client.poll(cancelled).status_code == 410
        assert client.poll(deleted).status_code == 404


@pytest.mark.slow
def test_finished_batches_are_not_done_again(sandbox: Callable[..., SandboxChild], tmp_path: Path) -> None:
    with held(tmp_path) as client:
        job = client.submit(CRTDL)
        client.until(job, one_batch_done)
    with sandbox(**STANDING) as child, ExtractionServerClient(child.urls["extraction"]) as client:
        client.until(job, lambda task: progress(task)["active"])
        kill(child)
    directory = tmp_path / "extraction" / "results" / job
    before = {path.name: path.stat().st_ino for path in directory.glob("*.ndjson")}
    with sandbox() as child, ExtractionServerClient(child.urls["extraction"]) as client:
        attempts = [
            batch["attempts"] for batch in client.result(job).manifest["extension"][0]["valueObject"]["batches"]
        ]
    assert attempts == [1, 1, 1]
    first = min(before, key=lambda name: (directory / name).stat().st_mtime_ns)
    assert (directory / first).stat().st_ino == before[first]


@pytest.mark.slow
def test_killed_at_random_moments_the_result_is_that_of_an_undisturbed_run(
    sandbox: Callable[..., SandboxChild], start: Start
) -> None:
    moments = random.Random(0)
    job = None
    unanswered = 0
    for _ in range(4):
        with (
            sandbox(batch_delay="0.1", maxconcurrency="2") as child,
            ExtractionServerClient(child.urls["extraction"]) as client,
        ):
            timer = threading.Timer(moments.random() * 0.4, os.kill, (child.pid, signal.SIGKILL))
            timer.start()
            try:
                job = job or client.submit(CRTDL)
                while True:
                    assert client.poll(job).status_code in (200, 202)
            except httpx.TransportError:
                unanswered += job is None
            finally:
                timer.join()
    with sandbox() as child, ExtractionServerClient(child.urls["extraction"]) as client:
        job = job or client.submit(CRTDL)
        result = client.result(job)
        assert (result.resources, result.core) == undisturbed(start)
        # A job whose kick-off was killed before the answer may exist or not.
        assert client.get("/fhir/Task").json()["total"] in range(1, unanswered + 2)
        rows = [json.loads(line)["id"] for text in result.texts.values() for line in text.splitlines()]
        assert len(rows) == len(set(rows))
