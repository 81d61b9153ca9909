"""The job engine through its API: transitions, scheduling, races, temporary failures (document 2; document 3 §2)."""

from __future__ import annotations

import itertools
import shutil
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until
from tests.deployments.sandbox.extraction.conftest import (
    TODAY,
    ExtractionServerClient,
    Start,
    crtdl,
    parameters,
    progress,
)
from tests.deployments.sandbox.extraction.test_task import put, version


@pytest.fixture
def slow(start: Start, hospital: Path) -> ExtractionServerClient:
    return start(hospital, batchsize=1, maxconcurrency=1, held=True)


RUNNING = ("RUNNING_GET_COHORT", "RUNNING_PROCESS_BATCH", "RUNNING_PROCESS_CORE")


def caught(client: ExtractionServerClient, state: str, operation: str) -> tuple[str, Any]:
    """Run an operation on a job in a state; return the job and the Task in the answer."""
    job = client.submit(crtdl())
    client.reach(job, state)
    answer = client.operate(job, operation)
    assert answer.status_code == 200, answer.text
    return job, answer.json()


def complete(client: ExtractionServerClient, job: str) -> set[str]:
    return set(client.result(job).resources)


EVERYBODY = {"Patient/a", "Patient/b", "Patient/c"}


class TestMoves:
    def test_a_job_goes_through_its_states_in_order_and_each_change_is_a_version(
        self, slow: ExtractionServerClient
    ) -> None:
        job = slow.submit(crtdl())
        states: list[str] = []
        versions: list[int] = []

        def record_state(task: Any) -> bool:
            state = task["businessStatus"]["coding"][0]["code"]
            if state not in states:
                states.append(state)
            if version(task) not in versions:
                versions.append(version(task))
            return bool(state == "COMPLETED")

        slow.until(job, record_state)
        assert [state for state in states if state != "PENDING"] == [*RUNNING, "COMPLETED"]
        assert versions == sorted(versions)

    @pytest.mark.parametrize("state", RUNNING)
    def test_pause_and_resume_return_to_the_state_it_was_paused_from(
        self, slow: ExtractionServerClient, state: str
    ) -> None:
        job, paused = caught(slow, state, "pause")
        assert paused["status"] == "on-hold"
        assert paused["businessStatus"]["coding"][0]["code"] == "PAUSED"
        resumed = slow.operate(job, "resume")
        assert resumed.status_code == 200
        assert resumed.json()["businessStatus"]["coding"][0]["code"] == state
        assert version(resumed.json()) > version(paused)
        assert complete(slow, job) == EVERYBODY

    def test_a_batch_that_runs_while_the_job_is_paused_is_finished_and_recorded(
        self, slow: ExtractionServerClient
    ) -> None:
        job = slow.submit(crtdl())
        slow.until(job, lambda task: "extension" in task and progress(task)["active"])
        paused = slow.operate(job, "pause").json()
        done = progress(paused)["batchesCompleted"]
        task = slow.until(job, lambda task: progress(task)["batchesCompleted"] == done + 1)
        assert task["businessStatus"]["coding"][0]["code"] == "PAUSED"
        assert version(task) > version(paused)
        time.sleep(0.2)  # more than a free worker takes: nothing else begins
        assert slow.task(job) == task
        slow.operate(job, "resume")
        assert complete(slow, job) == EVERYBODY

    @pytest.mark.parametrize("state", ["RUNNING_GET_COHORT", "RUNNING_PROCESS_CORE"])
    def test_the_cohort_query_and_the_core_pass_are_finished_while_paused_too(
        self, slow: ExtractionServerClient, state: str
    ) -> None:
        job, paused = caught(slow, state, "pause")
        before = version(paused)
        slow.until(job, lambda task: version(task) > before)
        assert slow.state(job) == "PAUSED"
        assert slow.operate(job, "resume").status_code == 200
        assert complete(slow, job) == EVERYBODY

    @pytest.mark.parametrize("state", ["PENDING", *RUNNING, "PAUSED"])
    def test_cancel_ends_a_job_in_any_state_that_is_not_final(self, slow: ExtractionServerClient, state: str) -> None:
        if state == "PENDING":
            slow.submit(crtdl())
        if state == "PAUSED":
            job, _ = caught(slow, "RUNNING_GET_COHORT", "pause")
            task = slow.operate(job, "cancel").json()
        else:
            job, task = caught(slow, state, "cancel")
        assert (task["status"], slow.poll(job).status_code) == ("cancelled", 410)
        task = slow.task(job)
        time.sleep(0.2)  # more than the unit takes to see that it is given up
        assert slow.task(job) == task

    def test_409_where_the_state_does_not_allow_the_operation(self, slow: ExtractionServerClient) -> None:
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
        client = start(hospital, retry_delay=0, held=True)
        if state == "FAILED":
            shutil.move(hospital / "data.ndjson", tmp_path / "away")
        job = client.submit(crtdl())
        if state == "CANCELLED":
            client.operate(job, "cancel")
        task = client.reach(job, state)
        for operation in ("pause", "resume", "cancel"):
            assert client.operate(job, operation).status_code == 409
        assert client.task(job) == task

    def test_operations_on_what_is_not_there_are_404(self, slow: ExtractionServerClient) -> None:
        for operation in ("pause", "resume", "cancel"):
            assert slow.operate("no-uuid", operation).status_code == 404


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

    @pytest.mark.slow
    def test_a_high_job_overtakes_between_two_batches(self, start: Start, hospital: Path) -> None:
        client = start(hospital, batchsize=1, maxconcurrency=1, held=True)
        normal = client.submit(crtdl())
        client.until(normal, lambda task: "extension" in task)
        urgent = client.submit(crtdl())
        assert put(client, urgent, "stat", 0).status_code == 200
        client.reach(urgent, "COMPLETED")
        assert client.state(normal) == "RUNNING_PROCESS_BATCH"
        assert complete(client, normal) == EVERYBODY

    def test_never_more_than_maxconcurrency_batches_at_once(self, start: Start, hospital: Path) -> None:
        client = start(hospital, batchsize=1, maxconcurrency=2, held=True)
        job = client.submit(crtdl())

        def active(task: Any) -> int:
            return len(progress(task)["active"]) if "extension" in task else 0

        client.until(job, lambda task: active(task) > 0)
        wait_until(lambda: active(client.task(job)) == 2)  # both are held
        seen: set[int] = set()

        def record_active(task: Any) -> bool:
            seen.add(active(task))
            return bool(task["status"] == "completed")

        client.until(job, record_active)  # one Task is one moment
        assert max(seen) == 2


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
    @pytest.mark.slow
    def test_it_is_repeated_by_itself_and_the_job_completes_with_warnings(
        self, start: Start, hospital: Path, tmp_path: Path
    ) -> None:
        client = start(hospital, retry_delay=1)  # four times: long enough to bring the data back
        away = tmp_path / "away"
        shutil.move(hospital / "data.ndjson", away)
        job = client.submit(crtdl())
        task = client.reach(job, "TEMP_FAILED")
        assert task["status"] == "on-hold"
        shutil.move(away, hospital / "data.ndjson")
        result = client.result(job)
        assert set(result.resources) == EVERYBODY
        issues = result.extension("extractor-job-issues")
        assert issues is not None
        assert {issue["severity"] for issue in issues["valueObject"]} == {"WARNING"}
        assert str(tmp_path) not in str(issues)

    def test_the_fifth_try_is_the_last_then_the_job_has_failed(
        self, start: Start, hospital: Path, tmp_path: Path
    ) -> None:
        client = start(hospital, retry_delay=0)
        shutil.move(hospital / "data.ndjson", tmp_path / "away")
        job = client.submit(crtdl())
        client.reach(job, "FAILED")
        answer = client.poll(job)
        assert answer.status_code == 500
        texts = [issue["diagnostics"] for issue in answer.json()["issue"]]
        assert [text.partition(" failed")[0] for text in texts[:4]] == [f"Attempt {n} of 5" for n in (1, 2, 3, 4)]
        assert texts[4].startswith("The job failed after 5 attempts")

    @pytest.mark.slow
    def test_a_batch_that_fails_for_now_keeps_the_others(self, start: Start, hospital: Path, tmp_path: Path) -> None:
        client = start(hospital, batchsize=1, maxconcurrency=1, held=True, retry_delay=1)
        job = client.submit(crtdl())
        client.until(job, lambda task: "extension" in task and progress(task)["batchesCompleted"] == 1)
        shutil.move(hospital / "data.ndjson", tmp_path / "away")
        task = client.reach(job, "TEMP_FAILED")
        assert progress(task)["batchesCompleted"] >= 1
        assert client.operate(job, "pause").status_code == 409
        shutil.move(tmp_path / "away", hospital / "data.ndjson")
        assert complete(client, job) == EVERYBODY

    def test_it_can_be_cancelled_and_deleted(self, start: Start, hospital: Path, tmp_path: Path) -> None:
        client = start(hospital, retry_delay=60)
        shutil.move(hospital / "data.ndjson", tmp_path / "away")
        first, second = client.submit(crtdl()), client.submit(crtdl())
        client.reach(first, "TEMP_FAILED")
        client.reach(second, "TEMP_FAILED")
        assert client.operate(first, "cancel").status_code == 200
        assert client.delete(f"/fhir/Task/{second}").status_code == 204

    def test_a_resource_that_changed_on_disk_fails_the_job_and_is_not_quoted(
        self, start: Start, hospital: Path
    ) -> None:
        client = start(hospital)
        text = (hospital / "data.ndjson").read_text()
        (hospital / "data.ndjson").write_text("canary-" * (len(text) // 7 + 1))
        job = client.submit(crtdl())
        client.reach(job, "FAILED")
        answer = client.poll(job)
        assert (answer.status_code, len(answer.json()["issue"])) == (500, 2)
        assert "canary" not in answer.text

    def test_a_resource_that_took_the_place_of_another_fails_the_job_too(self, start: Start, hospital: Path) -> None:
        client = start(hospital)
        file = hospital / "data.ndjson"
        file.write_text(file.read_text().replace('"id": "a"', '"id": "z"'))
        job = client.submit(crtdl())
        client.reach(job, "FAILED")
        assert "ChangedDataError" in client.poll(job).text


def test_close_gives_up_what_runs_and_the_next_start_goes_on(start: Start, hospital: Path, tmp_path: Path) -> None:
    from deployments.sandbox.common.serve import serve_in_thread
    from deployments.sandbox.extraction.app import ExtractionOptions, extraction_service

    options = ExtractionOptions(data=hospital, state=tmp_path / "state", batchsize=1, batch_delay=600)
    with serve_in_thread(extraction_service(options)) as served, ExtractionServerClient(served.url) as client:
        answer = client.post("/fhir/$extract-data", json=parameters(crtdl()))
        job = answer.headers["content-location"].rpartition("/")[2]
        client.reach(job, "RUNNING_GET_COHORT")
        started = time.monotonic()
    assert time.monotonic() - started < 60  # a busy machine is slow, but what runs takes 600 s
    assert complete(start(hospital, state=tmp_path / "state"), job) == EVERYBODY
