"""``GET /fhir/__status/{jobId}``: every code, and the completion manifest."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.deployments.sandbox.extraction.conftest import (
    Client,
    Start,
    attribute,
    ccdl,
    criterion,
    crtdl,
    group,
)

EXTENSIONS = "https://sandbox.example/fhir/StructureDefinition/"


def lines(client: Client, job: str) -> list[str]:
    return client.poll(job).json()["issue"][-1]["diagnostics"].splitlines()  # type: ignore[no-any-return]


class TestUnfinished:
    def test_202_with_a_phrase_and_four_lines_in_every_running_state(self, slow: Client) -> None:
        job = slow.submit(crtdl())
        seen: dict[str, str] = {}
        told: dict[str, list[str]] = {}
        held = slow.pace.held()
        while (answer := slow.poll(job)).status_code == 202:
            issue = answer.json()["issue"][-1]
            assert (issue["severity"], issue["code"]) == ("information", "informational")
            four = issue["diagnostics"].splitlines()
            assert four[0] == f"Job: {job}"
            state = four[1].removeprefix("Status: ")
            seen[state] = answer.headers["x-progress"]
            told.setdefault(state, four)  # the cohort is known before the state says so
            slow.pace.let_go(held)
            held = slow.pace.held()
        assert seen["RUNNING_GET_COHORT"] == "Getting cohort"
        assert seen["RUNNING_PROCESS_BATCH"] in ("Processing batches (66%)", "Processing batches (100%)")
        assert seen["RUNNING_PROCESS_CORE"] == "Processing core resources"
        assert told["RUNNING_GET_COHORT"][2:] == ["Batch progress: 0%", "Cohort size: not known yet"]
        assert told["RUNNING_PROCESS_CORE"][2:] == ["Batch progress: 100%", "Cohort size: 3"]
        assert answer.status_code == 200

    def test_a_paused_job_and_one_that_waits_for_it_are_202(self, slow: Client) -> None:
        paused, pending = slow.submit(crtdl()), slow.submit(crtdl())
        slow.reach(paused, "RUNNING_GET_COHORT")  # and holds the one worker
        slow.operate(paused, "pause")
        answers = [slow.poll(job) for job in (paused, pending)]
        assert [(one.status_code, one.headers["x-progress"]) for one in answers] == [(202, "Paused"), (202, "Pending")]

    def test_410_for_a_cancelled_job(self, slow: Client) -> None:
        job = slow.submit(crtdl())
        slow.operate(job, "cancel")
        answer = slow.poll(job)
        assert answer.status_code == 410
        assert "x-progress" not in answer.headers
        assert lines(slow, job)[1] == "Status: CANCELLED"

    @pytest.mark.parametrize(
        ("identity", "status", "code"),
        [("no-uuid", 400, "invalid"), ("0b7e1f52-6f2b-4c0e-9d0a-5f5c3f1f7a11", 404, "not-found")],
    )
    def test_what_is_no_job(self, slow: Client, identity: str, status: int, code: str) -> None:
        answer = slow.poll(identity)
        assert (answer.status_code, answer.json()["issue"][0]["code"]) == (status, code)


class TestManifest:
    def test_200_is_a_manifest_with_batch_files_then_core(self, start: Start, hospital: Path) -> None:
        client = start(hospital, batchsize=2)
        conditions = group("g", "Condition", attribute("Condition.code"))
        result = client.extract(crtdl(conditions))
        assert client.poll(result.job).headers["content-type"] == "application/json"
        manifest = result.manifest
        assert set(manifest) == {
            "transactionTime", "request", "requiresAccessToken", "output", "error", "extension",
        }  # fmt: skip
        assert manifest["request"] == str(client.base_url.join(f"/fhir/__status/{result.job}"))
        assert manifest["requiresAccessToken"] is False
        assert manifest["error"] == []
        assert datetime.fromisoformat(manifest["transactionTime"])
        assert manifest["transactionTime"] == client.task(result.job)["executionPeriod"]["end"]
        job = self.value(manifest, "extractor-job")
        names = [f"{batch['id']}.ndjson" for batch in job["batches"]]
        root = str(client.base_url).rstrip("/")
        assert manifest["output"] == [
            {"type": "NDJSON Bundle", "url": f"{root}/output/{result.job}/{name}"} for name in names
        ]

    @staticmethod
    def value(manifest: dict[str, Any], name: str) -> Any:
        return next(entry["valueObject"] for entry in manifest["extension"] if entry["url"] == EXTENSIONS + name)

    def test_the_job_extension_is_the_whole_job(self, start: Start, hospital: Path) -> None:
        client = start(hospital, batchsize=2)
        query = crtdl()
        result = client.extract(query, "a", "b", "c")
        job = self.value(result.manifest, "extractor-job")
        task = client.task(result.job)
        assert set(job) >= {
            "id", "status", "version", "priority", "cohortSize", "startedAt", "updatedAt", "finishedAt", "batches",
            "issues", "parameters",
        }  # fmt: skip
        assert (job["id"], job["status"], job["cohortSize"]) == (result.job, "COMPLETED", 3)
        assert job["priority"] == "NORMAL"
        assert str(job["version"]) == task["meta"]["versionId"]
        assert job["parameters"]["crtdl"] == query
        assert job["parameters"]["patient"] == ["a", "b", "c"]
        for batch in job["batches"]:
            assert set(batch) >= {"id", "state", "timings"}
            assert batch["state"] == "FINISHED"
            assert len(batch["timings"]["stageNanos"]) == 5

    def test_diagnostics_extensions_lead_to_the_reports(self, start: Start, hospital: Path) -> None:
        client = start(hospital)
        result = client.extract(crtdl())
        for name, kind in (
            ("extractor-job-diagnostics-summary", "application/json"),
            ("extractor-resource-exclusions", "text/csv; charset=utf-8"),
            ("extractor-patient-exclusions", "text/csv; charset=utf-8"),
        ):
            extension = next(entry for entry in result.manifest["extension"] if entry["url"] == EXTENSIONS + name)
            answer = client.get(extension["valueUrl"])
            assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
        assert result.extension("extractor-job-issues") is None

    def test_without_a_batch_there_are_no_diagnostics_but_an_issue(self, start: Start, hospital: Path) -> None:
        nobody = ccdl([criterion("Diagnose", {"system": "s", "code": "x"})])
        result = start(hospital).extract(crtdl(cohort=nobody))
        assert [entry["url"].removeprefix(EXTENSIONS) for entry in result.manifest["extension"]] == [
            "extractor-job", "extractor-job-issues",
        ]  # fmt: skip
        assert [set(issue) for issue in self.value(result.manifest, "extractor-job-issues")] == [
            {"severity", "msg", "diagnostics"}
        ]
