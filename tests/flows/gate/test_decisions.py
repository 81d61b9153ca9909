"""A decision at a wait is explicit, has a person's name, and is shown with the job (4-product.md §2 and §4, "Wait")."""

from __future__ import annotations

import getpass
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from config import PipelineConfig
from flows import run
from flows.commands.decide import DecisionArgs, decision_of
from flows.engine.flow_runs import form_answer
from flows.gate.decisions import decided_meanwhile, rejected
from flows.job.record import JobRecord
from flows.job.state import JobState
from flows.job.steps import destinations
from tasks.shared.report import Approval
from tests.conftest import Commands, ask_prefect
from tests.peers.prefect import page_of
from tests.peers.project import Fhir

BY, COMMENT = "Anna \x1b[31mData", "looked\x07 at it\nall"
"""What a person, or somebody who wants to fool the next one, may write."""


def run_state(api: str, job: str) -> dict[str, Any]:
    """Everything of a run that a command could have changed."""
    found = ask_prefect("GET", f"{api}/flow_runs/{job}")
    return {key: found[key] for key in ("labels", "parameters", "state_id", "name", "run_count")}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--approve", "--reject"], "--approve and --reject together"),
        (["--approve", "--by", " "], "--by needs a name"),
        (["--approve", "--by", "\u200b\u2060"], "--by needs a name"),
        (["--comment", "fine"], "add --approve or --reject"),
        (["--approve", "--comment", "x" * 2001], "longer than 2,000 characters"),
    ],
)
def test_contradictory_incomplete_or_too_long_decisions_are_usage_errors(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.run(["pipeline", "continue", "no-such.yaml", "no-such-job", *words]) == 2
    err = capsys.readouterr().err
    assert "error[usage]" in err
    assert said in err


@pytest.mark.slow
def test_without_a_terminal_a_decision_is_required_and_shown_with_name_and_comment(
    sluice: Commands, project: Path, fhir: Fhir, prefect_api: str
) -> None:
    job = sluice("pipeline", "start", "config.yaml").job
    before = run_state(prefect_api, job)
    undecided = sluice("pipeline", "continue", "config.yaml", job, "--set", "retry.max_attempts=1")
    assert undecided.code == 0, undecided.err
    assert "nothing is decided" in undecided.out
    assert "waits at step 2" in undecided.out
    assert str(project / "jobs" / job / "import") in undecided.out
    assert "--approve or --reject" in undecided.out
    assert run_state(prefect_api, job) == before
    status = json.loads(sluice("pipeline", "continue", "config.yaml", job, "--json").out)
    assert (status["state"], status["approvals"]) == ("waiting", [])
    assert run_state(prefect_api, job) == before
    assert fhir.total() == 0

    done = sluice("pipeline", "continue", "config.yaml", job, "--approve", "--by", BY, "--comment", COMMENT)
    assert done.code == 0, done.err
    assert fhir.total() == 19
    (approval,) = sluice.status(job)["approvals"]
    assert approval.pop("when").endswith("+00:00")
    assert approval == {"position": 2, "approved": True, "by": BY, "comment": COMMENT, "where": "cli"}
    text = sluice("pipeline", "status", "config.yaml", job).out
    assert r"step 2 was approved by Anna \x1b[31mData on the command line at " in text
    assert r": looked\x07 at it\nall" in text
    assert "\x1b" not in text
    page = page_of(prefect_api, job)
    assert r"Step 2 (wait) was approved by Anna" in page
    assert "looked" in page


def on_a_terminal(
    sluice: Commands, answer: str, *words: str, asked: Callable[[], object] = lambda: None
) -> tuple[int, str]:
    """Run a command on a terminal that types ``answer`` at the prompt; return exit code and output.

    ``asked`` is what happens elsewhere between the question and the answer.
    """
    controller, terminal = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "flows.run", "pipeline", "continue", "config.yaml", *words], cwd=sluice.cwd,
        env=sluice.environment, stdin=terminal, stdout=terminal, stderr=terminal,
    )  # fmt: skip
    os.close(terminal)
    shown = b""
    try:
        while True:
            shown += os.read(controller, 4096)
            if answer and b"[y/N]" in shown:
                asked()
                os.write(controller, answer.encode() + b"\n\n\n")  # name and comment are asked behind it
                answer = ""
    except OSError:  # the terminal's last user is gone
        pass
    finally:
        os.close(controller)
        code = child.wait(120)
    return code, shown.decode()


@pytest.mark.e2e
def test_continue_on_a_terminal_shows_data_and_destination_and_asks_unless_approved(
    sluice: Commands, project: Path, fhir: Fhir
) -> None:
    job = sluice("pipeline", "start", "config.yaml").job
    code, shown = on_a_terminal(sluice, "n", job)
    assert code == 0
    assert ".ndjson.zst, " in shown
    assert f"then send: to {fhir.url} (direct_resource_load)" in shown
    assert "Release it? [y/N]" in shown
    assert "nothing is decided" in shown
    assert fhir.total() == 0
    assert sluice.status(job)["state"] == "waiting"

    code, shown = on_a_terminal(sluice, "", job, "--approve")
    assert code == 0
    assert "[y/N]" not in shown
    (approval,) = sluice.status(job)["approvals"]
    assert (approval["by"], approval["comment"], approval["where"]) == (getpass.getuser(), None, "cli")
    assert fhir.total() == 19


@pytest.mark.e2e
def test_a_rejection_in_the_ui_during_a_prompt_counts_and_a_later_yes_does_not(
    sluice: Commands, project: Path, fhir: Fhir, prefect_api: str
) -> None:
    job = sluice("pipeline", "start", "config.yaml").job
    no = {"decision": "reject", "by": "Bo", "comment": "two ids"}
    resume = f"{prefect_api}/flow_runs/{job}/resume"
    code, shown = on_a_terminal(sluice, "y", job, asked=lambda: ask_prefect("POST", resume, {"run_input": no}))
    assert code == 1, shown
    assert "error[job-cancelled]: the job was cancelled in the meantime; this decision was not recorded" in shown
    assert "rejected by Bo in the Prefect UI" in shown
    assert fhir.total() == 0
    status = sluice.status(job)
    assert (status["state"], status["error"]["reference"]) == ("cancelled", "rejected")
    assert [(one["approved"], one["by"], one["where"]) for one in status["approvals"]] == [(False, "Bo", "ui")]


def test_a_decision_that_came_first_is_named_to_whom_comes_second() -> None:
    waits = JobRecord(id="j", name="", state=JobState.WAITING, step_names=("wait",))
    yes = Approval(approved=True, by="Bo", when="now", where="ui")
    second = decided_meanwhile(waits.model_copy(update={"approvals": {1: yes}}), 1)
    assert (second.reference, second.exit_code) == ("not-waiting", 2)
    assert "approved by Bo in the Prefect UI" in str(second.context)
    second = decided_meanwhile(waits.model_copy(update={"state": JobState.CANCELLED}), 1)
    assert (second.reference, second.exit_code) == ("job-cancelled", 1)


def test_the_destinations_behind_a_wait_are_named_without_credentials() -> None:
    config = PipelineConfig.model_validate(
        {
            "services": {
                "pseudonymizer": {"url": "http://pseudo.example:8080/", "auth": {"api_key": "secret"}},
                "flattening": {"service_url": "https://flat.example"},
                "send": {
                    "send_as": "s3_upload",
                    "s3": {"bucket": "study", "secret_access_key": "secret", "endpoint": "https://store.example/x"},
                },
            },
            "pipeline": {"enabled_steps": ["local_import", "wait", "pseudonymizer", "wait", "flattening", "send"]},
        }
    )  # fmt: skip
    assert destinations(config, 2) == [("pseudonymizer", "http://pseudo.example:8080")]
    assert destinations(config, 4) == [
        ("flattening", "https://flat.example"), ("send", "bucket study at https://store.example/x (s3_upload)"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [
        None, {}, {"approved": True}, {"approved": True, "comment": "an older form"}, {"decision": "release"},
        {"decision": "release", "by": ""}, {"decision": "release", "by": " \n"}, {"decision": True, "by": "Anna"},
        {"decision": "yes", "by": "Anna"}, {"by": "Anna", "comment": "fine"}, {"decision": "reject"},
        {"decision": "release", "by": "Anna", "approved": True}, "release", ["release"],
    ],
)  # fmt: skip
def test_what_is_no_full_answer_decides_nothing(answer: Any) -> None:
    class Answers:
        def request(self, method: str, path: str) -> Any:
            return answer

    assert form_answer(Answers(), "job", "key") is None  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_resume_without_the_form_leaves_a_local_job_waiting_for_continue(
    sluice: Commands, project: Path, fhir: Fhir, prefect_api: str
) -> None:
    job = sluice("pipeline", "start", "config.yaml").job
    url = f"{prefect_api}/flow_runs/{job}"
    for answer in (None, {}, {"approved": True}, {"decision": "release"}, {"decision": "release", "by": "  "}):
        refused = ask_prefect("POST", f"{url}/resume", {"run_input": answer})
        assert refused["status"] == "REJECT", answer
    assert ask_prefect("GET", url)["state_name"] == "Paused"

    # As somebody does who sets the state by hand.
    schema = ask_prefect("GET", url)["state"]["state_details"]["run_input_keyset"]["schema"]
    ask_prefect("DELETE", f"{url}/input/{schema}")
    ask_prefect("POST", f"{url}/input", {"key": schema, "value": json.dumps({"type": "object", "properties": {}})})
    assert ask_prefect("POST", f"{url}/resume", {"run_input": {"approved": True}})["status"] == "ACCEPT"
    assert sluice.status(job)["state"] == "waiting"
    ran = sluice("pipeline", "continue", "config.yaml", job)
    assert (ran.code, fhir.total()) == (0, 0)
    assert "nothing is decided" in ran.out
    assert sluice.status(job)["approvals"] == []
    rejection = sluice("pipeline", "continue", "config.yaml", job, "--reject", "--by", "Bo", "--comment", "not yet")
    assert rejection.code == 0
    status = sluice.status(job)
    assert status["state"] == "cancelled"
    assert [(one["approved"], one["by"], one["comment"]) for one in status["approvals"]] == [(False, "Bo", "not yet")]


def test_a_comment_that_is_no_text_can_be_kept() -> None:
    odd = os.fsdecode(b"caf\xe9")
    decision = decision_of(True, DecisionArgs(odd, odd))
    assert Approval.model_validate_json(decision.model_dump_json()) == decision


def test_what_a_person_wrote_does_not_reach_a_terminal_as_control_characters() -> None:
    error = rejected(Approval(approved=False, by=BY, comment=COMMENT, when="now"), "wait")
    assert error.message.isprintable()
    assert (error.context or "").isprintable()
