"""``pipeline status`` and ``job list`` of a record, for people and for scripts."""

from __future__ import annotations

from typing import Any

import pytest

from flows.job.problem import Problem
from flows.job.record import JobRecord, ProgressRecord
from flows.job.state import JobState
from flows.job.waiting import Decision, Shown, Waiting
from flows.reports.status import row_of, status_of, table, text
from tasks.shared.report import StepReport
from tasks.shared.step import Handle

JOB = "0b2c4a5e-1111-4222-8333-444455556666"
STEPS = (
    StepReport(position=1, name="local_import", state="completed", files=4, resources_in=1234, bytes_out=2_500_000),
    StepReport(
        position=2, name="validation", state="completed", findings=5, warnings=("skipped", "skipped"),
        details={"severities": {"error": 5, "warning": 2}},
    ),
    StepReport(position=3, name="wait", state="waiting"),
    StepReport(position=4, name="send"),
)  # fmt: skip
WAITING = Waiting(
    position=3, step="wait", looked_at=f"/jobs/{JOB}/import",
    directory=f"/jobs/{JOB}/import_wait", reads=f"/jobs/{JOB}/import", reason="files\x1b changed",
)  # fmt: skip
SHOWN = Shown(files="f", destination={"mode": "s3_upload"}, page="report/r.html", stops=2, looks=1)
ERROR = Problem(
    reference="validation-findings", message="5 errors", context="core.ndjson:1", hint="fix it", exit_code=5,
    step="validation",
)  # fmt: skip


def record(state: str, **more: Any) -> JobRecord:
    fields: dict[str, Any] = {
        "id": JOB, "name": "study 23 November", "state": JobState(state), "steps": STEPS, "config": "/c.yaml",
        "step_names": tuple(step.name for step in STEPS), "directory": f"/jobs/{JOB}",
    } | more  # fmt: skip
    return JobRecord(**fields)


def test_the_json_has_every_key_and_null_for_what_is_not_there() -> None:
    bare = JobRecord(id=JOB, name="study", state=JobState.PENDING)
    assert status_of(bare) == {
        "id": JOB, "name": "study", "state": "pending", "step": None, "created": None, "updated": None, "config": None,
        "directory": None, "crtdl": None, "extraction": None, "steps": [], "progress": None, "waiting": None,
        "error": None, "warnings": [], "findings": None, "decisions": [], "report": None,
    }  # fmt: skip


def test_the_json_of_a_waiting_job() -> None:
    extraction = Handle(status_url="http://h/fhir/__status/x", job_id="x")
    status = status_of(record("waiting", waiting=WAITING, shown={3: SHOWN}, extraction=extraction, error=ERROR))
    assert status["steps"][0] == {
        "position": 1, "name": "local_import", "state": "completed", "files": 4, "resources_in": 1234,
        "resources_out": None, "bytes_in": None, "bytes_out": 2_500_000, "seconds": None, "requests": None,
        "retries": None, "details": {},
    }  # fmt: skip
    assert (status["state"], status["step"], status["error"]) == ("waiting", "wait", None)
    assert status["waiting"] == {"step": "wait", "directory": WAITING.directory, "reason": WAITING.reason}
    assert status["extraction"] == {"status_url": "http://h/fhir/__status/x", "job_id": "x"}
    assert status["warnings"] == [{"step": "validation", "position": 2, "message": "skipped"}]
    assert status["findings"] == {"errors": 5, "warnings": 2, "gate": "open"}
    assert status["report"] == {"page": f"/jobs/{JOB}/report/r.html", "stops": 2, "looks": 1}


def test_the_json_of_a_failed_job_and_of_one_that_was_decided() -> None:
    failed = status_of(record("failed", error=ERROR))
    assert failed["error"] == {
        "reference": "validation-findings", "message": "5 errors", "context": "core.ndjson:1", "hint": "fix it",
        "transient": False,
    }  # fmt: skip
    assert (failed["step"], failed["findings"]["gate"]) == ("validation", "closed")
    decision = Decision(approved=False, by="Bo", when="2026-11-23T06:12:00+00:00", where="ui", files="f")
    done = status_of(record("cancelled", decisions={3: decision}))
    assert done["decisions"] == [
        {"position": 3, "approved": False, "by": "Bo", "when": decision.when, "comment": None, "where": "ui"}
    ]
    progress = ProgressRecord(fraction=0.5, eta_seconds=60, message="half")
    assert status_of(record("running", progress=progress))["progress"] == progress.model_dump()


@pytest.mark.parametrize(
    ("state", "more", "said"),
    [
        ("failed", {"error": ERROR}, ["error[validation-findings]: 5 errors", "core.ndjson:1", "continue with: "]),
        ("waiting", {"waiting": WAITING, "shown": {3: SHOWN}}, [
            "step 3 waits for a decision", r"it waits again: files\x1b changed", f"the data are in /jobs/{JOB}/import",
            f"put a complete set of files into /jobs/{JOB}/import_wait", "stops 2, looks 1",
            f"/jobs/{JOB}/report/r.html", "--approve --comment TEXT or --reject", "continue with: ",
        ]),
        ("decided", {"waiting": WAITING}, ["decided", "continue with: "]),
        ("completed", {}, ["1 local_import: completed: 4 files", "2.5 MB", "5 findings", f"directory /jobs/{JOB}"]),
        ("running", {"progress": ProgressRecord(message="half of it")}, ["  half of it"]),
    ],
)  # fmt: skip
def test_a_person_sees_where_the_job_stands_and_what_to_do(state: str, more: dict[str, Any], said: list[str]) -> None:
    shown = text(record(state, **more))
    assert shown.startswith(f"job {JOB}: {state}\n")
    for words in said:
        assert words in shown
    assert ("continue with" in shown) is (state not in {"completed", "running"})


def test_a_list_has_one_line_a_job_with_the_reason() -> None:
    failed, waiting = record("failed", error=ERROR), record("waiting", waiting=WAITING)
    assert row_of(failed) == {
        "id": JOB, "name": "study 23 November", "state": "failed", "step": "validation", "files": 4, "created": None,
        "error": "validation-findings", "waiting": None,
    }  # fmt: skip
    assert (row_of(waiting)["error"], row_of(waiting)["waiting"]) == (None, "wait")
    _, one, two, three = table([failed, waiting, record("decided", waiting=WAITING)]).splitlines()
    assert one.endswith("study 23 November: validation-findings, 5 errors")
    assert two.endswith(r"study 23 November: files\x1b changed")
    assert f"{JOB}  decided " in three
    several = record("failed", error=ERROR.model_copy(update={"message": "2 checks failed\n- one\n- two"}))
    assert table([several]).endswith(": validation-findings, 2 checks failed - one - two")
