"""An approval is for what was seen (4-product.md §2): whatever changes afterwards closes the gate again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from flows.gate.reviewed_files import OTHER_FILES, digest_at_decision, wait_lines
from flows.gate.wait import CurrentWait
from flows.job.job import RunningJob
from flows.job.outcome import Ended
from flows.job.record import JobRecord, now
from flows.job.state import JobState
from flows.job.steps import Sources
from flows.reports.pages import wait_description
from tasks import declared
from tasks.shared.errors import DataError
from tasks.shared.files.inventory import kept_at, take_inventory
from tasks.shared.report import Approval, Waiting
from tasks.shared.step import Source
from tasks.shared.stop import Stop
from tests.conftest import ask_prefect
from tests.flows.job.test_running_job import STEPS, Labels, job  # noqa: F401 - a fixture

LINE = b'{"resourceType":"Patient","id":"only-this"}\n'


class Waits:
    """A job that waits at step 3 over ``import/``, in one process; what a run does there is ``again()``."""

    def __init__(self, job: RunningJob) -> None:  # noqa: F811
        self.job = job
        self.labels = cast("Labels", job.writer).written
        self.input = job.directory.path / "import"
        self.input.mkdir()
        (self.input / "a.ndjson").write_bytes(LINE)
        self.corrections = job.directory.path / "import_wait"
        self.corrections.mkdir()
        self.sources = Sources(STEPS, job.config)
        self.sources.wrote(Source(self.input, 1))
        self.look_at_wait()
        self.park()

    def look_at_wait(self) -> None:
        self.wait = CurrentWait(self.job, 3, self.sources)
        self.wait.read_files()

    def park(self) -> Waiting:
        waiting = self.wait.waiting(self.corrections, self.input)
        self.wait.record(waiting, "form")
        return waiting

    @property
    def digest_seen(self) -> str:
        return self.job.record().seen[3]

    def approve(self) -> None:
        self.look_at_wait()
        assert self.wait.reviewed is not None
        self.job.writer.approve(3, Approval(approved=True, files=self.wait.reviewed.save_seen(self.wait.there)))

    def ended(self) -> Ended | None:
        """Return how the continued run ends at the check; ``None`` if it goes on."""
        self.wait = CurrentWait(self.job, 3, self.sources)
        try:
            self.wait.check()
        except Ended as end:
            return end
        return None

    def again(self) -> bool:
        """Return whether the approval still counts when the run continues."""
        assert self.ended() is None
        return 3 in self.job.record().approvals


@pytest.fixture
def waits(job: RunningJob) -> Waits:  # noqa: F811
    return Waits(job)


def test_what_is_as_it_was_at_the_decision_goes_on(waits: Waits) -> None:
    waits.approve()
    assert waits.again()


def test_corrections_that_were_there_at_the_decision_are_covered(waits: Waits) -> None:
    (waits.corrections / "a.ndjson").write_bytes(LINE * 2)
    waits.approve()
    assert waits.again()
    context = waits.job.context(3, declared("wait"), Source(waits.input, 1))
    assert waits.wait.approved(context).approved == waits.wait.there


MEDDLING: dict[str, Callable[[Waits], object]] = {
    "changed: import/a.ndjson": lambda w: (w.input / "a.ndjson").write_bytes(LINE.replace(b"only", b"0nly")),
    "removed: import/a.ndjson": lambda w: (w.input / "a.ndjson").unlink(),
    "added: import/b.ndjson": lambda w: (w.input / "b.ndjson").write_bytes(b"{}\n"),
    "added: import_wait/a.ndjson": lambda w: (w.corrections / "a.ndjson").write_bytes(b"{}\n"),
}


@pytest.mark.parametrize("what", list(MEDDLING))
def test_what_changed_after_the_decision_closes_the_gate_again_and_is_named(
    waits: Waits, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    waits.approve()
    MEDDLING[what](waits)
    assert not waits.again()
    assert (waits.labels["approval__3"], waits.labels["form__3"]) == (None, None)
    assert f"the approval is void, and the job waits again: {what}" in caplog.text
    waiting = waits.park()
    assert waiting.again == (what,)
    assert f"    {what}" in wait_lines(waiting)
    assert f"`{what}`" in wait_description(waiting, waits.job.step_names)
    waits.approve()
    assert waits.again()


def test_what_is_no_data_may_come_and_go(waits: Waits) -> None:
    waits.approve()
    (waits.corrections / "NOTES.txt").write_text("x")
    assert waits.again()


def test_an_approval_without_hashes_covers_nothing(waits: Waits) -> None:
    waits.job.writer.approve(3, Approval(approved=True))
    assert not waits.again()
    assert waits.park().again == (OTHER_FILES,)


def test_a_list_of_files_that_was_changed_too_hides_nothing(waits: Waits) -> None:
    waits.approve()
    (waits.input / "a.ndjson").write_bytes(LINE * 2)
    waits.look_at_wait()
    assert waits.wait.reviewed is not None
    waits.wait.reviewed.save_seen(waits.wait.there)
    assert not waits.again()


def test_a_rejection_needs_no_files(waits: Waits) -> None:
    waits.job.writer.approve(3, Approval(approved=False))
    ended = waits.ended()
    assert ended is not None
    assert ended.state.is_cancelled()


def test_what_was_seen_at_one_wait_says_nothing_about_a_later_one_that_is_complete(waits: Waits) -> None:
    waits.approve()
    (waits.corrections / "a.ndjson").write_bytes(LINE)
    waits.look_at_wait()  # as at a wait before
    for position in (3, 4):
        waits.job.steps[position] = waits.job.steps[position].model_copy(update={"state": "completed"})
    assert waits.again()
    assert waits.wait.reviewed is None


IN_PLACE = [what for what in MEDDLING if "import/" in what]


@pytest.mark.parametrize("what", IN_PLACE)
def test_what_was_edited_where_its_step_left_it_cannot_be_approved(waits: Waits, what: str) -> None:
    left = take_inventory(waits.job.directory.path, [waits.input], stop=Stop())
    left.save(kept_at(waits.job.directory.path, 1))
    done = waits.job.steps[1].model_copy(update={"state": "completed", "output": "import", "inventory": left.digest})
    waits.job.steps[1] = done
    waiting = waits.park()
    record = JobRecord(
        id="j", name="", state=JobState.WAITING, steps=tuple(waits.job.steps.values()), seen={3: waits.digest_seen}
    )  # fmt: skip
    assert digest_at_decision(waits.job.directory.path, record, waiting) == waits.digest_seen
    MEDDLING[what](waits)
    with pytest.raises(DataError) as caught:
        digest_at_decision(waits.job.directory.path, record, waiting)
    assert (caught.value.reference, caught.value.context) == ("edited-in-place", what)

    waits.approve()  # in the form, which showed it
    ended = waits.ended()
    assert ended is not None
    assert ended.state.is_failed()
    assert waits.labels["error"].reference == "edited-in-place"

    (waits.corrections / "all.ndjson").write_bytes(LINE)  # nobody reads the other then
    waits.approve()
    assert waits.again()
    assert digest_at_decision(waits.job.directory.path, record, waiting)


class Released(Waits):
    """The same job, approved and released; ``begun`` is true if ``send`` has started."""

    def __init__(self, job: RunningJob) -> None:  # noqa: F811
        super().__init__(job)
        self.approve()
        self.is_("completed", 3)

    def is_(self, state: str, position: int = 4, started: str | None = None) -> None:
        known = self.job.steps[position]
        self.job.steps[position] = known.model_copy(update={"state": state, "started": started, "resources_out": 19})


@pytest.fixture
def released(job: RunningJob) -> Released:  # noqa: F811
    return Released(job)


@pytest.mark.parametrize("what", list(MEDDLING))
def test_a_change_after_a_wait_repeats_it_while_no_step_has_read_the_data(released: Released, what: str) -> None:
    assert released.again()
    MEDDLING[what](released)
    assert not released.again()
    assert (released.labels["approval__3"], released.labels["form__3"]) == (None, None)
    assert (released.labels["step__3"].state, released.labels["step__3"].resources_out) == ("pending", None)
    assert released.park().again == (what,)
    assert (released.corrections / "a.ndjson").exists() == ("import_wait" in what)


@pytest.mark.parametrize("what", list(MEDDLING))
def test_a_change_after_a_wait_is_an_error_once_a_step_has_read_the_data(released: Released, what: str) -> None:
    released.is_("failed", started=now())
    aside = released.job.directory.path / "aside"
    shutil.copytree(released.job.directory.path, aside)
    MEDDLING[what](released)
    ended = released.ended()
    assert ended is not None
    assert ended.state.is_failed()
    error = released.labels["error"]
    assert (error.reference, error.step, error.context) == ("approved-files-changed", "send", what)
    assert "--from 3" in error.hint
    assert "renames import_wait/" in error.hint
    assert 3 in released.job.record().approvals
    assert released.job.steps[3].state == "completed"
    for folder in ("import", "import_wait"):  # put back
        shutil.rmtree(released.job.directory.path / folder)
        (aside / folder).rename(released.job.directory.path / folder)
    assert released.again()


def test_data_that_every_step_has_read_may_be_tidied_away(released: Released) -> None:
    released.is_("completed")
    (released.input / "a.ndjson").unlink()
    assert released.again()


@pytest.mark.parametrize("answer", ["reject", "release", None])
def test_a_no_in_the_form_counts_where_a_command_said_yes_at_the_same_moment(waits: Waits, answer: str | None) -> None:
    waits.approve()
    given = {"decision": answer, "by": "Bo"} if answer else None
    ask = waits.job.api.request
    waits.job.api.request = lambda method, path, body=None: (  # type: ignore[method-assign]
        given if "/input/" in path else ask(method, path, body)
    )
    ended = waits.ended()
    assert (ended is not None) == (answer == "reject")
    kept = waits.job.record().approvals[3]
    assert (kept.approved, kept.by, kept.where) == ((False, "Bo", "ui") if answer == "reject" else (True, "", "cli"))


def test_corrections_that_are_there_when_it_is_parked_are_listed(waits: Waits) -> None:
    (waits.corrections / "fixed.ndjson").write_bytes(LINE)
    waits.look_at_wait()
    waiting = waits.park()
    assert waiting.files == ("fixed.ndjson, 44 B",)
    assert f"  send will read the corrected files in {waits.corrections}" in wait_lines(waiting)
    assert f"- `{waiting.files[0]}`" in wait_description(waiting, waits.job.step_names)
    assert f"    {waiting.files[0]}" in wait_lines(waiting)


@pytest.mark.slow
def test_an_answer_in_the_ui_covers_only_the_files_that_the_form_showed(
    sluice: Any, project: Path, fhir: Any, prefect_api: str
) -> None:
    name = sluice("pipeline", "start", "config.yaml").job
    directory = project / "jobs" / name
    (directory / "import_wait" / "fixed.ndjson").write_bytes(LINE)
    ask_prefect("POST", f"{prefect_api}/flow_runs/{name}/resume", {"run_input": ANSWER})
    once_more = sluice("pipeline", "continue", "config.yaml", name)
    assert once_more.code == 0, once_more.err
    assert "the job waits again for a decision on the current files:" in once_more.out
    assert "added: import_wait/fixed.ndjson" in once_more.out
    assert sluice.status(name)["state"] == "waiting"
    assert "approved by" not in sluice("pipeline", "status", "config.yaml", name).out
    assert (
        "the approval is void, and the job waits again: added: import_wait/fixed.ndjson"
        in (directory / "job.log").read_text()
    )
    assert fhir.total() == 0

    ask_prefect("POST", f"{prefect_api}/flow_runs/{name}/resume", {"run_input": ANSWER})
    done = sluice("pipeline", "continue", "config.yaml", name)
    assert done.code == 0, done.err
    assert fhir.total() == 1
    for kept in ("1-inventory.ndjson", "2-inventory.ndjson", "2-seen.ndjson"):
        assert (directory / ".results" / kept).stat().st_mode & 0o777 == 0o600


def corrected_too_late(sluice: Any, project: Path, fhir: Any) -> Path:
    """Add a correction after ``send`` was approved and failed; ``continue`` refuses and names it."""
    name = sluice("pipeline", "start", "config.yaml").job
    correction = project / "jobs" / name / "import_wait" / "fixed.ndjson"
    fhir.faults({"action": "status", "status": 503, "path": "/fhir*", "method": "POST", "times": 99})
    assert sluice("pipeline", "continue", "config.yaml", name, "--approve").code == 3
    fhir.faults()
    correction.write_bytes(LINE)
    refused = sluice("pipeline", "continue", "config.yaml", name)
    assert refused.code == 1
    assert "error[approved-files-changed]" in refused.err
    assert "added: import_wait/fixed.ndjson" in refused.err
    assert fhir.total() == 0
    return correction


@pytest.mark.slow
def test_a_correction_that_comes_after_send_has_begun_is_not_passed_over(sluice: Any, project: Path, fhir: Any) -> None:
    corrected_too_late(sluice, project, fhir)


def posts(fhir: Any) -> int:
    return len(fhir.posts())


ANSWER = {"decision": "release", "by": "Anna"}
