"""The lock across machines (4-product.md §6): a global concurrency limit with a lease, beside ``flock``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from flows.engine.api import Json
from flows.engine.api_address import ApiAddress
from flows.engine.server import spawn, wait_until_up
from flows.job.lease import Lease, LeaseTakenError, LeaseTimes, Limits, lease_api, limit_name
from flows.job.lock import JobBusyError, JobLock, is_held
from tasks.shared.errors import NetworkError, SluiceError
from tests.conftest import ROOT, Commands, address_of, seed, wait_until
from tests.e2e.machines import other_machine
from tests.peers.server import Reply, Seen, loopback

FROZEN = LeaseTimes(renew=3600.0)
"""Of a holder that never renews."""
EAGER = LeaseTimes(renew=0.05)
HOLDS = FROZEN.lease + FROZEN.margin
"""Seconds behind its last renewal for which a lease holds."""

HOLDER = """
import sys, time
from pathlib import Path
from flows.job.lock import JobLock
with JobLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
print("released", flush=True)
"""


class Holder:
    """A process that has the lock of a job until it is told to give it back."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(directory)], env=os.environ | environment, cwd=directory.parent,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.expect("held")

    def expect(self, word: str) -> None:
        assert self.process.stdout
        assert self.process.stdout.readline() == f"{word}\n"

    def release(self) -> None:
        self.process.communicate("\n", timeout=60)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def api(prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> ApiAddress:
    """The shared Prefect API, configured as a user would."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    return address_of(prefect_api)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The directory of a job."""
    directory = tmp_path / "jobs" / str(uuid4())
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def elsewhere(tmp_path: Path, api: ApiAddress) -> dict[str, str]:
    """The environment of another machine."""
    return other_machine(tmp_path / "other-machine") | {"PREFECT_API_URL": api.url}


@pytest.fixture
def limits(api: ApiAddress) -> Iterator[Limits]:
    with Limits(api) as found:
        yield found


class Clock:
    """The server's clock, which stands where it is put: no lease lapses because this machine is busy."""

    def __init__(self) -> None:
        self.moment: datetime | None = None

    def after(self, found: Json, seconds: float) -> None:
        """So long after the last renewal of a limit."""
        self.moment = datetime.fromisoformat(str(found["updated"])) + timedelta(seconds=seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(Limits, "now", lambda _: clock.moment)
    return clock


def of_job(limits: Limits, job: str) -> Json:
    """The limit of a job."""
    found = limits.find(limit_name(job))
    assert found
    return found


def taken(api: ApiAddress, job: str) -> Lease | None:
    """The lease, if it can be had."""
    try:
        return Lease(api, job, times=FROZEN).acquire()
    except LeaseTakenError:
        return None


@contextmanager
def fake_api(answers: Mapping[str, object], asked: list[str] | None = None) -> Iterator[ApiAddress]:
    """A Prefect API that gives one answer to each method, ``None`` being 404, until it goes away.

    The methods of the requests it answered are in ``asked``.
    """

    def answer(seen: Seen) -> Reply:
        if asked is not None:
            asked.append(seen.method)
        body = answers.get(seen.method)
        return Reply(404 if body is None else 200, json.dumps(body).encode())

    with loopback(answer) as server:
        yield ApiAddress(url=f"{server.url}/api")


@pytest.mark.e2e
class TestTwoMachines:
    def test_while_one_has_the_job_the_other_is_refused_with_exit_code_4(
        self, job: Path, elsewhere: dict[str, str]
    ) -> None:
        holder = Holder(job, elsewhere)
        assert is_held(job)
        with pytest.raises(JobBusyError) as caught, JobLock(job):
            pass
        assert caught.value.exit_code == 4
        assert caught.value.reference == "job-busy"
        assert str(holder.process.pid) in caught.value.message
        holder.release()
        assert not is_held(job)
        with JobLock(job):
            pass

    def test_given_back_it_leaves_nothing_at_the_server(
        self, job: Path, elsewhere: dict[str, str], limits: Limits
    ) -> None:
        holder = Holder(job, elsewhere)
        found = limits.find(limit_name(job.name))
        assert found
        assert (found["limit"], found["active_slots"]) == (1, 1)
        holder.release()
        assert limits.find(limit_name(job.name)) is None

    def test_after_kill_9_the_same_machine_goes_on_at_once_in_the_lease_of_the_dead(
        self, job: Path, api: ApiAddress, limits: Limits
    ) -> None:
        holder = Holder(job, {"PYTHONPATH": str(ROOT), "PREFECT_API_URL": api.url})
        before = limits.find(limit_name(job.name))
        assert before
        holder.kill()
        assert not is_held(job)
        with JobLock(job):
            after = limits.find(limit_name(job.name))
            assert after
            assert after["id"] == before["id"]
            assert after["updated"] > before["updated"]
        assert limits.find(limit_name(job.name)) is None

    def test_after_kill_9_the_other_machine_is_refused_until_the_lease_lapses(
        self, job: Path, elsewhere: dict[str, str]
    ) -> None:
        Holder(job, elsewhere).kill()
        assert is_held(job)
        with pytest.raises(JobBusyError, match="job is being run"), JobLock(job):
            pass
        assert not JobLock.held

    def test_who_has_no_lease_has_no_flock_either(self, job: Path, elsewhere: dict[str, str]) -> None:
        holder = Holder(job, elsewhere)
        with pytest.raises(JobBusyError):
            JobLock(job).acquire()
        holder.release()
        Holder(job, {"PYTHONPATH": str(ROOT)}).release()

    def test_a_command_on_the_other_machine_gets_exit_code_4_and_afterwards_goes_on(
        self, sluice: Commands, project: Path, elsewhere: dict[str, str]
    ) -> None:
        started = sluice("pipeline", "start", "config.yaml")
        assert started.code == 0, started.err
        directory = project / "jobs" / started.job
        here = Holder(directory, {"PYTHONPATH": str(ROOT), "PREFECT_API_URL": elsewhere["PREFECT_API_URL"]})
        refused = sluice("pipeline", "continue", "config.yaml", started.job, "--approve", env=elsewhere)
        assert refused.code == 4, refused.err
        assert "error[job-busy]" in refused.err
        assert str(here.process.pid) in refused.err
        here.release()
        done = sluice("pipeline", "continue", "config.yaml", started.job, "--approve", env=elsewhere)
        assert done.code == 0, done.err


class TestLease:
    def test_a_lapsed_lease_is_replaced_and_a_living_one_is_not(
        self, api: ApiAddress, limits: Limits, clock: Clock
    ) -> None:
        job = str(uuid4())
        dead = Lease(api, job, times=FROZEN).acquire()
        left = of_job(limits, job)
        clock.after(left, HOLDS - 0.001)
        assert taken(api, job) is None
        clock.after(left, HOLDS)
        replaced = taken(api, job)
        assert replaced is not None
        assert taken(api, job) is None, "it was made later than the one that has just lapsed"
        dead.release()
        assert taken(api, job) is None, "a holder that comes back does not give back what another has"
        replaced.release()

    def test_a_lease_lapses_by_the_clock_of_the_server(self, api: ApiAddress, limits: Limits) -> None:
        job = str(uuid4())
        short = LeaseTimes(lease=0.5, margin=0.5, renew=3600.0)
        dead = Lease(api, job, times=short).acquire()
        wait_until(lambda: not limits.holds(of_job(limits, job), short))
        replaced = Lease(api, job, times=short).acquire()
        assert replaced.limit != dead.limit
        dead.release()
        replaced.release()

    def test_a_renewed_lease_does_not_lapse(self, api: ApiAddress, limits: Limits, clock: Clock) -> None:
        job = str(uuid4())
        lost: list[SluiceError] = []
        lease = Lease(api, job, lost=lost.append, times=EAGER).acquire()
        before = of_job(limits, job)
        clock.after(before, HOLDS)
        assert not limits.holds(before, EAGER)
        wait_until(lambda: bool(of_job(limits, job)["updated"] > before["updated"]))
        assert taken(api, job) is None
        lease.release()
        assert not lost

    def test_of_many_that_replace_a_lapsed_lease_one_gets_it(
        self, api: ApiAddress, limits: Limits, clock: Clock
    ) -> None:
        job = str(uuid4())
        dead = Lease(api, job, times=FROZEN).acquire()
        # It has lapsed just now: whoever replaces it has a lease that holds, however long the others take.
        clock.after(of_job(limits, job), HOLDS)
        gate = threading.Barrier(6)

        def one() -> Lease | None:
            gate.wait()
            return taken(api, job)

        with ThreadPoolExecutor(6) as pool:
            winners = [lease for lease in pool.map(lambda _: one(), range(6)) if lease]
        assert len(winners) == 1
        dead.release()
        assert of_job(limits, job)["id"] == winners[0].limit, "a holder that comes back removes its own limit only"
        winners[0].release()

    def test_a_holder_whose_limit_is_gone_does_not_go_on(self, api: ApiAddress, limits: Limits) -> None:
        lost: list[SluiceError] = []
        lease = Lease(api, str(uuid4()), lost=lost.append, times=EAGER).acquire()
        assert limits.remove(str(lease.limit))
        wait_until(lambda: bool(lost))
        assert lost[0].reference == "job-lease-lost"
        assert lost[0].exit_code == 3
        lease.release()

    def test_a_holder_that_cannot_renew_ends_before_the_lease_does(self) -> None:
        """The API answers until it goes away: here a service that has no limits, and then none at all."""
        times = LeaseTimes(lease=45.0, renew=0.05, retry=0.05, give_up=0.4)
        lost: list[float] = []
        asked: list[str] = []
        answers = {"POST": {"id": "x"}, "PATCH": {}, "GET": None, "DELETE": {}}
        with fake_api(answers, asked) as address:
            lease = Lease(address, "x", lost=lambda _: lost.append(time.monotonic()), times=times).acquire()
            wait_until(lambda: asked.count("PATCH") >= 3)
            assert not lost
            gone = time.monotonic()
        wait_until(lambda: bool(lost), 60)
        assert lost[0] - gone < times.lease
        assert LeaseTimes().give_up + 3 * LeaseTimes().call <= LeaseTimes().lease
        lease.limit = None
        lease.release()

    def test_without_the_api_nobody_gets_a_lease(self) -> None:
        with fake_api({}) as address:
            pass
        with Limits(address, patience=0) as limits, pytest.raises(NetworkError) as caught:
            limits.now()
        assert caught.value.reference == "prefect-unreachable"

    @pytest.mark.e2e
    @pytest.mark.parametrize(("environment", "exit_code"), [({}, 3), ({"PREFECT__FLOW_RUN_ID": "made-up"}, 0)])
    def test_a_process_that_lost_its_lease_says_why_and_ends_with_3_but_for_a_worker_with_0(
        self, job: Path, api: ApiAddress, environment: dict[str, str], exit_code: int
    ) -> None:
        """A worker would set the run to Crashed, which another machine has by now."""
        code = (
            "import sys, time; from flows.job.lease import LeaseTimes, Lease;"
            "from flows.engine.api_address import configured_api;"
            "lease = Lease(configured_api(), sys.argv[2], times=LeaseTimes(renew=0.1)).acquire();"
            "print(lease.limit, flush=True); time.sleep(60)"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", code, api.url, job.name], cwd=ROOT, text=True, env=os.environ | environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert child.stdout
        limit = child.stdout.readline().strip()
        with Limits(api) as limits:
            assert limits.remove(limit)
        _, err = child.communicate(timeout=60)
        assert child.returncode == exit_code
        assert "error[job-lease-lost]" in err
        assert "hint:" in err


class TestWhenThereIsALease:
    def test_not_with_the_embedded_server_which_only_this_machine_reaches(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("PREFECT_API_URL", raising=False)
        assert lease_api(tmp_path) is None
        monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
        (tmp_path / ".prefect").mkdir()
        (tmp_path / ".prefect/server.json").write_text(json.dumps({"url": "http://127.0.0.1:9/api", "pid": 1}))
        assert lease_api(tmp_path) is None

    def test_with_the_api_that_the_user_names(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PREFECT_API_URL", "https://prefect.hospital.example/api")
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", "user:secret")
        address = lease_api(tmp_path)
        assert address is not None
        assert address.url == "https://prefect.hospital.example/api"
        assert "Authorization" in address.headers


@pytest.mark.campaign
@pytest.mark.timeout(240)
def test_after_the_death_of_a_machine_the_job_is_continued_on_another_within_the_lease(
    sluice: Commands, project: Path, elsewhere: dict[str, str]
) -> None:
    started = sluice("pipeline", "start", "config.yaml")
    Holder(project / "jobs" / started.job, elsewhere).kill()
    died = time.monotonic()
    codes: list[int] = []
    begun: list[float] = []
    while not codes or codes[-1] == 4:
        begun.append(time.monotonic() - died)
        codes.append(sluice("pipeline", "continue", "config.yaml", started.job, "--approve").code)
        time.sleep(1)
    assert codes[0] == 4
    assert codes[-1] == 0
    assert time.monotonic() - died > 50
    # Who was refused had begun before the lease lapsed; how long a command takes is the machine's affair.
    assert begun[-2] < LeaseTimes().lease + LeaseTimes().margin + 1


@pytest.mark.campaign
@pytest.mark.timeout(240)
def test_a_lease_outlives_a_restart_of_the_server(tmp_path: Path, migrated_database: Path) -> None:
    seed(tmp_path, migrated_database)
    child, address = spawn(tmp_path / ".prefect", stay=True)
    lost: list[SluiceError] = []
    try:
        wait_until_up(address, child)
        lease = Lease(address, "x", lost=lost.append, times=LeaseTimes(renew=0.5, retry=0.5)).acquire()
        child.terminate()
        child.wait(timeout=30)
        child, address = spawn(tmp_path / ".prefect", stay=True, port=int(address.url.split(":")[2].split("/")[0]))
        wait_until_up(address, child)
        with Limits(address) as limits:
            before = limits.find("job-x")
            assert before
            assert before["id"] == lease.limit

            def renewed() -> bool:
                found = limits.find("job-x")
                return found is not None and found["updated"] > before["updated"]

            wait_until(renewed, 20)
        assert not lost
        lease.release()
    finally:
        child.terminate()
        child.wait(timeout=30)
