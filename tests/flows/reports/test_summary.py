"""``summary.json``: one document for other tools at the end of a run (docs/observability.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from flows.job.inputs import JobInputs
from flows.job.record import JobRecord, Run
from flows.job.running.state import JobState
from flows.reports import summary
from flows.reports.summary import Compared, Summary
from tasks.shared.report import Problem, StepReport, Waiting

STEPS = [
    StepReport(
        position=1, name="local_import", state="completed", files=2, lines_out=7, seconds=0.5, requests=4, retries=1,
        warnings=("odd",), details={"types": {"Patient": 6}},
    ),
    StepReport(position=2, name="wait", state="completed", lines_in=7, lines_expected=7),
    StepReport(position=3, name="send", state="failed", lines_expected=7),
]  # fmt: skip
ERROR = Problem(
    reference="rejected", message="rejected by a person", context="Meier has two ids", hint="start anew", step="wait"
)
INPUTS = JobInputs(
    config="/srv/sluice/first.yaml", crtdl="/srv/queries/cohort.json", patients="/srv/cohorts/ids.txt",
    input="https://user:secret@server.test/fhir/__status/1?token=secret",
)  # fmt: skip


def document(*, waiting: Waiting | None = None, error: Problem | None = None) -> Summary:
    return summary.summary_of(
        JobRecord(
            id="368f91e2-dd1f-4d71-8c99-58332d55a824", name="", state=JobState.RUNNING, steps=tuple(STEPS)
        ),
        Run(number=2, created="2026-03-02T09:15:19.102Z", began="2026-03-02T09:16:19.102Z"),
        "failed" if error else "waiting" if waiting else "completed", INPUTS,
        ended="2026-03-02T09:17:19.102Z", waiting=waiting, error=error, k=5,
    )  # fmt: skip


def written(directory: Path, one: Summary) -> dict[str, object]:
    summary.write(directory, one)
    found: dict[str, object] = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    return found


WAITING = Waiting(position=2, step="wait", directory="/srv/jobs/x/import_wait", looked_at="x", since="x")


@pytest.mark.parametrize("one", [document(), document(waiting=WAITING), document(error=ERROR)])
def test_it_is_private_validates_and_is_whole(tmp_path: Path, one: Summary) -> None:
    found = written(tmp_path, one)
    Draft202012Validator(summary.schema()).validate(found)
    assert Summary.model_validate(found) == one
    assert (tmp_path / "summary.json").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_keys_are_never_left_out(tmp_path: Path) -> None:
    found = written(tmp_path, document())
    assert found["error"] is found["waiting"] is None
    last = found["steps"][2]  # type: ignore[index]
    assert set(last) == set(StepReport.model_fields)
    assert last["files"] is last["requests"] is None
    assert (last["warnings"], last["details"]) == ([], {})


def test_steps_have_counts_statistics_warnings_and_details() -> None:
    assert document().steps[0] == STEPS[0].model_copy(update={"details": {"types": {"other types": "5"}}})


def test_reconciliation_lists_the_comparisons_that_were_made() -> None:
    assert document().reconciliation == (Compared(position=2, name="wait", written=7, read=7, agrees=True),)


def test_an_error_is_told_without_its_context_which_may_be_a_persons_comment(tmp_path: Path) -> None:
    assert written(tmp_path, document(error=ERROR))["error"] == {
        "reference": "rejected", "message": "rejected by a person", "context": None, "hint": "start anew",
        "transient": False, "exit_code": 1, "step": "wait",
    }  # fmt: skip
    assert "Meier" not in (tmp_path / "summary.json").read_text()


def test_inputs_are_names_without_paths_queries_and_users() -> None:
    assert summary.inputs_of(INPUTS) == summary.Inputs(
        config="first.yaml", crtdl="cohort.json", input="https://server.test/fhir/__status/1",
        anonymization_config=None, patients="ids.txt",
    )  # fmt: skip


def test_one_that_cannot_be_written_fails_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    summary.write(tmp_path / "file", document())
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("summary.json is not written: ")
