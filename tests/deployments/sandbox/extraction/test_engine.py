"""The job engine through its API: transitions, scheduling, races, temporary failures."""

from __future__ import annotations

import itertools
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from deployments.sandbox.data import DATA, DEMO_CRTDL
from deployments.sandbox.extraction.app import extraction_service
from deployments.sandbox.extraction.engine import ExtractionOptions
from deployments.sandbox.serve import serve_in_thread
from tests.conftest import ROOT
from tests.deployments.sandbox.extraction.conftest import (
    TODAY,
    Client,
    Start,
    crtdl,
    progress,
)
from tests.deployments.sandbox.extraction.pace import UnitPace
from tests.deployments.sandbox.extraction.test_task import put, version

RUNNING = ("RUNNING_GET_COHORT", "RUNNING_PROCESS_BATCH", "RUNNING_PROCESS_CORE")


def caught(client: Client, state: str, operation: str) -> tuple[str, Any]:
    """Run an operation on a job in a state; return the job and the Task in the answer."""
    job = client.submit(crtdl())
    client.reach(job, state)
    answer = client.operate(job, operation)
    assert answer.status_code == 200, answer.text
    return job, answer.json()


def complete(client: Client, job: str) -> set[str]:
    return set(client.result(job).resources)


EVERYBODY = {"Patient/a", "Patient/b", "Patient/c"}


class TestMoves:
    @pytest.mark.parametrize("state", RUNNING)
    def test_pause_and_resume_return_to_the_state_it_was_paused_from(self, slow: Client, state: str) -> None:
        job, paused = caught(slow, state, "pause")
        assert paused["status"] == "on-hold"
        assert paused["businessStatus"]["coding"][0]["code"] == "PAUSED"
        resumed = slow.operate(job, "resume")
        assert resumed.status_code == 200
        assert resumed.json()["businessStatus"]["coding"][0]["code"] == state
        assert version(resumed.json()) > version(paused)
        assert complete(slow, job) == EVERYBODY

    def test_a_batch_that_runs_while_the_job_is_paused_is_finished_and_recorded(self, slow: Client) -> None:
        job = slow.submit(crtdl())
        slow.until(job, lambda task: "extension" in task and progress(task)["active"])
        paused = slow.operate(job, "pause").json()
        done = progress(paused)["batchesCompleted"]
        task = slow.until(job, lambda task: progress(task)["batchesCompleted"] == done + 1)
        assert task["businessStatus"]["coding"][0]["code"] == "PAUSED"
        assert version(task) > version(paused)
        slow.reach(slow.submit(crtdl()), "RUNNING_GET_COHORT")  # by the worker, which is free
        assert slow.task(job) == task
        slow.operate(job, "resume")
        assert complete(slow, job) == EVERYBODY

    @pytest.mark.parametrize("state", ["PENDING", *RUNNING, "PAUSED"])
    def test_cancel_ends_a_job_in_any_state_that_is_not_final(self, slow: Client, state: str) -> None:
        if state == "PENDING":
            slow.submit(crtdl())
        if state == "PAUSED":
            job, _ = caught(slow, "RUNNING_GET_COHORT", "pause")
            task = slow.operate(job, "cancel").json()
        else:
            job, task = caught(slow, state, "cancel")
        assert (task["status"], slow.poll(job).status_code) == ("cancelled", 410)
        task = slow.task(job)
        slow.reach(slow.submit(crtdl()), "RUNNING_GET_COHORT")  # the worker is free
        assert slow.task(job) == task

    def test_409_where_the_state_does_not_allow_the_operation(self, slow: Client) -> None:
        running, pending = slow.submit(crtdl()), slow.submit(crtdl())
        slow.reach(running, "RUNNING_GET_COHORT")
        for job, operation in ((pending, "pause"), (pending, "resume"), (running, "resume")):
            before = slow.task(job)
            answer = slow.operate(job, operation)
            assert answer.status_code == 409
            assert answer.json()["issue"][0]["code"] == "conflict"
            assert version(slow.task(job)) >= version(before)
        slow.operate(running, "pause")
        assert slow.operate(running, "pause").status_code == 409

    @pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "FAILED"])
    def test_final_states_allow_none_of_them(self, start: Start, hospital: Path, tmp_path: Path, state: str) -> None:
        if state == "FAILED":
            (tmp_path / "results").write_text("")  # no directory: results cannot be written
        client = start(hospital, state=tmp_path, retry_delay=0, held=True)
        job = client.submit(crtdl())
        if state == "CANCELLED":
            client.operate(job, "cancel")
        task = client.reach(job, state)
        for operation in ("pause", "resume", "cancel"):
            assert client.operate(job, operation).status_code == 409
        assert client.task(job) == task


class TestScheduling:
    @pytest.mark.slow
    def test_high_jobs_before_normal_ones_and_older_jobs_first(self, start: Start, hospital: Path) -> None:
        seconds = itertools.count()
        client = start(hospital, maxconcurrency=1, held=True, clock=lambda: TODAY + timedelta(seconds=next(seconds)))
        _, *jobs = [client.submit(crtdl()) for _ in range(5)]
        for job in (jobs[1], jobs[3]):
            assert put(client, job, "asap", version(client.task(job))).status_code == 200
        started = {client.reach(job, "COMPLETED")["executionPeriod"]["start"]: job for job in jobs}
        assert [started[moment] for moment in sorted(started)] == [jobs[1], jobs[3], jobs[0], jobs[2]]

    def test_never_more_than_maxconcurrency_batches_at_once(self, start: Start, hospital: Path) -> None:
        client = start(hospital, batchsize=1, maxconcurrency=2, held=True)
        job = client.submit(crtdl())
        seen: set[int] = set()

        def is_done(task: Any) -> bool:
            seen.add(len(progress(task)["active"]) if "extension" in task else 0)
            return bool(task["status"] == "completed")

        client.until(job, is_done)
        assert max(seen) <= 2


class TestDelete:
    def test_204_then_404_for_task_and_status_and_the_files_are_gone(
        self, start: Start, hospital: Path, tmp_path: Path
    ) -> None:
        client = start(hospital, state=tmp_path / "state")
        result = client.extract(crtdl())
        assert (tmp_path / "state" / "results" / result.job).is_dir()
        answer = client.delete(f"/fhir/Task/{result.job}")
        assert (answer.status_code, answer.content) == (204, b"")
        assert not (tmp_path / "state" / "results" / result.job).exists()
        assert client.poll(result.job).status_code == 404
        assert client.get(f"/fhir/Task/{result.job}").status_code == 404
        assert client.delete(f"/fhir/Task/{result.job}").status_code == 404
        assert client.get("/fhir/Task").json()["total"] == 0

    @pytest.mark.parametrize("state", ["PENDING", *RUNNING, "PAUSED"])
    def test_it_is_synchronous_also_while_the_job_runs(
        self, start: Start, hospital: Path, tmp_path: Path, state: str
    ) -> None:
        client = start(hospital, state=tmp_path / "state", maxconcurrency=1, held=True)
        if state == "PENDING":
            client.submit(crtdl())
        job = client.submit(crtdl())
        client.reach(job, "RUNNING_GET_COHORT" if state == "PAUSED" else state)
        if state == "PAUSED":
            client.operate(job, "pause")
        # Running units are held for ever, so this tests that they are interrupted.
        assert client.delete(f"/fhir/Task/{job}").status_code == 204
        assert client.poll(job).status_code == 404
        assert not (tmp_path / "state" / "results" / job).exists()


class TestTemporaryFailure:
    """The results cannot be written: a file is where their directory should be."""

    @pytest.fixture
    def blocked(self, tmp_path: Path) -> Path:
        place = tmp_path / "state" / "results"
        place.parent.mkdir()
        place.write_text("")
        return place

    def test_it_is_503_and_repeated_by_itself_and_the_job_completes_with_warnings(
        self, start: Start, hospital: Path, blocked: Path
    ) -> None:
        client = start(hospital, state=blocked.parent, retry_delay=0.5)
        job = client.submit(crtdl())
        assert client.reach(job, "TEMP_FAILED")["status"] == "on-hold"
        blocked.unlink()
        result = client.result(job)
        assert set(result.resources) == EVERYBODY
        issues = result.extension("extractor-job-issues")
        assert issues is not None
        assert {issue["severity"] for issue in issues["valueObject"]} == {"WARNING"}
        assert str(blocked) not in str(issues)

    def test_the_fifth_try_is_the_last_then_the_job_has_failed(
        self, start: Start, hospital: Path, blocked: Path
    ) -> None:
        client = start(hospital, state=blocked.parent, retry_delay=0)
        job = client.submit(crtdl())
        assert client.reach(job, "FAILED")["status"] == "failed"
        answer = client.poll(job)
        assert answer.status_code == 500
        texts = [issue["diagnostics"] for issue in answer.json()["issue"]]
        assert [text.partition(" failed")[0] for text in texts[:4]] == [f"Attempt {n} of 5" for n in (1, 2, 3, 4)]
        assert texts[4].startswith("The job failed after 5 attempts")

    def test_it_can_be_cancelled_and_deleted_only(self, start: Start, hospital: Path, blocked: Path) -> None:
        client = start(hospital, state=blocked.parent, retry_delay=600)
        first, second = client.submit(crtdl()), client.submit(crtdl())
        for job in (first, second):
            client.reach(job, "TEMP_FAILED")
            statuses = [client.poll(job), client.operate(job, "pause"), client.operate(job, "resume")]
            assert [answer.status_code for answer in statuses] == [503, 409, 409]
        assert client.operate(first, "cancel").status_code == 200
        assert client.delete(f"/fhir/Task/{second}").status_code == 204

    def test_results_that_cannot_be_removed_are_500_and_the_job_stays(
        self, start: Start, hospital: Path, tmp_path: Path
    ) -> None:
        client = start(hospital, state=tmp_path / "state")
        job = client.extract(crtdl()).job
        place = tmp_path / "state" / "results" / job
        place.rename(tmp_path / "away")
        place.write_text("")  # no directory: it cannot be removed as one
        assert client.delete(f"/fhir/Task/{job}").status_code == 500
        assert client.state(job) == "COMPLETED"


class TestRestart:
    def test_ids_results_and_versions_survive_and_a_paused_job_stays_paused(
        self, start: Start, hospital: Path, tmp_path: Path
    ) -> None:
        options: dict[str, Any] = {"batchsize": 1, "maxconcurrency": 1, "clock": lambda: TODAY}
        made = ExtractionOptions(hospital, tmp_path / "state", wait=(pace := UnitPace()), **options)
        with serve_in_thread(extraction_service(made)) as served, Client(served.url, pace) as client:
            done, paused, running, pending = (client.submit(crtdl()) for _ in range(4))
            client.reach(done, "COMPLETED")
            client.reach(paused, "RUNNING_PROCESS_BATCH")
            client.operate(paused, "pause")
            client.until(running, lambda task: "extension" in task and progress(task)["batchesCompleted"] == 1)
            before = {job: client.task(job) for job in (done, paused)}
            files = client.result(done).texts
        again = start(hospital, state=tmp_path / "state", **options)
        assert (again.task(done), again.state(paused)) == (before[done], "PAUSED")
        assert version(again.task(paused)) >= version(before[paused])
        assert again.result(done).texts == files
        again.operate(paused, "resume")
        for job in (paused, running, pending):
            assert complete(again, job) == EVERYBODY

    def test_kill_9_at_any_moment_loses_no_job(self, start: Start, tmp_path: Path) -> None:
        program = [sys.executable, "-m", "flows.run", "sandbox", "--state", str(tmp_path)]
        settings = ["--set", "batchsize=2", "--set", "maxconcurrency=2", "--set", "batch_delay=0.1"]
        process = subprocess.Popen([*program, *settings], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        with process, Client(lines[2].split()[1]) as client:
            jobs = [client.submit(DEMO_CRTDL.read_bytes()) for _ in range(3)]
            client.until(jobs[0], lambda task: "extension" in task and progress(task)["batchesCompleted"] > 1)
            process.kill()
        expected = start(DATA).extract(DEMO_CRTDL.read_bytes()).resources
        again = start(DATA, state=tmp_path / "extraction")
        assert [again.result(job).resources == expected for job in jobs] == [True] * 3
