"""Jobs as Tasks: the resource, the search, priorities under optimistic locking."""

from __future__ import annotations

import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import wait_until
from tests.deployments.sandbox.extraction.conftest import TODAY, Client, Start, crtdl, progress

SYSTEM = "https://sandbox.example/fhir/CodeSystem/job-status"
UNKNOWN = "0b7e1f52-6f2b-4c0e-9d0a-5f5c3f1f7a11"


def put(client: Client, job: str, priority: str | None, version: str | int | None, **fields: Any) -> httpx.Response:
    body = {"resourceType": "Task", "id": job, "status": "requested", "intent": "order"} | fields
    if priority is not None:
        body["priority"] = priority
    headers = {"content-type": "application/fhir+json"}
    if version is not None:
        headers["if-match"] = f'W/"{version}"' if isinstance(version, int) else version
    return client.put(f"/fhir/Task/{job}", json=body, headers=headers)


def version(task: Any) -> int:
    return int(task["meta"]["versionId"])


class TestRead:
    def test_a_completed_job(self, client: Client) -> None:
        job = client.submit(crtdl())
        task = client.reach(job, "COMPLETED")
        assert (task["resourceType"], task["id"], task["intent"]) == ("Task", job, "order")
        assert task["status"] == "completed"
        assert task["businessStatus"] == {"coding": [{"system": SYSTEM, "code": "COMPLETED"}]}
        assert task["priority"] == "routine"
        for moment in (task["authoredOn"], task["executionPeriod"]["start"], task["executionPeriod"]["end"]):
            assert datetime.fromisoformat(moment) == TODAY
        answer = client.get(f"/fhir/Task/{job}")
        assert answer.headers["etag"] == f'W/"{version(task)}"'
        assert answer.headers["content-type"] == "application/fhir+json"

    def test_status_and_business_status_in_every_state(self, slow: Client) -> None:
        seen: dict[str, str] = {}

        def note(task: Any) -> Any:
            seen[task["businessStatus"]["coding"][0]["code"]] = task["status"]
            return task

        first, second = slow.submit(crtdl()), slow.submit(crtdl())
        note(slow.task(second))
        slow.until(first, lambda task: note(task)["status"] == "completed")
        slow.reach(second, "RUNNING_GET_COHORT")
        note(slow.operate(second, "pause").json())
        note(slow.operate(second, "cancel").json())
        assert seen == {
            "PENDING": "requested",
            "RUNNING_GET_COHORT": "in-progress",
            "RUNNING_PROCESS_BATCH": "in-progress",
            "RUNNING_PROCESS_CORE": "in-progress",
            "COMPLETED": "completed",
            "PAUSED": "on-hold",
            "CANCELLED": "cancelled",
        }

    @pytest.mark.parametrize("identity", [UNKNOWN, "no-uuid"])
    def test_404_with_an_operation_outcome_for_what_is_not_there(self, client: Client, identity: str) -> None:
        for answer in (client.get(f"/fhir/Task/{identity}"), client.delete(f"/fhir/Task/{identity}")):
            assert answer.status_code == 404
            assert answer.json()["issue"][0]["code"] == "not-found"


class TestProgress:
    def test_it_is_there_from_the_end_of_the_cohort_query_and_stays(self, slow: Client) -> None:
        job = slow.submit(crtdl())
        assert "extension" not in slow.reach(job, "RUNNING_GET_COHORT")
        task = slow.reach(job, "RUNNING_PROCESS_BATCH")
        assert task["extension"][0]["url"].endswith("/extractor-job-progress")
        numbers = {"cohortSize": 3, "batchSize": 1, "batchesTotal": 3}
        assert progress(task) == numbers | {"batchesCompleted": 0, "active": progress(task)["active"]}
        assert progress(slow.reach(job, "COMPLETED")) == numbers | {"batchesCompleted": 3, "active": []}

    def test_active_batches_name_their_stage(self, start: Start, hospital: Path) -> None:
        client = start(hospital, batchsize=1, maxconcurrency=3, held=True)
        job = client.submit(crtdl())
        client.until(job, lambda task: "extension" in task and progress(task)["active"])
        wait_until(lambda: len(progress(client.task(job))["active"]) == 3)  # all are held at their first stage
        stages: list[str] = []

        def record_stages(task: Any) -> bool:
            if "extension" in task:
                active = progress(task)["active"]
                stages.extend(item["stage"] for item in active if item["stage"] not in stages)
                assert all(str(uuid.UUID(item["batchId"])) == item["batchId"] for item in active)
            return bool(task["status"] == "completed")

        client.until(job, record_stages)
        assert stages == ["CONSENT_FETCH", "DIRECT_LOAD", "REFERENCE_RESOLVE", "CASCADING_DELETE", "COPY_REDACT"]


class TestSearch:
    @pytest.fixture
    def jobs(self, slow: Client) -> list[str]:
        """Three jobs, oldest first: cancelled, running, pending."""
        jobs = [slow.submit(crtdl()) for _ in range(3)]
        slow.operate(jobs[0], "cancel")
        slow.reach(jobs[1], "RUNNING_GET_COHORT", "RUNNING_PROCESS_BATCH")
        slow.operate(jobs[1], "pause")
        slow.reach(jobs[2], "RUNNING_GET_COHORT", "RUNNING_PROCESS_BATCH")
        slow.operate(jobs[2], "pause")
        return jobs

    @staticmethod
    def found(client: Client, query: str, **headers: str) -> list[str]:
        answer = client.get(f"/fhir/Task?{query}", headers=headers)
        assert answer.status_code == 200, answer.text
        bundle = answer.json()
        entries = bundle.get("entry", [])
        assert (bundle["resourceType"], bundle["type"], bundle["total"]) == ("Bundle", "searchset", len(entries))
        for entry in entries:
            assert entry["fullUrl"].endswith(f"/fhir/Task/{entry['resource']['id']}")
            assert entry["search"] == {"mode": "match"}
        return [entry["resource"]["id"] for entry in entries]

    def test_by_id_and_by_status_and_by_both(self, slow: Client, jobs: list[str]) -> None:
        assert set(self.found(slow, f"_id={jobs[0]},{jobs[2]}")) == {jobs[0], jobs[2]}
        assert self.found(slow, "status=CANCELLED") == [jobs[0]]
        assert set(self.found(slow, "status=PAUSED,CANCELLED")) == set(jobs)
        assert self.found(slow, f"status=PAUSED&_id={jobs[0]},{jobs[1]}") == [jobs[1]]
        assert self.found(slow, f"_id={jobs[0]}&_id={jobs[1]}") == []
        assert self.found(slow, f"_id={uuid.uuid4()}") == []
        assert self.found(slow, f"_id={jobs[0].upper()}") == [jobs[0]]

    def test_by_default_invalid_values_are_dropped_and_an_empty_rest_does_not_filter(
        self, slow: Client, jobs: list[str]
    ) -> None:
        assert self.found(slow, f"_id={jobs[0]},no-uuid") == [jobs[0]]
        assert len(self.found(slow, "_id=no-uuid")) == 3
        assert len(self.found(slow, "_id=")) == 3
        assert len(self.found(slow, "status=in-progress,cancelled&colour=blue")) == 3
        assert len(self.found(slow, "status=running", prefer="handling=lenient")) == 3

    def test_strict_handling_is_400_and_lists_every_problem(self, slow: Client, jobs: list[str]) -> None:
        query = f"_id={jobs[0]},no-uuid&status=PAUSED,running,waiting&colour=blue"
        answer = slow.get(f"/fhir/Task?{query}", headers={"prefer": "respond-async, handling=strict"})
        assert answer.status_code == 400
        texts = [issue["diagnostics"] for issue in answer.json()["issue"]]
        assert [text.partition(":")[0] for text in texts] == ["_id", "status", "status", "colour"]
        assert "no-uuid" in texts[0]
        assert self.found(slow, f"_id={jobs[0]}&status=CANCELLED", prefer="handling=strict") == [jobs[0]]


class TestPriority:
    @pytest.mark.parametrize(
        ("given", "shown"),
        [("asap", "asap"), ("stat", "asap"), ("urgent", "asap"), ("routine", "routine"), (None, "routine")],
    )
    def test_put_changes_the_priority_and_answers_with_the_next_version(
        self, client: Client, given: str | None, shown: str
    ) -> None:
        job = client.submit(crtdl())
        before = client.reach(job, "COMPLETED")
        answer = put(client, job, given, version(before))
        assert answer.status_code == 200
        assert answer.json()["priority"] == shown
        assert version(answer.json()) == version(before) + 1
        assert answer.headers["etag"] == f'W/"{version(before) + 1}"'
        assert client.task(job) == answer.json()

    def test_only_the_priority_is_read(self, client: Client) -> None:
        job = client.submit(crtdl())
        before = client.reach(job, "COMPLETED")
        answer = put(client, job, "asap", version(before), status="failed", intent="plan", id="other")
        expected = before | {
            "priority": "asap",
            "meta": answer.json()["meta"],
            "lastModified": answer.json()["lastModified"],
        }
        assert answer.json() == expected

    def test_428_when_if_match_is_missing_400_when_the_body_is_no_task(self, client: Client) -> None:
        job = client.submit(crtdl())
        current = version(client.reach(job, "COMPLETED"))
        for header in (None, "3", 'W/"x"'):
            answer = put(client, job, "asap", header)
            assert (answer.status_code, answer.json()["resourceType"]) == (428, "OperationOutcome")
        assert put(client, job, "asap", current, resourceType="Patient").status_code == 400
        assert put(client, job, "high", current).status_code == 400

    def test_409_conflict_when_the_version_has_moved_on(self, client: Client) -> None:
        job = client.submit(crtdl())
        task = client.reach(job, "COMPLETED")
        for stale in (version(task) - 1, version(task) + 1):
            answer = put(client, job, "asap", stale)
            assert answer.status_code == 409
            assert answer.json()["issue"][0]["code"] == "conflict"
        assert client.task(job) == task
