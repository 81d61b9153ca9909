"""``job prune``: old jobs go, directory and record; what runs or waits stays (issue "Notifications and retention")."""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock
from uuid import uuid4

import msgspec
import pytest

from config import STEPS
from flows.engine.api import PrefectApi
from flows.engine.flow_runs import rename_run, set_labels, set_parameters
from flows.job.directory import JobDirectory
from flows.job.prune import _remove_batch, delete, held, prune
from flows.job.record import JobRecord
from flows.job.running.lease import Lease
from flows.job.running.lock import Holder, JobBusyError, JobLock
from flows.job.running.proof import LeaseTimes
from flows.job.running.state import JobState
from flows.run import run
from tasks import declared
from tasks.shared.errors import SluiceError
from tasks.shared.report import Problem, Waiting
from tests.conftest import ROOT, Commands, address_of, ask_prefect, without_waiting


def jobs(sluice: Commands) -> dict[str, str]:
    return {row["id"]: row["state"] for row in json.loads(sluice("job", "list", "config.yaml", "--json").out)}


@pytest.fixture
def three(sluice: Commands, project: Path) -> dict[str, str]:
    """Return a completed, a cancelled and a waiting job."""
    named = {}
    for kind, decision in (("completed", "--approve"), ("cancelled", "--reject"), ("waiting", None)):
        job = sluice("pipeline", "start", "config.yaml").job
        if decision:
            assert sluice("pipeline", "continue", "config.yaml", job, decision).code == 0
        named[kind] = job
    time.sleep(0.1)
    return named


def test_old_jobs_are_deleted_and_a_waiting_one_never_is(
    sluice: Commands, project: Path, three: dict[str, str]
) -> None:
    shown = sluice("job", "prune", "config.yaml", "--older-than", "50ms", "--dry-run", "--json")
    assert {row["id"] for row in json.loads(shown.out)} == {three["completed"], three["cancelled"]}
    assert all(row["bytes"] > 0 for row in json.loads(shown.out))
    assert len(jobs(sluice)) == 3  # a dry run deletes nothing

    young = sluice("job", "prune", "config.yaml", "--older-than", "P1D")
    assert (young.code, young.out) == (0, "0 jobs, 0 B are deleted\n")

    with JobLock(project / "jobs" / three["completed"]):
        held = sluice("job", "prune", "config.yaml", "--older-than", "50ms")
        assert held.out.splitlines()[0].startswith(f"job {three['cancelled']}  cancelled")
        assert held.out.splitlines()[-1].startswith("1 jobs, ")
    assert sluice("job", "prune", "config.yaml", "--older-than", "PT0.05S").code == 0
    assert jobs(sluice) == {three["waiting"]: "waiting"}
    left = {path.name for path in (project / "jobs").iterdir() if not path.name.startswith(".")}
    assert left == {three["waiting"]}


def test_an_age_that_is_none_is_a_usage_error(sluice: Commands, project: Path) -> None:
    ran = sluice("job", "prune", "config.yaml", "--older-than", "30")
    assert ran.code == 2
    assert "--older-than" in ran.err


def test_before_the_first_job_there_is_nothing_to_prune(sluice_alone: Commands, project: Path) -> None:
    ran = sluice_alone("job", "prune", "config.yaml", "--older-than", "P30D")
    assert (ran.code, ran.out) == (0, "0 jobs, 0 B are deleted\n")


@dataclass
class Records:
    """Jobs as their records and directories are, made without running them."""

    place: Path
    api: str
    flow: str

    @property
    def config(self) -> str:
        return str(self.place / "config.yaml")

    def make(
        self, state: str, name: str | None = None, *, directory: bool = True, deployment: str | None = None
    ) -> str:
        """Make a job in this state of Prefect, with a data file."""
        body = {
            "flow_id": self.flow, "parameters": {"config": self.config}, "deployment_id": deployment,
            "state": {"type": state, "name": name or state.capitalize()},
        }  # fmt: skip
        job = str(ask_prefect("POST", f"{self.api}/flow_runs/", body)["id"])
        labels = {"job.config": self.config, "job.steps": "local_import,wait"}
        if state == "PAUSED":
            labels["job.waiting"] = Waiting(
                position=2, step="wait", directory="/d", looked_at="/l", since="now"
            ).model_dump_json()
        if directory:
            labels["job.directory"] = str(self.directory(job))
            self.fill(job)
        ask_prefect("PATCH", f"{self.api}/flow_runs/{job}/labels", labels)
        return job

    def directory(self, job: str) -> Path:
        return self.place / "jobs" / job

    def fill(self, job: str) -> None:
        """Fill a job's directory with the files that matter for its removal."""
        for name in ("import/batch-0.ndjson", ".results/1-local_import.json", "job.log", ".lock"):
            path = self.directory(job) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("" if name == ".lock" else "x")

    def is_known(self, job: str) -> bool:
        with PrefectApi(address_of(self.api)) as api:
            return api.read_run(job) is not None

    def prune(self, capsys: pytest.CaptureFixture[str], *, dry_run: bool = False, code: int = 0) -> set[str]:
        """Run the prune and return the jobs that its output lists as deleted."""
        assert prune(self.config, timedelta(0), (), dry_run=dry_run, as_json=True) == code
        return {row["id"] for row in json.loads(capsys.readouterr().out)}


@pytest.fixture
def records(tmp_path: Path, prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> Records:
    (tmp_path / "config.yaml").write_text(
        "services: {local_import: {dir: data}}\npipeline: {enabled_steps: [local_import, wait]}\n"
        f"jobs_dir: {tmp_path}/jobs\n"
    )
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    flow = ask_prefect("POST", f"{prefect_api}/flows/", {"name": "pipeline"})["id"]
    return Records(tmp_path, prefect_api, flow)


@pytest.fixture
def deployment(records: Records) -> Iterator[str]:
    body = {"name": records.place.name, "flow_id": records.flow}
    made = str(ask_prefect("POST", f"{records.api}/deployments/", body)["id"])
    yield made
    ask_prefect("DELETE", f"{records.api}/deployments/{made}")


@pytest.mark.slow
def test_what_has_ended_goes_and_what_runs_waits_or_is_scheduled_stays(
    records: Records, deployment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = {
        records.make("COMPLETED"), records.make("FAILED"), records.make("CANCELLED"),
        records.make("CRASHED", "Stopped"), records.make("RUNNING"),  # nobody holds its lock: interrupted
    }  # fmt: skip
    stays = {
        records.make("PAUSED"), records.make("PAUSED", "Suspended"), records.make("SCHEDULED", deployment=deployment),
        records.make("PENDING", deployment=deployment, directory=False),
    }  # fmt: skip
    running = records.make("RUNNING")
    with (records.directory(running) / ".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as another process does
        assert records.prune(capsys, dry_run=True) == ended
        assert records.prune(capsys) == ended
    assert not any(records.is_known(job) or records.directory(job).exists() for job in ended)
    assert all(records.is_known(job) for job in stays | {running})
    assert {path.name for path in (records.place / "jobs").iterdir()} >= {running}


@pytest.mark.slow
def test_a_job_that_another_machine_runs_stays_also_where_its_directory_is_not_seen(
    records: Records, prefect_api: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.job.running.lease.TIMES", LeaseTimes(lease=10.0, renew=0.2, retry=0.2, look=0.2))
    seen, unseen = records.make("RUNNING"), records.make("RUNNING")
    leases = [Lease(address_of(prefect_api), job).acquire() for job in (seen, unseen)]
    for lease in leases:
        lease.hold()
    try:
        holder = Holder(1, "other", "the other machine", leases[0].limit)
        (records.directory(seen) / ".lock").write_bytes(msgspec.json.encode(holder))
        shutil.rmtree(records.directory(unseen))
        assert records.prune(capsys) == set()
        with pytest.raises(SluiceError) as refused:
            delete(records.config, unseen, ())
        assert (refused.value.reference, refused.value.exit_code) == ("job-busy", 4)
    finally:
        for lease in leases:
            lease.release()
    assert records.prune(capsys) == {seen, unseen}
    assert not records.directory(seen).exists()


def test_a_run_whose_configuration_is_nowhere_is_listed_with_its_reason(
    records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    """In every list of that API: in its own nobody would ever look."""
    job = records.make("FAILED", directory=False)
    with PrefectApi(address_of(records.api)) as api:
        set_parameters(api, job, {"config": str(records.place / "misspelt.yaml")})
        error = Problem(reference="config-not-found", message="there is no such file")
        set_labels(api, job, {"job.config": "", "job.error": error.model_dump_json()})
        rename_run(api, job, "typed by somebody")
    assert run(["job", "list", records.config]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(job)]
    assert "failed" in line
    assert line.endswith("typed by somebody: config-not-found, there is no such file")
    assert records.prune(capsys) == {job}


def test_a_job_without_a_directory_is_pruned_and_one_that_never_had_one_too(
    records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    lost, never = records.make("COMPLETED"), records.make("FAILED", directory=False)
    shutil.rmtree(records.directory(lost))
    records.make("PAUSED")
    assert records.prune(capsys) == {lost, never}


def test_a_jobs_directory_that_is_not_mounted_costs_no_records(
    records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    job = records.make("COMPLETED")
    (records.place / "jobs").rename(records.place / "elsewhere")
    (records.place / "jobs").mkdir()
    for dry_run in (True, False):
        with pytest.raises(SluiceError) as refused:
            records.prune(capsys, dry_run=dry_run)
        assert refused.value.reference == "jobs-dir-empty"
    assert records.is_known(job)
    (records.place / "jobs").rmdir()
    (records.place / "elsewhere").rename(records.place / "jobs")
    assert records.prune(capsys) == {job}


def test_a_directory_without_a_record_is_told_of_left_alone_and_deleted_by_its_id(
    records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its record may be at another Prefect API, and the job may wait there."""
    job = str(uuid4())
    records.fill(job)
    records.make("PAUSED")
    assert prune(records.config, timedelta(0), (), dry_run=False, as_json=False) == 0
    told = capsys.readouterr()
    assert told.out == "0 jobs, 0 B are deleted\n"
    assert f"warning: {records.directory(job)} has no record at this Prefect API and is left alone, 3 B" in told.err
    assert f"hint: sluice job delete CONFIG {job}" in told.err
    assert prune(records.config, timedelta(days=1), (), dry_run=False, as_json=False) == 0
    assert without_waiting(capsys.readouterr().err) == ""  # a young one may be about to get its record
    with (records.directory(job) / ".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SluiceError, match="another process"):
            delete(records.config, job, ())
    assert delete(records.config, job, ()) == 0
    assert not records.directory(job).exists()
    with pytest.raises(SluiceError) as unknown:
        delete(records.config, job, ())
    assert unknown.value.reference == "job-unknown"


def test_jobs_of_a_dead_machine_are_awaited_together_before_the_others_are_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [JobRecord(id=str(uuid4()), name="x", state=JobState.INTERRUPTED) for _ in range(5)]
    dead = {record.id for record in batch[1:4]}
    for record in batch:
        (tmp_path / record.id).mkdir()
        holder = Holder(1, "other", "the other machine", "limit")
        (tmp_path / record.id / ".lock").write_bytes(msgspec.json.encode(holder) if record.id in dead else b"")
    together, order = threading.Barrier(3), []

    @contextlib.contextmanager
    def hold_recorded(_: object, directory: JobDirectory) -> Iterator[None]:
        if directory.path.name in dead:
            together.wait(10)
        order.append(directory.path.name)
        yield

    monkeypatch.setattr("flows.job.prune.held", hold_recorded)
    session = mock.Mock(jobs_dir=tmp_path)
    session.api.runs.side_effect = lambda ids: []
    session.api.read_all.return_value = []
    _remove_batch(session, batch, datetime.now(UTC), lambda _: None)
    assert set(order[:3]) == dead
    assert order[3:] == [batch[0].id, batch[4].id]


def test_a_job_whose_directory_vanishes_before_its_lock_counts_as_deleted_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanished(place: Path) -> JobLock:
        place.rmdir()
        return JobLock(place)

    monkeypatch.setattr("flows.job.prune.JobLock", vanished)
    with pytest.raises(JobBusyError) as caught, held(mock.Mock(), JobDirectory(tmp_path)):
        pass
    assert caught.value.message == "the job is being deleted by another process"


@pytest.mark.e2e
@pytest.mark.parametrize(
    "left", ["some data", "the lock", "the empty directory", "the record", "the lock and no record"]
)
def test_what_a_prune_left_that_was_killed_the_next_one_removes(
    records: Records, left: str, capsys: pytest.CaptureFixture[str]
) -> None:
    records.make("PAUSED")
    job = records.make("FAILED")
    directory = records.directory(job)
    shutil.rmtree(directory / ".results")
    if left != "some data":
        shutil.rmtree(directory / "import")
        (directory / "job.log").unlink()
    if left in {"the empty directory", "the record"}:
        (directory / ".lock").unlink()
    if left == "the record":
        directory.rmdir()
    if left == "the lock and no record":
        ask_prefect("DELETE", f"{records.api}/flow_runs/{job}")
    assert records.prune(capsys) == (set() if left == "the lock and no record" else {job})
    assert not directory.exists()
    assert not records.is_known(job)
    found = ask_prefect("POST", f"{records.api}/v2/concurrency_limits/filter", {"limit": 200})
    assert f"job-{job}" not in {limit["name"] for limit in found}


def test_what_cannot_be_removed_is_said_the_others_go_and_its_record_stays(
    records: Records, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, goes = records.make("FAILED"), records.make("COMPLETED")
    removed = shutil.rmtree

    def rmtree(path: Path) -> None:
        if stuck in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        removed(path)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert prune(records.config, timedelta(0), (), dry_run=False, as_json=True) == 1
    told = capsys.readouterr()
    assert [row["id"] for row in json.loads(told.out)] == [goes]
    assert "error[job-delete]" in told.err
    assert stuck in told.err
    assert records.is_known(stuck)
    monkeypatch.setattr(shutil, "rmtree", removed)
    assert records.prune(capsys) == {stuck}


def test_undeletable_and_foreign_directories_do_not_stop_the_others_or_the_answer(
    records: Records, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stays, goes, foreign, rest = records.make("FAILED"), records.make("COMPLETED"), str(uuid4()), str(uuid4())
    records.fill(foreign)
    records.directory(rest).mkdir()
    removed, listed = shutil.rmtree, Path.iterdir

    def rmtree(path: Path) -> None:
        if path in (records.directory(stays), records.directory(rest)):  # the jobs directory is read-only
            raise PermissionError(13, "Permission denied", str(path))
        removed(path)

    def iterdir(path: Path) -> Iterator[Path]:
        if path == records.directory(foreign):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert prune(records.config, timedelta(0), (), dry_run=False, as_json=True) == 1
    told = capsys.readouterr()
    assert [row["id"] for row in json.loads(told.out)] == [goes]
    assert told.err.count("error[job-delete]") == 2
    assert f"warning: {records.directory(foreign)} has no record at this Prefect API, cannot be read" in told.err
    monkeypatch.undo()
    monkeypatch.setenv("PREFECT_API_URL", records.api)
    assert prune(records.config, timedelta(0), (), dry_run=False, as_json=True) == 0
    assert {path.name for path in (records.place / "jobs").iterdir()} == {foreign}


@pytest.mark.e2e
def test_of_two_prunes_at_once_each_job_is_counted_by_one(
    sluice: Commands, records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {records.make("COMPLETED") for _ in range(12)}
    both = [sluice.start("job", "prune", "config.yaml", "--older-than", "1ms", "--json") for _ in range(2)]
    counted: list[str] = []
    for child in both:
        out, err = child.communicate(timeout=120)
        assert child.returncode == 0
        # How far it is, when it takes long.
        assert re.sub(r"(?m)^\d+ of \d+ jobs\n", "", without_waiting(err)) == ""
        counted += [row["id"] for row in json.loads(out)]
    # One that both wanted at the same moment may be left by the second: the next prune finds nothing either.
    assert sorted(counted) == sorted(made)
    assert records.prune(capsys) == set()


def documented() -> list[str]:
    """Return the paths in the table of personal data in docs/job-directory.md."""
    page = (ROOT / "docs/job-directory.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Files$(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (`.*?`) \|.*\| (?:no|\*\*yes\*\*|depends on .*|same as .*) \|$", section, re.MULTILINE)
    return [path for row in rows for path in re.findall(r"`(.*?)`", row)]


def test_every_directory_that_a_step_writes_is_in_that_table() -> None:
    for name in STEPS:
        for folder in declared(name).writes([name], 1):
            assert any(row.startswith(f"{folder}/") for row in documented()), f"{name}: {folder}"
