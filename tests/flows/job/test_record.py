"""The job record in labels, and the states a job is shown in."""

import fcntl
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from flows.gate.answers import with_answer
from flows.job.problem import Problem
from flows.job.record import JobRecord
from flows.job.state import JobState
from flows.job.waiting import Answer, Decision, Shown, Waiting
from flows.prefect.api import PrefectApi
from flows.reports.status import row_of, status_of
from tasks.shared.errors import NetworkError
from tasks.shared.report import StepReport

NO_API = cast("PrefectApi", None)
"""No form was saved, so no answer is asked for."""


def run(state_type="RUNNING", state_name=None, labels=None, **more):
    name = state_name or state_type.capitalize()
    return {"id": "j", "name": "n", "state_type": state_type, "state_name": name, "labels": labels or {}} | more


def test_a_form_answered_in_the_ui_of_a_local_run_still_waits_for_continue(tmp_path):
    waiting = Waiting(position=1, step="wait", directory="/d", looked_at="/l", reads="/l")
    step = StepReport(position=1, name="wait", state="waiting")
    labels = {
        "job.directory": str(tmp_path), "job.steps": "wait", "job.step.1": step.model_dump_json(),
        "job.waiting": waiting.model_dump_json(),
    }  # fmt: skip
    record = JobRecord.of(run("RUNNING", labels=labels))
    assert (record.state, with_answer(NO_API, record).state) == (JobState.WAITING, JobState.WAITING)
    labels["job.answer.1"] = Answer(approved=True, by="me", when="now").model_dump_json()
    assert with_answer(NO_API, JobRecord.of(run("RUNNING", labels=labels))).state is JobState.DECIDED
    labels["job.waiting"] = ""
    assert JobRecord.of(run("RUNNING", labels=labels)).state is JobState.INTERRUPTED


def test_a_run_that_is_paused_and_did_not_park_itself_was_suspended(tmp_path):
    labels = {"job.directory": str(tmp_path), "job.steps": "send"}
    suspended = run("PAUSED", "Suspended", labels=labels, deployment_id="d")
    assert JobRecord.of(suspended).state is JobState.STOPPED
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert JobRecord.of(suspended).state is JobState.RUNNING
    labels["job.waiting"] = Waiting(
        position=1, step="wait", directory="/d", looked_at="/l", reads="/l"
    ).model_dump_json()
    assert JobRecord.of(suspended).state is JobState.WAITING


@pytest.mark.parametrize("deployment", [None, "d"])
@pytest.mark.parametrize("kind", ["RUNNING", "CRASHED"])
def test_a_job_that_died_between_the_record_of_its_wait_and_its_parking_waits(tmp_path, kind, deployment):
    waiting = Waiting(position=1, step="wait", directory="/d", looked_at="/l", reads="/l")
    labels = {
        "job.directory": str(tmp_path), "job.steps": "wait,send", "job.waiting": waiting.model_dump_json(),
        "job.step.1": StepReport(position=1, name="wait", state="waiting").model_dump_json(),
    }  # fmt: skip
    record = JobRecord.of(run(kind, labels=labels, deployment_id=deployment, state=ago(150)))
    assert (record.state, record.undecided) == (JobState.WAITING, waiting)
    assert status_of(record)["waiting"] == {"step": "wait", "directory": "/d", "reason": None}
    assert row_of(record)["state"] == "waiting"


def ago(seconds):
    return {"type": "RUNNING", "timestamp": (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()}


def test_what_is_written_is_what_is_read_back():
    step = StepReport(position=1, name="local_import", state="completed", files=3, resources_out=7, seconds=0.5)
    waiting = Waiting(position=2, step="wait", directory="/d", looked_at="/l", reads="/l")
    shown = Shown(files="f", page="report.html", form="paused-2")
    decision = Decision(approved=True, comment="ok", by="me", when="now", files="f", destination={"mode": "m"})
    labels = {
        "job.steps": "local_import,wait,send",
        "job.step.1": step.model_dump_json(),
        "job.waiting": waiting.model_dump_json(),
        "job.decision.2": decision.model_dump_json(),
        "job.shown.2": shown.model_dump_json(),
        "job.extraction.status_url": "http://h/fhir/__status/x",
        "job.extraction.job_id": "x",
    }
    record = JobRecord.of(run("PAUSED", labels=labels))
    assert record.steps[0] == step
    assert [step.state for step in record.steps] == ["completed", "pending", "pending"]
    assert record.current_step == "wait"
    assert record.waiting == waiting
    assert record.decisions == {2: decision}
    assert record.shown == {2: shown}
    assert record.files == 3
    assert status_of(record)["extraction"] == {"status_url": "http://h/fhir/__status/x", "job_id": "x"}


def test_an_error_is_kept_with_what_a_person_and_a_script_need():
    error = NetworkError("service-unreachable", "no answer", context="http://h", hint="wait")
    labels = {"job.steps": "local_import", "job.error": Problem.of(error, "local_import").model_dump_json()}
    document = status_of(JobRecord.of(run("FAILED", labels=labels)))
    assert document["error"] == {
        "reference": "service-unreachable", "message": "no answer", "context": "http://h", "hint": "wait",
        "transient": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("step", "named"), [("validation", "validation"), (None, None)], ids=["closed gate", "no step"]
)
def test_a_failed_job_names_the_step_of_its_error_and_not_the_first_open_one(step, named):
    """The gate of a validation ends a job whose validation is complete; the first open step is the one behind it."""
    labels = {
        "job.steps": "local_import,validation,send",
        "job.step.1": StepReport(position=1, name="local_import", state="completed").model_dump_json(),
        "job.step.2": StepReport(position=2, name="validation", state="completed").model_dump_json(),
        "job.error": Problem(reference="validation-findings", message="closed", step=step).model_dump_json(),
    }
    record = JobRecord.of(run("FAILED", labels=labels))
    assert (record.current_step, row_of(record)["step"]) == (named, named)
    assert JobRecord.of(run("RUNNING", labels=labels)).current_step == "send"


def test_labels_that_are_no_record_of_ours_do_no_harm():
    labels = {"job.steps": "send", "job.step.1": "{", "job.waiting": 5, "job.error": "[]"}
    record = JobRecord.of(run("FAILED", labels=labels))
    assert record.steps == (StepReport(position=1, name="send"),)
    assert record.error is None


def test_the_age_of_a_run_counts_from_its_schedule_or_from_its_request():
    times = {"created": "2026-11-20T00:00:00Z", "expected_start_time": "2026-11-23T01:30:00Z"}
    assert JobRecord.of(run(**times, auto_scheduled=True)).created == times["expected_start_time"]
    assert JobRecord.of(run(**times, auto_scheduled=False)).created == times["created"]


def test_a_run_that_prefect_could_not_begin_has_a_reason():
    state = {"message": "Validation of flow parameters failed\nwith more"}
    never = JobRecord.of(run("FAILED", state=state))
    assert (never.error.reference, never.error.message) == ("run-not-begun", "Validation of flow parameters failed")
    assert row_of(never)["error"] == "run-not-begun"
