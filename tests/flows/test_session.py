"""How a command ends after its job: the exit code, and what is printed where."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config import load_config
from flows.job.find import Session
from flows.job.problem import Problem
from flows.session import outcome
from tasks.shared.errors import GateError, NetworkError, SluiceError, TerminalError
from tests.peers.prefect import FakePrefect, prefect_in_memory

JOB = "368f91e2-dd1f-4d71-8c99-58332d55a824"
REJECTED = Problem(reference="rejected", message="rejected by Bo")


@pytest.fixture
def prefect() -> Iterator[FakePrefect]:
    with prefect_in_memory() as known:
        yield known


def failed(error: SluiceError) -> dict[str, Any]:
    return {"job.error": Problem.of(error, "send").model_dump_json()}


@pytest.mark.parametrize(
    ("state", "labels", "code", "out", "err"),
    [
        ("COMPLETED", {}, 0, f"job {JOB} is complete; its files are in ", ""),
        ("PAUSED", {"job.waiting": "{}"}, 0, "continue with: ", ""),
        ("Stopped", {"job.stopped_by": "SIGTERM"}, 143, "", f"job {JOB} is stopped\ncontinue with: "),
        ("Stopped", {"job.stopped_by": "SIGINT"}, 130, "", f"job {JOB} is stopped\ncontinue with: "),
        ("Stopped", {}, 130, "", f"job {JOB} is stopped\ncontinue with: "),
        ("CANCELLED", {}, 1, "", f"job {JOB} is cancelled\n"),
        ("CANCELLED", {"job.error": REJECTED.model_dump_json()}, 0, "", f"job {JOB} is cancelled: rejected by Bo\n"),
        ("FAILED", failed(NetworkError("connect-failed", "x")), 3, "", "error[connect-failed]: x\ncontinue with: "),
        ("FAILED", failed(GateError("validation-findings", "x")), 5, "", "error[validation-findings]: x\n"),
        ("FAILED", failed(TerminalError("send-refused", "x")), 1, "", "error[send-refused]: x\n"),
    ],
)  # fmt: skip
def test_exit_codes_and_output(
    prefect: FakePrefect, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    state: str, labels: dict[str, str], code: int, out: str, err: str,
) -> None:  # fmt: skip
    session = job(prefect, tmp_path, state, labels)
    assert outcome(session, JOB, as_json=False) == code
    said = capsys.readouterr()
    assert [said.out.startswith(out), bool(said.out)] == [True, bool(out)], said.out
    assert [said.err.startswith(err), bool(said.err)] == [True, bool(err)], said.err


def test_an_end_without_a_reason_is_an_error_that_leads_to_the_log(prefect: FakePrefect, tmp_path: Path) -> None:
    with pytest.raises(TerminalError, match="ended as interrupted") as caught:
        outcome(job(prefect, tmp_path, "RUNNING", {}), JOB, as_json=False)
    assert f"{tmp_path}/{JOB}/job.log" in str(caught.value.hint)


def job(prefect: FakePrefect, tmp_path: Path, state: str, labels: dict[str, str]) -> Session:
    (tmp_path / "c.yaml").write_text(f"pipeline: {{enabled_steps: [local_import]}}\njobs_dir: {tmp_path}\n")
    known = {"job.directory": str(tmp_path / JOB), "job.steps": "send"} | labels
    kind = "CRASHED" if state == "Stopped" else state
    prefect.run = {"id": JOB, "state_type": kind, "state_name": state.capitalize(), "labels": known}
    return Session(load_config(tmp_path / "c.yaml"), prefect.api)
