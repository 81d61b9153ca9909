"""``pipeline status`` of a job whose process could not write its record any more (4-product.md §4, interrupted)."""

from __future__ import annotations

import sys
from pathlib import Path

from flows.job.record import Extraction, JobRecord, hint_anywhere
from flows.job.state import JobState
from flows.reports.status import status_of, text
from tasks.shared.report import Problem, StepReport

JOB = "0b2c4a5e-1111-4222-8333-444455556666"


def test_a_command_is_printed_with_what_makes_it_run_and_none_where_none_does(tmp_path: Path) -> None:
    record = JobRecord(id=JOB, name="x", state=JobState.FAILED, config="/nowhere/config.yaml")
    assert f"pipeline continue {tmp_path} {JOB}" in text(record, str(tmp_path))
    begun = record.model_copy(update={"directory": str(tmp_path / JOB)})
    assert f"pipeline continue /nowhere/config.yaml {JOB}" in text(begun, str(tmp_path))  # never another's services
    elsewhere = hint_anywhere(begun)
    assert elsewhere.endswith(f"pipeline continue /nowhere/config.yaml {JOB} --set jobs_dir={tmp_path}")
    assert elsewhere.startswith(f"continue with: {sys.executable} -m ")
    error = Problem(reference="run-not-begun", message="Validation of flow parameters failed", hint="look at the run")
    assert "continue" not in text(record.model_copy(update={"error": error}), str(tmp_path))


def test_where_a_job_stands_is_said_before_its_first_step_and_behind_its_last() -> None:
    record = JobRecord(id=JOB, name="x", state=JobState.INTERRUPTED)
    steps = [StepReport(position=1, name="validation", state=state) for state in ("failed", "completed")]
    shown = [record.model_copy(update={"steps": (step,)}).at for step in steps]
    assert [record.at, *shown] == [" before its first step", " at validation", " behind validation"]
    assert record.model_copy(update={"state": JobState.FAILED}).at == ""


def test_the_extraction_of_a_job_is_said_as_the_commands_on_it_take_it() -> None:
    record = JobRecord(id=JOB, name="x", state=JobState.RUNNING)
    assert "extraction" not in text(record)
    assert "\nextraction 1234" in text(record.model_copy(update={"extraction": Extraction(job_id="1234")}))


def test_validation_findings_and_the_gate_decision_are_in_the_json(tmp_path: Path) -> None:
    found = StepReport(
        position=1, name="validation", state="completed", findings=5, warnings=("skipped", "old", "skipped"),
        details={"severities": {"error": 3, "warning": 2}},
    )  # fmt: skip
    steps = (found, StepReport(position=2, name="send"))
    record = JobRecord(id=JOB, name="x", state=JobState.STOPPED, directory=str(tmp_path / JOB), steps=steps)
    status = status_of(record)
    assert status["findings"] == {"errors": 5, "warnings": 2, "gate": None}
    assert status["warnings"] == [
        {"step": "validation", "position": 1, "count": 2, "message": "skipped"},
        {"step": "validation", "position": 1, "count": 1, "message": "old"},
    ]
    error = Problem(reference="validation-findings", message="x", step="validation")
    failed = record.model_copy(update={"state": JobState.FAILED, "error": error})
    assert status_of(failed)["findings"]["gate"] == "closed"
    gone_on = record.model_copy(update={"steps": (found, StepReport(position=2, name="send", started="2026-03-01"))})
    assert status_of(gone_on)["findings"]["gate"] == "open"
    none = JobRecord(id=JOB, name="x", state=JobState.RUNNING, steps=(StepReport(position=1, name="validation"),))
    assert status_of(none)["findings"] == {"errors": None, "warnings": None, "gate": None}


def test_findings_of_a_validation_are_in_status_and_its_json() -> None:
    steps = (
        StepReport(position=1, name="local_import", state="completed", files=1),
        StepReport(position=2, name="validation", state="completed", files=1, findings=5),
    )
    record = JobRecord(id=JOB, name="x", state=JobState.COMPLETED, steps=steps)
    assert "2 validation: completed: 1 file, 5 findings" in text(record)
    assert [step["findings"] for step in status_of(record)["steps"]] == [None, 5]
