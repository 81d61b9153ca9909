"""``summary.json``: one document for other tools at the end of a run (docs/observability.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from flows.job.afterwards import cancelled
from flows.job.inputs import JobInputs
from flows.reports import summary
from flows.reports.summary import Compared, Summary
from tasks.shared.report import Problem, StepReport, Waiting

STEPS = [
    StepReport(
        position=1,
        name="local_import",
        state="completed",
        files=2,
        lines_out=7,
        seconds=0.5,
        requests=4,
        retries=1,
        warnings=("odd",),
        details={"types": {"Patient": 6}},
    ),
    StepReport(position=2, name="wait", state="completed", lines_in=7, lines_expected=7),
    StepReport(position=3, name="send", state="failed", lines_expected=7),
]
ERROR = Problem(
    reference="rejected", message="rejected by a person", context="Meier has two ids", hint="start anew", step="wait"
)
INPUTS = JobInputs(
    config="/srv/sluice/first.yaml",
    crtdl="/srv/queries/cohort.json",
    input="https://user:secret@server.test/fhir/__status/1?token=secret",
    patients="/srv/cohorts/ids.txt",
)


def document(*, waiting: Waiting | None = None, error: Problem | None = None) -> Summary:
    return Summary(
        id="368f91e2-dd1f-4d71-8c99-58332d55a824",
        state="failed" if error else "waiting" if waiting else "completed",
        run=2,
        created="2026-03-02T09:15:19.102Z",
        started="2026-03-02T09:16:19.102Z",
        ended="2026-03-02T09:17:19.102Z",
        steps=[summary.of_step(step) for step in STEPS],
        reconciliation=summary.reconciliation(STEPS),
        waiting=summary.where(waiting),
        error=summary.problem(error),
        inputs=summary.inputs_of(INPUTS),
        versions=summary.versions(),
    )


def written(directory: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    return found


WAITING = Waiting(position=2, step="wait", directory="/srv/jobs/x/import_wait", looked_at="x", since="x")


@pytest.mark.parametrize("one", [document(), document(waiting=WAITING), document(error=ERROR)])
def test_it_is_private_validates_and_reads_back(tmp_path: Path, one: Summary) -> None:
    summary.write(tmp_path, one)
    Draft202012Validator(summary.schema()).validate(written(tmp_path))
    assert summary.read(tmp_path) == one
    assert (tmp_path / "summary.json").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_keys_are_never_left_out(tmp_path: Path) -> None:
    summary.write(tmp_path, document())
    found = written(tmp_path)
    assert found["error"] is found["waiting"] is None
    last = found["steps"][2]  # type: ignore[index]
    assert set(last) == set(summary.StepSummary.__struct_fields__)
    assert last["files"] is last["statistics"]["requests"] is None
    assert (last["warnings"], last["details"]) == ([], {})


def test_steps_have_counts_statistics_warnings_and_details() -> None:
    first = document().steps[0]
    assert (first.files, first.lines_out, first.warnings) == (2, 7, ["odd"])
    assert first.details == {"types": {"Patient": 6}}
    assert (first.statistics.seconds, first.statistics.requests, first.statistics.retries) == (0.5, 4, 1)


def test_reconciliation_lists_the_comparisons_that_were_made() -> None:
    assert document().reconciliation == [Compared(position=2, name="wait", written=7, read=7, agrees=True)]


def test_an_error_is_told_without_its_context_which_may_be_a_persons_comment(tmp_path: Path) -> None:
    summary.write(tmp_path, document(error=ERROR))
    assert "Meier" not in (tmp_path / "summary.json").read_text()
    assert written(tmp_path)["error"] == {
        "reference": "rejected", "message": "rejected by a person", "hint": "start anew", "transient": False,
        "step": "wait",
    }  # fmt: skip


def test_inputs_are_names_without_paths_queries_and_users() -> None:
    assert summary.inputs_of(INPUTS) == summary.Inputs(
        config="first.yaml",
        crtdl="cohort.json",
        input="https://server.test/fhir/__status/1",
        anonymization_config=None,
        patients="ids.txt",
    )


def test_a_parked_job_that_is_rejected_is_cancelled_in_the_summary_too(tmp_path: Path) -> None:
    summary.write(tmp_path, document(waiting=WAITING))
    cancelled(tmp_path, "368f91e2-dd1f-4d71-8c99-58332d55a824", ERROR)
    after = summary.read(tmp_path)
    assert after is not None
    assert (after.state, after.run, after.waiting) == ("cancelled", 2, None)
    assert after.error == summary.problem(ERROR)
    assert after.ended > "2026-03-02T09:17:19.102Z"


@pytest.mark.parametrize("content", [None, b"", b"{", b"{}"])
def test_without_a_summary_that_can_be_read_there_is_nothing_to_amend(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_bytes(content)
    summary.amend(tmp_path, "cancelled", "x", None)
    assert summary.read(tmp_path) is None


def test_one_that_cannot_be_written_fails_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    summary.write(tmp_path / "file", document())
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("summary.json is not written: ")
