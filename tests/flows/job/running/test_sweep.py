"""Runs without a process: judged only with a proof, corrected in Prefect, and continued if their job is scheduled."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from flows.engine.api import PrefectApi
from flows.engine.api_address import ApiAddress
from flows.job.record import JobRecord, hint_anywhere
from flows.job.running.lock import LOCK, Holder, last_holder, last_sign, this_machine
from flows.job.running.state import TAKEN_UP
from flows.job.running.sweep import AT_MOST, EVERY, FRESH, WATCHED, Sweep, notice
from tasks.shared.errors import SluiceError
from tests.conftest import own_name

LONG_AGO = datetime.now(UTC) - timedelta(minutes=30)


class Runs:
    """A Prefect API that has some runs."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.runs: dict[str, dict[str, Any]] = {}
        self.away = False
        self.meanwhile: dict[str, str] = {}
        """States that runs get between the list and the second look."""

    def add(self, name: str, kind: str, state: str = "", *, holder: Holder | str | None = "here", **more: Any) -> Path:
        """Add a run whose lock has this holder. ``here``: a process of this machine, None: without a directory."""
        directory = self.place / name
        labels = {"job.steps": "local_import,send", "job.config": "/etc/sluice/nightly.yaml"} | more.pop("labels", {})
        labels["job.step.1"] = json.dumps({"position": 1, "name": "local_import", "state": "completed"})
        if holder is not None:
            directory.mkdir()
            here = Holder(1, "h", this_machine())
            content = msgspec.json.encode(here if holder == "here" else holder) if holder else b""
            (directory / LOCK).write_bytes(content)
            os.utime(directory / LOCK, (LONG_AGO.timestamp() + 1,) * 2)
            labels["job.directory"] = str(directory)
        self.runs[name] = {
            "id": name, "name": name, "labels": labels, "updated": "1", "deployment_id": "d", "auto_scheduled": False,
            "expected_start_time": LONG_AGO.isoformat(), "parameters": {}, "flow_id": "f",
        } | more  # fmt: skip
        self.set(name, kind, state or kind.capitalize())
        return directory

    def set(self, name: str, kind: str, state: str, message: str = "") -> None:
        number = int(self.runs[name].get("state", {"id": 0})["id"]) + 1
        at = LONG_AGO.isoformat()
        self.runs[name] |= {
            "state": {"id": number, "type": kind, "name": state, "message": message, "timestamp": at},
            "state_type": kind, "state_name": state,
        }  # fmt: skip

    def shown(self, name: str) -> tuple[str, str]:
        return self.runs[name]["state_type"], self.runs[name]["state_name"]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.away:
            return httpx.Response(500)
        words, body = request.url.path.split("/"), json.loads(request.content or b"null")
        if request.url.path == "/flow_runs/filter":
            kinds = body["flow_runs"]["state"]["type"]["any_"]
            times = body["flow_runs"].get("expected_start_time", {})
            found = [run for run in self.runs.values() if run["state_type"] in kinds]
            found = [run for run in found if run["expected_start_time"] >= times.get("after_", "")]
            found = [run for run in found if run["expected_start_time"] <= times.get("before_", "9")]
            return httpx.Response(200, json=found)
        run = self.runs[words[2]]
        if words[-1] == "labels":
            run["labels"] |= body
        elif request.method == "PATCH":
            run |= body
        elif words[-1] == "set_state":
            self.set(run["id"], body["state"]["type"], body["state"]["name"], body["state"]["message"])
        elif run["id"] in self.meanwhile:
            self.set(run["id"], self.meanwhile.pop(run["id"]), "Meanwhile")
        return httpx.Response(200, json=run)


class Looks:
    """A sweep with a clock of its own."""

    def __init__(self, runs: Runs, api: PrefectApi) -> None:
        self.runs = runs
        self.now = 1000.0
        self._sweep = Sweep(api, clock=lambda: self.now)

    def __call__(self, unfinished: Any = None, *, after: float = 0.0) -> list[str]:
        self.now += after
        return [str(noticed) for noticed in self._sweep.run_once(unfinished)]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / own_name(tmp_path))


@pytest.fixture
def api(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrefectApi]:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    runs.place.mkdir()
    with PrefectApi(ApiAddress(url="http://127.0.0.1"), patience=0) as api:
        api.close()
        api._client = httpx.Client(transport=httpx.MockTransport(runs), base_url="http://127.0.0.1")
        yield api


@pytest.fixture
def sweeping(runs: Runs, api: PrefectApi) -> Looks:
    return Looks(runs, api)


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Another process has the job's lock."""
    with (directory / LOCK).open("rb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


ELSEWHERE = Holder(1, "h", "another machine")


def test_a_run_whose_process_died_here_is_interrupted_at_once_with_step_and_command(
    runs: Runs, sweeping: Looks
) -> None:
    runs.add("j", "RUNNING")
    assert sweeping()
    assert runs.shown("j") == ("CRASHED", "Interrupted")
    first, second = runs.runs["j"]["state"]["message"].split("\n")
    assert first == "interrupted at send: the process that ran it is gone"
    assert second == hint_anywhere(JobRecord.of(runs.runs["j"]))
    assert sweeping() == []


def test_who_puts_it_right_leaves_the_time_of_the_last_sign_of_life(runs: Runs, sweeping: Looks) -> None:
    directory = runs.add("j", "RUNNING")
    (directory / "job.log").write_text("a line")
    died = LONG_AGO + timedelta(minutes=3)
    os.utime(directory / "job.log", (died.timestamp(),) * 2)
    assert sweeping()
    last = last_holder(directory)
    assert last is not None
    assert last.holder is None
    since = last_sign(directory)
    assert since is not None
    assert abs(since - died) < timedelta(seconds=1)


def test_one_that_was_cancelled_ends_as_cancelled(runs: Runs, sweeping: Looks) -> None:
    runs.add("j", "CANCELLING")
    sweeping()
    assert runs.shown("j") == ("CANCELLED", "Cancelled")


def test_a_run_that_somebody_holds_is_left_alone(runs: Runs, sweeping: Looks) -> None:
    with ExitStack() as holders:
        for kind in ("RUNNING", "CANCELLING", "PENDING"):
            holders.enter_context(held(runs.add(kind, kind)))
        assert sweeping() == []
        assert sweeping(after=WATCHED) == []


def test_a_run_that_has_just_begun_and_not_taken_its_lock_yet_is_left_alone(runs: Runs, sweeping: Looks) -> None:
    runs.add("j", "RUNNING", holder="")
    runs.runs["j"]["state"]["timestamp"] = datetime.now(UTC).isoformat()
    assert sweeping() == []
    assert sweeping(after=WATCHED) == []


def test_a_continued_run_slow_to_lock_is_not_judged_by_its_predecessor(runs: Runs, sweeping: Looks) -> None:
    directory = runs.add("j", "RUNNING")
    os.utime(directory / LOCK, (LONG_AGO.timestamp() - 600,) * 2)
    assert sweeping() == []
    with held(directory):
        assert sweeping(after=WATCHED) == []
    assert sweeping(after=1) == []
    assert sweeping(after=WATCHED)


@pytest.mark.parametrize("holder", [ELSEWHERE, ""], ids=["another machine had it", "it was given back"])
def test_a_run_of_another_machine_is_watched_for_a_whole_lease(runs: Runs, sweeping: Looks, holder: Any) -> None:
    runs.add("j", "RUNNING", holder=holder)
    assert sweeping() == []
    assert sweeping(after=WATCHED - 1) == []
    assert sweeping(after=1)
    assert runs.shown("j") == ("CRASHED", "Interrupted")


LEASED = Holder(1, "h", "another machine", "limit")


def test_a_lease_is_watched_by_the_lock_of_a_worker_and_not_by_a_command_that_shows(
    runs: Runs, sweeping: Looks, api: PrefectApi
) -> None:
    runs.add("j", "RUNNING", holder=LEASED)
    notice(api)
    assert runs.shown("j") == ("RUNNING", "Running")
    assert sweeping()
    assert runs.shown("j") == ("CRASHED", "Interrupted")


def test_the_leases_of_a_dead_machine_are_watched_together(
    runs: Runs, sweeping: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(3)

    @contextmanager
    def watches(_: JobRecord) -> Iterator[None]:
        together.wait(10)
        yield

    monkeypatch.setattr("flows.job.running.sweep._nobody_else", watches)
    for name in ("a", "b", "c"):
        runs.add(name, "RUNNING", holder=LEASED)
    assert len(sweeping()) == 3


def test_a_sign_of_life_in_the_record_begins_the_watch_anew(runs: Runs, sweeping: Looks) -> None:
    runs.add("j", "RUNNING", holder=ELSEWHERE)
    sweeping()
    runs.runs["j"]["updated"] = "2"
    assert sweeping(after=WATCHED) == []
    assert sweeping(after=WATCHED)


def test_so_does_a_server_that_was_away_and_a_look_that_was_not_taken(runs: Runs, sweeping: Looks) -> None:
    runs.add("j", "RUNNING", holder=ELSEWHERE)
    sweeping()
    runs.away = True
    with pytest.raises(SluiceError):
        sweeping(after=WATCHED / 2)
    runs.away = False
    assert sweeping(after=WATCHED / 2) == []
    assert sweeping(after=10 * EVERY) == []
    assert sweeping(after=WATCHED)


def test_what_changed_since_the_list_was_read_is_left_alone(runs: Runs, sweeping: Looks) -> None:
    runs.add("j", "RUNNING")
    runs.meanwhile["j"] = "COMPLETED"
    assert sweeping() == []
    assert runs.shown("j") == ("COMPLETED", "Meanwhile")


def test_a_job_whose_directory_is_not_seen_here_is_not_judged(runs: Runs, sweeping: Looks) -> None:
    runs.add("j", "RUNNING", holder=None, labels={"job.directory": str(runs.place / "elsewhere")})
    for _ in range(20):
        assert sweeping(after=EVERY) == []


@pytest.mark.parametrize("kind", ["PENDING", "RUNNING"])
def test_a_started_run_without_a_directory_is_watched_for_ten_minutes(runs: Runs, sweeping: Looks, kind: str) -> None:
    runs.add("j", kind, holder=None)
    minutes = int(TAKEN_UP.total_seconds() / EVERY)
    assert [sweeping(after=EVERY) for _ in range(minutes)] == [[]] * minutes
    assert sweeping(after=EVERY)
    assert runs.shown("j") == ("CRASHED", "Interrupted")


CUT = {"auto_scheduled": True}
STOPPED = CUT | {"labels": {"job.stopped_by": "SIGTERM"}}


def test_jobs_of_a_schedule_that_were_cut_off_go_on_and_nobody_else_s(runs: Runs, sweeping: Looks) -> None:
    runs.add("died", "CRASHED", "Interrupted", **CUT)
    runs.add("crashed", "CRASHED", "Crashed", **CUT)
    runs.add("stopped with its worker", "CRASHED", "Stopped", **STOPPED)
    runs.add("by a person", "CRASHED", "Stopped", auto_scheduled=True, labels={"job.stopped_by": "SIGINT"})
    runs.add("of no schedule", "CRASHED", "Interrupted")
    runs.add("failed", "FAILED", **CUT)
    runs.add("days ago", "CRASHED", "Interrupted", expected_start_time=(LONG_AGO - FRESH).isoformat(), **CUT)
    runs.add("not here", "CRASHED", "Interrupted", holder=None, labels={"job.directory": "/elsewhere"}, **CUT)
    runs.add("of another pool", "CRASHED", "Interrupted", work_pool_name="tell-only", **CUT)
    before = {name: runs.shown(name) for name in runs.runs}
    assert len(sweeping("continue")) == 3
    changed = {name for name in runs.runs if runs.shown(name) != before[name]}
    assert changed == {"died", "crashed", "stopped with its worker"}
    assert {runs.shown(name) for name in changed} == {("SCHEDULED", "Continuing")}
    assert sweeping("continue") == []


def test_a_job_in_a_directory_that_may_not_be_entered_keeps_no_other_from_its_turn(
    runs: Runs, sweeping: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.add("somebody else's", "CRASHED", "Interrupted", **CUT)
    runs.add("ours", "CRASHED", "Interrupted", **CUT)
    real = os.stat

    def refused(path: Any, **more: Any) -> os.stat_result:
        if "somebody" in str(path):
            raise PermissionError
        return real(path, **more)

    monkeypatch.setattr(os, "stat", refused)
    assert sweeping("continue") == ["job ours: was interrupted, and is continued"]


def test_a_job_that_ends_its_process_each_time_is_not_continued_for_ever(runs: Runs, sweeping: Looks) -> None:
    runs.add("j", "CRASHED", "Interrupted", **CUT)
    for _ in range(AT_MOST):
        assert sweeping("continue") == ["job j: was interrupted, and is continued"]
        runs.set("j", "CRASHED", "Crashed")
    assert sweeping("continue") == [
        f"job j: is interrupted at send (it was continued 3 times)\n{hint_anywhere(JobRecord.of(runs.runs['j']))}"
    ]
    assert sweeping("continue") == []


def test_tell_tells_once_and_changes_nothing(runs: Runs, sweeping: Looks) -> None:
    runs.add("j", "CRASHED", "Stopped", **STOPPED)
    assert sweeping("tell") == [f"job j: is stopped at send\n{hint_anywhere(JobRecord.of(runs.runs['j']))}"]
    assert sweeping("tell") == []
    assert runs.shown("j") == ("CRASHED", "Stopped")


def test_a_job_that_another_process_has_taken_up_meanwhile_is_left_to_it(runs: Runs, sweeping: Looks) -> None:
    runs.add("j", "CRASHED", "Interrupted", **CUT)
    runs.meanwhile["j"] = "RUNNING"
    assert sweeping("continue") == []
    assert runs.shown("j") == ("RUNNING", "Meanwhile")
