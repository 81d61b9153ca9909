"""A step in shards on a work pool (6-scale-out.md, *What must hold*)."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flows.engine.api import PrefectApi
from flows.engine.flow_runs import children_of, run_deployment
from tests.conftest import Commands, address_of, ask_prefect, wait_until
from tests.e2e.machines import WorkerProcess, descendants, other_machine, two_workers
from tests.e2e.test_suspend import suspended
from tests.flows.shards.site import LINES, CountingService, configure, counting, outputs, undivided, write_input

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

Json = dict[str, Any]

LINES_OF_BENCH = 1000
"""Lines of each file: a shard of two files takes about ten seconds."""

SEED = int(os.environ.get("KILL_SEED", "20251125"))
TRIALS = int(os.environ.get("KILL_TRIALS", "5"))

_SOON = "import flows.shards.children\nflows.shards.children.UNSTARTED = 3.0\n"


@dataclass
class PoolSite:
    """Two workers on a pool, and a job in four shards."""

    sluice: Commands
    prefect: PrefectApi
    workers: tuple[WorkerProcess, WorkerProcess]
    deployed: str
    service: CountingService
    job: str = ""

    def start(self) -> None:
        """Start the job for whichever worker takes it."""
        self.job = run_deployment(self.prefect, self.deployed, {"config": str(self.sluice.cwd / "config.yaml")})

    @property
    def directory(self) -> Path:
        return self.sluice.cwd / "jobs" / self.job

    def children(self) -> list[Json]:
        """Return the runs of shards, the oldest first."""
        return sorted(children_of(self.prefect, [self.job]), key=lambda run: str(run["created"]))

    def state(self) -> str:
        run = self.prefect.read_run(self.job)
        assert run is not None
        return str(run["state_type"])

    def ends(self, state: str, seconds: float = 120) -> None:
        """Wait until the job has ended in this state."""
        ended = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
        wait_until(lambda: self.state() in ended, seconds)
        assert self.state() == state, (self.directory / "job.log").read_text()

    def check_outputs(self) -> None:
        """Compare the outputs with those of an undivided run."""
        assert outputs(self.directory) == undivided(self.sluice)[0]


@contextmanager
def site(
    sluice: Commands, api: str, second: dict[str, str], *, delay: float, shards: int = 4, lines: int = LINES
) -> Iterator[PoolSite]:
    """Start two workers, the second with its environment, and the service."""
    write_input(sluice.cwd / "in", lines=lines)
    with (
        counting(delay=delay) as service,
        PrefectApi(address_of(api)) as prefect,
        two_workers(sluice, api, {}, second) as (one, two, deployed),
    ):
        configure(sluice, service, shards=shards)
        yield PoolSite(sluice, prefect, (one, two), deployed, service)


def test_every_shard_runs_once_below_the_parents_page(sluice: Commands, prefect_api: str) -> None:
    with site(sluice, prefect_api, {}, delay=0.05) as pool:
        pool.start()
        pool.ends("COMPLETED")
        runs = pool.children()
        assert [run["state_type"] for run in runs] == ["COMPLETED"] * 4
        assert all(run["parent_task_run_id"] for run in runs)
        assert {tuple(run["parameters"]) for run in runs} == {("config", "shard")}
        assert {run["parameters"]["config"] for run in runs} == {""}
        assert set(pool.service.seen.values()) == {1}
        assert pool.service.peak <= 4
        assert [row["id"] for row in _jobs(sluice)] == [pool.job]
        pool.check_outputs()


def test_a_pool_with_one_slot_does_not_deadlock(sluice: Commands, prefect_api: str, tmp_path: Path) -> None:
    place = tmp_path / "soon"
    place.mkdir()
    (place / "sitecustomize.py").write_text(_SOON)
    sluice.environment["PYTHONPATH"] = f"{place}:{sluice.environment['PYTHONPATH']}"
    with site(sluice, prefect_api, {}, delay=0.01, shards=2) as pool:
        deployment = pool.prefect.request("GET", f"/deployments/{pool.deployed}")
        pool.prefect.request("PATCH", f"/work_pools/{deployment['work_pool_name']}", {"concurrency_limit": 1})
        pool.start()
        pool.ends("COMPLETED")
        assert "no worker starts the shards" in (pool.directory / "job.log").read_text()
        assert {run["state_type"] for run in pool.children()} == {"CANCELLED"}
        assert set(pool.service.seen.values()) == {1}
        pool.check_outputs()


@pytest.mark.campaign
def test_a_run_that_cannot_write_its_receipt_ends_the_step_with_its_error(sluice: Commands, prefect_api: str) -> None:
    with site(sluice, prefect_api, {}, delay=0.1, shards=2) as pool:
        pool.start()
        wait_until(lambda: pool.service.requests > 5, 60)
        parts = [pool.directory / ".results" / "2" / shard / "receipt.json.part" for shard in "01"]
        for part in parts:
            part.mkdir(mode=0o700)
        pool.ends("FAILED")
        assert len(pool.children()) == 2  # none is submitted again
        log = (pool.directory / "job.log").read_text()
        assert "error[storage-failed]: the run of a shard could not write its receipt" in log
        for part in parts:
            part.rmdir()
        again = sluice.here("pipeline", "continue", "config.yaml", pool.job)
        assert again.code == 0, again.err


@pytest.mark.parametrize("resumed", [False, pytest.param(True, marks=pytest.mark.campaign)])
def test_a_cancelled_shard_is_submitted_again_and_suspend_and_cancel_reach_all(
    sluice: Commands, prefect_api: str, resumed: bool
) -> None:
    with site(sluice, prefect_api, {}, delay=2.0, shards=2) as pool:

        def running(count: int) -> bool:
            runs = pool.children()
            return len(runs) == count and all(run["state_type"] == "RUNNING" for run in runs[-2:])

        def end_within(seconds: float) -> None:
            wait_until(lambda: all(run["state_type"] not in {"RUNNING", "PENDING"} for run in pool.children()), seconds)

        pool.start()
        log = pool.directory / "job.log"
        wait_until(lambda: running(2), 60)
        wait_until(lambda: pool.service.requests > 8)
        pool.prefect.set_state(pool.children()[0]["id"], "CANCELLING")
        wait_until(lambda: running(3), 60)
        assert "was cancelled; it is submitted again" in log.read_text()
        suspended(prefect_api, pool.job, "Suspended", reschedule=True)
        end_within(15)
        wait_until(lambda: "the job is stopped (suspend)" in log.read_text())
        assert pool.state() == "PAUSED"
        _runs(pool, lambda runs: runs[0]["state_type"] == "CANCELLED")
        if not resumed:
            return
        wait_until(lambda: not any(worker.runs for worker in pool.workers))
        made = pool.service.requests
        assert ask_prefect("POST", f"{prefect_api}/flow_runs/{pool.job}/resume", {})["status"] == "ACCEPT"
        wait_until(lambda: running(5), 60)
        wait_until(lambda: pool.service.requests > made + 2)
        pool.prefect.set_state(pool.job, "CANCELLING")
        asked = time.monotonic()
        end_within(15)
        pool.ends("CANCELLED", 20)
        wait_until(lambda: "step 2 shard 0: stopped" in log.read_text(), 15 - (time.monotonic() - asked))
        _runs(pool, lambda runs: {run["state_type"] for run in runs[3:]} == {"CANCELLED"})


@pytest.mark.campaign
def test_a_shard_of_a_dead_machine_is_submitted_again_within_90_seconds(sluice: Commands, prefect_api: str) -> None:
    other = other_machine(sluice.cwd / "other-machine")
    with site(sluice, prefect_api, other, delay=0.5) as pool:
        pool.start()
        _runs(pool, lambda runs: len(runs) == 4 and sum(run["state_type"] == "RUNNING" for run in runs) == 4, 60)
        wait_until(lambda: pool.service.requests > 20)
        parents = [worker for worker in pool.workers if _runs_job(worker, pool.job)]
        (dying,) = [worker for worker in pool.workers if worker not in parents]
        assert dying.runs
        dying.die()
        died = time.monotonic()
        _runs(pool, lambda runs: len(runs) > 4, 90)
        print(f"submitted again {time.monotonic() - died:.0f} s after the death")
        pool.ends("COMPLETED", 240)
        pool.check_outputs()


@pytest.mark.campaign
def test_a_machine_that_slept_loses_its_shard_and_ends(sluice: Commands, prefect_api: str) -> None:
    other = other_machine(sluice.cwd / "other-machine")
    with site(sluice, prefect_api, other, delay=0.5) as pool:
        pool.start()
        _runs(pool, lambda runs: len(runs) == 4 and sum(run["state_type"] == "RUNNING" for run in runs) == 4, 60)
        wait_until(lambda: pool.service.requests > 20)
        parents = [worker for worker in pool.workers if _runs_job(worker, pool.job)]
        (sleeping,) = [worker for worker in pool.workers if worker not in parents]
        sleeping.freeze()
        pool.ends("COMPLETED", 280)
        done = pool.service.requests
        sleeping.thaw()
        wait_until(lambda: not sleeping.runs, 60)
        assert pool.service.requests <= done + 4  # what was under way
        pool.check_outputs()


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_outputs_are_the_same_after_kills_of_runs_at_any_moment(sluice: Commands, prefect_api: str) -> None:
    """``kill -9`` of runs of both workers, of the job or of its shards; the file under way in each is sent again."""
    draw = random.Random(SEED)
    with site(sluice, prefect_api, {}, delay=0.2) as pool:
        for trial in range(TRIALS):
            pool.service.seen.clear()
            pool.start()
            kills, wanted = 0, draw.randrange(1, 4)
            while pool.state() != "COMPLETED":
                if pool.state() == "CRASHED":  # its worker may report the crash once more, after a first continue
                    assert sluice("pipeline", "continue", "config.yaml", pool.job).code == 0
                elif kills < wanted:
                    time.sleep(draw.uniform(1, 15))
                    running = [pid for worker in pool.workers for pid in descendants(worker.process.pid)]
                    with suppress(ProcessLookupError):
                        for pid in draw.sample(running, min(1, len(running))):
                            os.kill(pid, signal.SIGKILL)
                            kills += 1
                assert pool.state() not in {"FAILED", "CANCELLED"}
                time.sleep(0.5)
            repeated = pool.service.requests - len(pool.service.seen)
            print(f"trial {trial}: {kills} kills, {len(pool.children())} runs of shards, {repeated} requests repeated")
            assert repeated <= LINES * kills * 4  # those of the files under way, in all shards if the job was killed
            pool.check_outputs()


def _runs(pool: PoolSite, condition: Callable[[list[Json]], bool], seconds: float = 60) -> None:
    wait_until(lambda: condition(pool.children()), seconds)


def _runs_job(worker: WorkerProcess, job: str) -> bool:
    return job.encode() in worker.log.read_bytes()


def _jobs(sluice: Commands) -> list[Json]:
    import json

    ran = sluice("job", "list", "config.yaml", "--json")
    assert ran.code == 0, ran.err
    found: list[Json] = json.loads(ran.out)
    return found


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_four_shards_reach_most_of_four_times_the_speed_of_one(sluice: Commands, prefect_api: str) -> None:
    """The service takes 20 ms for a request and bears 16 at once: 4 shards with 4 requests each, and 1 with 4."""
    with site(sluice, prefect_api, {}, delay=0.02, lines=LINES_OF_BENCH) as pool:
        configure(sluice, pool.service, requests=4)
        assert sluice("pipeline", "start", "config.yaml", "--no-progress").code == 0
        one = pool.service.rate()
        configure(sluice, pool.service, requests=16, shards=4)
        pool.start()
        pool.ends("COMPLETED", 400)
        four = pool.service.rate()
        print(f"one: {one:.0f} requests/s, four: {four:.0f}/s, {four / one / 4:.2f} of four times one (limit 0.85)")
        assert pool.service.peak <= 16
        assert four / one / 4 >= 0.85
