"""A wait over the command line and the API."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from pathlib import Path

import pytest

from flows import run
from tests.conftest import Commands, ask_prefect
from tests.peers.prefect import page_of
from tests.peers.project import Fhir, GatedJob

LINE = '{"resourceType":"Patient","id":"only-this"}\n'
RELEASE = {"decision": "release", "by": "Anna", "comment": "from the API"}


class Wait(GatedJob):
    """Without release reports."""

    def reconfigure(self, before: str, after: str) -> None:
        text = self.config.read_text()
        assert before in text
        self.config.write_text(text.replace(before, after))

    def waits(self, reason: str | None = None) -> None:
        """The job waits for this reason, and nothing was sent."""
        status = self.status()
        assert (status["state"], status["decisions"]) == ("waiting", [])
        assert (reason or "") in (status["waiting"]["reason"] or "")
        assert (status["waiting"]["reason"] is None) == (reason is None)
        assert self.fhir.posts() == []

    def is_decided(self, approved: bool, by: str, comment: str | None, where: str) -> None:
        status = self.status()
        assert status["state"] == ("completed" if approved else "cancelled")
        assert self.fhir.total() == (19 if approved else 0)
        (decision,) = status["decisions"]
        assert decision.pop("when").endswith("+00:00")
        assert decision == {"position": 2, "approved": approved, "by": by, "comment": comment, "where": where}


@pytest.fixture
def wait(sluice: Commands, project: Path, fhir: Fhir, prefect_api: str) -> Wait:
    return Wait(sluice, project, fhir, prefect_api)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--approve", "--reject"], "--approve and --reject together"),
        (["--comment", "fine"], "add --approve or --reject"),
        (["--approve", "--by", ""], "--by needs a name"),
    ],
)
def test_contradictory_or_incomplete_decisions_are_usage_errors(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.run(["pipeline", "continue", "no-such.yaml", "no-such-job", *words]) == 2
    assert said in capsys.readouterr().err


def test_without_a_decision_the_job_keeps_waiting_and_says_for_what(wait: Wait) -> None:
    started = wait.start()
    before = ask_prefect("GET", wait.run)["state_id"]
    for out in (started.out, wait.go_on().out, wait.text()):
        assert f"the data are in {wait.directory / 'import'}\n" in out
        assert f"into {wait.directory / 'import_wait'}, the unchanged" in out
    for out in (page_of(wait.api, wait.job), wait.form()):
        assert "**The data are in** `import`\n" in out
        assert "into `import_wait`, the unchanged" in out
        assert f"in `{wait.directory}`" in out
    assert ask_prefect("GET", wait.run)["state_id"] == before
    assert wait.fhir.url in wait.form()
    wait.waits()


def test_on_a_terminal_continue_shows_what_will_leave_and_asks(wait: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["n", "y", "Ada", "looked"])
    monkeypatch.setattr("flows.commands.review.on_terminal", lambda: True)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: next(typed))
    wait.start()
    left = wait.sluice.here("pipeline", "continue", "config.yaml", wait.job)
    assert left.code == 0
    assert "core.ndjson.zst" in left.out
    assert wait.fhir.url in left.out
    wait.waits()
    assert wait.sluice.here("pipeline", "continue", "config.yaml", wait.job).code == 0
    wait.is_decided(True, "Ada", "looked", "command")


def test_a_command_approves_and_everybody_sees_who_and_why(wait: Wait) -> None:
    wait.start()
    wait.go_on("--approve", "--by", "Anna \x1b[31mData", "--comment", "looked\x07 at it\nall")
    wait.is_decided(True, "Anna \x1b[31mData", "looked\x07 at it\nall", "command")
    text = wait.text()
    assert r"step 2 was approved by Anna \x1b[31mData on the command line at " in text
    assert r": looked\x07 at it\nall" in text
    assert "\x1b" not in text
    assert r"Step 2 (wait) was approved by Anna" in page_of(wait.api, wait.job)
    assert wait.go_on("--approve", code=2).err.startswith("error[not-waiting]")


@pytest.mark.parametrize("where", ["command", "ui"])
def test_a_rejection_cancels_the_job(wait: Wait, where: str) -> None:
    wait.start()
    if where == "command":
        wait.go_on("--reject", "--comment", "not yet")
    else:
        assert wait.resume({"decision": "reject", "by": getpass.getuser(), "comment": "not yet"}) == "ACCEPT"
        wait.go_on()
    wait.is_decided(False, getpass.getuser(), "not yet", where)
    assert wait.status()["error"]["reference"] == "rejected"
    crashed = {"state": {"type": "CRASHED"}, "force": True}  # as if the process had been killed before the end
    ask_prefect("POST", f"{wait.run}/set_state", crashed)
    wait.go_on()
    wait.is_decided(False, getpass.getuser(), "not yet", where)
    assert "error[job-cancelled]" in wait.go_on(code=1).err


def test_a_release_in_the_form_is_shown_as_decided_and_continue_goes_on(wait: Wait) -> None:
    wait.start()
    for answer in (None, {}, {"approved": True}, {"decision": "release"}, {"decision": "release", "by": "  "}):
        assert wait.resume(answer) == "REJECT", answer
    assert wait.resume(RELEASE) == "ACCEPT"
    assert wait.status()["state"] == "decided"
    assert "pipeline continue" in wait.text()
    assert f"{wait.job}  decided " in wait.sluice("job", "list", "config.yaml").out
    wait.go_on()
    wait.is_decided(True, "Anna", "from the API", "ui")


def test_a_no_in_the_form_counts_where_a_command_says_yes(wait: Wait) -> None:
    wait.start()
    assert wait.resume({"decision": "reject", "by": "Bo"}) == "ACCEPT"
    wait.go_on("--approve")
    wait.is_decided(False, "Bo", None, "ui")


def test_a_resume_without_an_answer_leaves_the_job_waiting(wait: Wait) -> None:
    wait.start()
    ask_prefect("POST", f"{wait.run}/set_state", {"state": {"type": "RUNNING"}, "force": True})
    wait.waits()
    wait.go_on()
    wait.waits("continued without a decision")
    assert ask_prefect("GET", wait.run)["state_name"] == "Paused"
    assert wait.resume(RELEASE) == "ACCEPT"
    wait.go_on()
    wait.is_decided(True, "Anna", "from the API", "ui")


MEDDLING: dict[str, Callable[[Path], object]] = {
    "changed: import/core.ndjson.zst": lambda job: _append(job / "import" / "core.ndjson.zst"),
    "removed: import/batch-0.ndjson.zst": lambda job: (job / "import" / "batch-0.ndjson.zst").unlink(),
    "added: import/more.ndjson": lambda job: (job / "import" / "more.ndjson").write_text(LINE),
    "changed: import_wait/fixed.ndjson": lambda job: _append(job / "import_wait" / "fixed.ndjson"),
    "added: import_wait/fixed.ndjson": lambda job: (job / "import_wait" / "fixed.ndjson").write_text(LINE),
}


def _append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


@pytest.mark.parametrize("what", [what for what in MEDDLING if what != "changed: import_wait/fixed.ndjson"])
def test_files_that_changed_after_they_were_shown_need_a_new_decision(wait: Wait, what: str) -> None:
    wait.start()
    MEDDLING[what](wait.directory)
    wait.go_on("--approve", code=5)
    wait.waits(what)
    assert what in wait.form()
    assert what in wait.text()
    wait.go_on()
    wait.waits("")  # the answer is used up


def test_an_answer_in_the_form_covers_only_the_files_that_it_showed(wait: Wait) -> None:
    wait.start()
    MEDDLING["added: import_wait/fixed.ndjson"](wait.directory)
    assert wait.resume(RELEASE) == "ACCEPT"
    wait.go_on()
    wait.waits("added: import_wait/fixed.ndjson")
    assert "**Missing among the corrected files, so left out**: `batch-0.ndjson.zst`" in wait.form()
    assert "missing among the corrected files, so left out: core.ndjson.zst" in wait.go_on().out
    wait.go_on("--approve")
    assert wait.fhir.total() == 1


def test_a_destination_that_changed_needs_a_new_decision(wait: Wait) -> None:
    wait.start()
    wait.reconfigure(wait.fhir.url, f"{wait.fhir.url}/other")
    wait.reconfigure(f"{wait.fhir.url}/other", f"http://localhost:{wait.fhir.url.rpartition(':')[2]}")
    wait.go_on("--approve", code=5)
    wait.waits("the destination is not the one that was shown: url ")
    wait.go_on("--approve")
    assert wait.fhir.total() == 19


@pytest.mark.parametrize(
    "what",
    ["changed: import/core.ndjson.zst", "added: import_wait/fixed.ndjson", "changed: import_wait/fixed.ndjson",
     "destination"],
)  # fmt: skip
def test_a_change_after_the_approval_sends_nothing_and_parks_the_job_again(wait: Wait, what: str) -> None:
    wait.start()
    if what.startswith("changed: import_wait"):
        MEDDLING["added: import_wait/fixed.ndjson"](wait.directory)
        wait.go_on("--approve", code=5)
    wait.fhir.faults({"action": "status", "status": 503, "path": "/fhir*", "method": "POST", "times": 99})
    wait.go_on("--approve", code=3)
    wait.fhir.faults()
    if what == "destination":
        wait.reconfigure(wait.fhir.url, f"http://localhost:{wait.fhir.url.rpartition(':')[2]}")
    else:
        MEDDLING[what](wait.directory)
    before = len(wait.fhir.posts())
    wait.go_on()
    assert len(wait.fhir.posts()) == before
    status = wait.status()
    assert (status["state"], status["decisions"], status["step"]) == ("waiting", [], "wait")
    assert what in status["waiting"]["reason"]


def test_output_of_a_step_that_was_edited_in_place_cannot_be_approved(wait: Wait) -> None:
    wait.start()
    core = wait.directory / "import" / "core.ndjson.zst"
    before = core.read_bytes()
    _append(core)
    for _ in range(2):
        wait.go_on("--approve", code=5)
        wait.waits(
            "import/ differs from what step 1, local_import, recorded (changed: import/core.ndjson.zst): restore it"
        )
    core.write_bytes(before)
    wait.go_on("--approve", code=5)
    wait.go_on("--approve")
    assert wait.fhir.total() == 19


def test_what_an_editor_leaves_beside_the_data_changes_nothing(wait: Wait) -> None:
    wait.start()
    (wait.directory / "import_wait" / "NOTES.txt~").write_text("x")
    wait.go_on("--approve")
    assert wait.fhir.total() == 19
