"""The lock across machines (4-product.md §6): a global concurrency limit with a lease, in addition to ``flock``."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from flows.engine.api import Json
from flows.engine.api_address import ApiAddress
from flows.job.running.lease import Lease, Limits, lease_api, limit_name
from flows.job.running.lock import JobBusyError, JobLock, is_held
from flows.job.running.proof import LeaseTakenError, LeaseTimes
from tasks.shared.errors import NetworkError, SluiceError
from tests.conftest import ROOT, Commands, address_of, wait_until
from tests.e2e.machines import other_machine, this_machine
from tests.peers.bridge import Bridge
from tests.peers.server import Reply, SeenRequest, loopback

EAGER = LeaseTimes(renew=0.05, beat=0.05, retry=0.05)
SHORT = LeaseTimes(lease=3.0, renew=0.5, retry=0.2, beat=0.3, give_up=2.0, sure=1.0, look=0.2, gap=2.0)
"""Of machines whose death is to be seen soon."""

HOLDER = """
import sys, time
from pathlib import Path
from flows.job.running.lock import JobLock
with JobLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
print("released", flush=True)
"""


class LockHolder:
    """A process that holds the lock of a job until ``release``."""

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
    """Return the shared Prefect API, configured as a user would."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    monkeypatch.setattr("flows.job.running.lease.TIMES", SHORT)
    return address_of(prefect_api)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return the directory of a job."""
    directory = tmp_path / "jobs" / str(uuid4())
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def elsewhere(tmp_path: Path, api: ApiAddress) -> dict[str, str]:
    """Return the environment of another machine."""
    return other_machine(tmp_path / "other-machine", SHORT) | {"PREFECT_API_URL": api.url}


@pytest.fixture
def limits(api: ApiAddress) -> Iterator[Limits]:
    with Limits(api) as found:
        yield found


def of_job(limits: Limits, job: str) -> Json:
    """Return the limit of a job."""
    found = limits.find(limit_name(job))
    assert found
    return found


def try_lease(api: ApiAddress, job: str) -> Lease | None:
    """Return the lease, if it can be had, of a holder that never renews."""
    try:
        return Lease(api, job).acquire()
    except LeaseTakenError:
        return None


@contextmanager
def fake_api(answers: Mapping[str, object]) -> Iterator[ApiAddress]:
    """Yield a Prefect API that gives one answer to each method, ``None`` being 404, until it goes away."""

    def answer(seen: SeenRequest) -> Reply:
        body = answers.get(seen.method)
        return Reply(404 if body is None else 200, json.dumps(body).encode())

    with loopback(answer) as server:
        yield ApiAddress(url=f"{server.url}/api")


@pytest.mark.e2e
class TestTwoMachines:
    def test_while_one_has_the_job_the_other_is_refused_with_exit_code_4(
        self, job: Path, elsewhere: dict[str, str]
    ) -> None:
        holder = LockHolder(job, elsewhere)
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
        holder = LockHolder(job, elsewhere)
        found = limits.find(limit_name(job.name))
        assert found
        assert (found["limit"], found["active_slots"]) == (1, 1)
        holder.release()
        assert limits.find(limit_name(job.name)) is None

    def test_after_kill_9_the_same_machine_goes_on_at_once_in_the_lease_of_the_dead(
        self, job: Path, api: ApiAddress, limits: Limits
    ) -> None:
        holder = LockHolder(job, {"PYTHONPATH": str(ROOT), "PREFECT_API_URL": api.url})
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

    def test_after_kill_9_another_machine_continues_after_one_lease_without_a_heartbeat(
        self, job: Path, elsewhere: dict[str, str]
    ) -> None:
        LockHolder(job, elsewhere).kill()
        assert is_held(job)
        died = time.monotonic()
        with JobLock(job):
            assert time.monotonic() - died >= SHORT.lease
        assert not JobLock.held
        assert not is_held(job)

    def test_a_removed_job_directory_does_not_count_as_taken_by_another_machine(
        self, job: Path, elsewhere: dict[str, str]
    ) -> None:
        """Two prunes: the one that was first removes the directory after it gave the lock back."""
        holder = LockHolder(job, elsewhere)
        shutil.rmtree(job)
        with pytest.raises(subprocess.TimeoutExpired):
            holder.process.wait(timeout=4 * SHORT.beat)
        holder.release()
        assert holder.process.returncode == 0

    def test_a_second_watcher_of_a_dead_machine_may_wait_and_the_job_shows_as_unowned(
        self, job: Path, elsewhere: dict[str, str]
    ) -> None:
        LockHolder(job, elsewhere).kill()
        first = threading.Thread(target=lambda: JobLock(job).acquire().release())
        first.start()
        wait_until(lambda: not is_held(job), 3 * SHORT.lease)
        with JobLock(job):
            pass
        first.join()

    def test_a_limit_that_a_restored_database_lacks_does_not_make_a_living_job_anybodys(
        self, job: Path, elsewhere: dict[str, str], limits: Limits
    ) -> None:
        holder = LockHolder(job, elsewhere)
        before = of_job(limits, job.name)
        assert limits.remove(str(before["id"]))
        with pytest.raises(JobBusyError), JobLock(job):
            pass
        wait_until(lambda: limits.find(limit_name(job.name)) is not None)
        after = of_job(limits, job.name)
        assert after["id"] != before["id"]
        wait_until(lambda: after["id"] in (job / ".lock").read_text())
        holder.release()
        assert limits.find(limit_name(job.name)) is None

    def test_a_holder_that_finds_another_in_the_lock_ends_at_once(self, job: Path, elsewhere: dict[str, str]) -> None:
        holder = LockHolder(job, elsewhere)
        (job / ".lock").write_text("{}")
        holder.process.wait(timeout=30)
        holder.process.communicate()
        assert holder.process.returncode == 3

    def test_who_has_no_lease_has_no_flock_either(self, job: Path, elsewhere: dict[str, str]) -> None:
        holder = LockHolder(job, elsewhere)
        with pytest.raises(JobBusyError):
            JobLock(job).acquire()
        holder.release()
        LockHolder(job, {"PYTHONPATH": str(ROOT)}).release()

    def test_a_command_on_the_other_machine_gets_exit_code_4_and_afterwards_goes_on(
        self, sluice: Commands, project: Path, elsewhere: dict[str, str]
    ) -> None:
        started = sluice("pipeline", "start", "config.yaml")
        assert started.code == 0, started.err
        directory = project / "jobs" / started.job
        times = this_machine(project / "this-machine", SHORT)
        here = LockHolder(directory, times | {"PREFECT_API_URL": elsewhere["PREFECT_API_URL"]})
        refused = sluice("pipeline", "continue", "config.yaml", started.job, "--approve", env=elsewhere)
        assert refused.code == 4, refused.err
        assert "error[job-busy]" in refused.err
        assert str(here.process.pid) in refused.err
        here.release()
        done = sluice("pipeline", "continue", "config.yaml", started.job, "--approve", env=elsewhere)
        assert done.code == 0, done.err


class Ours:
    """The claim on a job: whether it is still ours, and until when."""

    def __init__(self) -> None:
        self.ours = True
        self.limit = ""

    def still_ours(self) -> bool:
        return self.ours

    def rename(self, limit: str) -> None:
        self.limit = limit


def hangs() -> bool:
    """On a directory of a server that is away."""
    threading.Event().wait(60)
    return True


class CutOnce(Bridge):
    """A bridge that cuts the connection of the first creation of a limit, before or after the server did it."""

    def __init__(self, upstream: str, *, created: bool) -> None:
        self._created = created
        self._asked = False
        self.cut = False
        super().__init__(upstream)

    def passes(self, method: str, path: str, upstream: socket.socket) -> bool:
        if method == "POST" and path.endswith("/concurrency_limits/") and not self.cut:
            self._asked = True
            if not self._created:
                self._end()
        return super().passes(method, path, upstream)

    def returns(self, upstream: socket.socket) -> bool:
        if self._asked and not self.cut:
            self._end()
        return super().returns(upstream)

    def _end(self) -> None:
        self.cut = True
        raise ConnectionResetError


WORKS = {"POST": {"id": "x"}, "PATCH": {}, "GET": None, "DELETE": {}}
"""An API that knows one limit."""


class TestLease:
    @pytest.mark.slow
    def test_of_many_that_replace_a_silent_lease_one_gets_it(self, api: ApiAddress, limits: Limits) -> None:
        job = str(uuid4())
        dead = Lease(api, job).acquire()
        gate = threading.Barrier(6)

        def one() -> Lease | None:
            gate.wait()
            return try_lease(api, job)

        with ThreadPoolExecutor(6) as pool:
            winners = [lease for lease in pool.map(lambda _: one(), range(6)) if lease]
        assert len(winners) == 1
        dead.release()
        assert of_job(limits, job)["id"] == winners[0].limit, "a holder that comes back removes its own limit only"
        winners[0].release()

    @pytest.mark.parametrize("created", [False, True])
    def test_a_lease_whose_creation_was_not_answered_is_asked_for_again(self, api: ApiAddress, created: bool) -> None:
        """The server may have done it before it went away, or not."""
        between = CutOnce(api.url, created=created)
        try:
            seen = replace(api, url=f"{between.url}/api")
            lease = Lease(seen, str(uuid4()), times=SHORT).acquire()
            assert between.cut
            lease.release()
        finally:
            between.close()

    @pytest.mark.parametrize("other", [False, True], ids=["nobody renews", "another machine renews"])
    def test_a_limit_that_is_created_late_without_an_answer_is_replaced_unless_renewed(self, other: bool) -> None:
        """The server commits the first creation only after it was asked for the limit, and found none."""
        asked: list[str] = []

        def answer(request: httpx.Request) -> httpx.Response:
            asked.append(request.method)
            created = asked.count("POST")
            if request.method == "POST" and created == 1:
                raise httpx.ReadError("the answer is lost")
            if request.method == "POST":
                return httpx.Response(409) if created == 2 else httpx.Response(201, json={"id": "new"})
            if request.method == "GET":
                renewed = len(asked) if other else 0
                row = {"id": "late", "updated": f"2026-01-01T00:00:{renewed:02}Z"}
                return httpx.Response(404) if created == 1 else httpx.Response(200, json=row)
            assert request.url.path.endswith("/late")
            return httpx.Response(204)

        lease = Lease(ApiAddress(url="http://127.0.0.1"), "x", times=SHORT)
        lease._limits._client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://127.0.0.1")
        if other:
            with pytest.raises(LeaseTakenError):
                lease.acquire()
            assert "DELETE" not in asked
        else:
            assert lease.acquire().limit == "new"
            assert asked.count("DELETE") == 1

    def test_a_renewed_lease_is_taken_by_nobody(self, api: ApiAddress, limits: Limits) -> None:
        job = str(uuid4())
        lost: list[SluiceError] = []
        lease = Lease(api, job, lost=lost.append).acquire()
        before = of_job(limits, job)
        lease.hold()
        wait_until(lambda: bool(of_job(limits, job)["updated"] > before["updated"]))
        assert try_lease(api, job) is None
        lease.release()
        assert not lost

    def test_a_holder_whose_limit_another_has_replaced_does_not_go_on(
        self, api: ApiAddress, limits: Limits, job: Path
    ) -> None:
        lost: list[SluiceError] = []
        lease = Lease(api, job.name, job, lost=lost.append, times=EAGER).acquire()
        assert limits.remove(str(lease.limit))
        assert limits.create(limit_name(job.name))
        lease.hold(lambda: True)
        wait_until(lambda: bool(lost))
        assert lost[0].reference == "job-lease-lost"
        assert lost[0].exit_code == 3
        lease.release()
        limits.remove(str(of_job(limits, job.name)["id"]))

    def test_a_limit_that_is_gone_is_made_again_but_not_for_a_job_that_another_has_had(
        self, api: ApiAddress, limits: Limits, job: Path
    ) -> None:
        lost: list[SluiceError] = []
        lease = Lease(api, job.name, job, lost=lost.append, times=EAGER).acquire()
        named = Ours()
        assert limits.remove(str(lease.limit))
        lease.hold(named.still_ours, named.rename)
        wait_until(lambda: named.limit != "")
        assert of_job(limits, job.name)["id"] == named.limit
        assert not lost
        named.ours = False
        limits.remove(named.limit)
        wait_until(lambda: bool(lost))
        assert limits.find(limit_name(job.name)) is None
        lease.release()

    @pytest.mark.slow
    @pytest.mark.parametrize("sign", ["the lease", "the heartbeat"])
    def test_a_holder_that_can_give_one_sign_goes_on(self, job: Path, sign: str) -> None:
        lost: list[SluiceError] = []
        with fake_api(WORKS) as address:
            lease = Lease(address, "x", job, lost=lost.append, times=SHORT).acquire()
            if sign == "the lease":
                (job / ".heartbeat").mkdir()
                lease.hold(lambda: True)
                time.sleep(2 * SHORT.give_up)
        if sign == "the heartbeat":
            lease.hold(lambda: True)
            time.sleep(2 * SHORT.give_up)
        assert not lost
        assert not lease.late
        lease.limit = None
        lease.release()

    @pytest.mark.slow
    def test_a_holder_that_can_give_neither_sign_ends_in_time_whatever_hangs(self, job: Path) -> None:
        lost: list[float] = []
        with fake_api(WORKS) as address:
            lease = Lease(address, "x", job, lost=lambda _: lost.append(time.monotonic()), times=SHORT).acquire()
        lease.hold(hangs)
        gone = time.monotonic()
        wait_until(lambda: bool(lost), 60)
        assert SHORT.give_up - SHORT.sure < lost[0] - gone < SHORT.lease
        lease.limit = None
        lease._threads.clear()
        lease.release()

    def test_the_times_leave_no_moment_in_which_two_have_the_job(self) -> None:
        times = LeaseTimes()
        assert times.give_up + 2 * times.call < times.lease
        assert times.renew + 3 * times.call < times.give_up - times.sure
        assert times.gap < times.lease

    def test_a_process_that_did_not_run_for_longer_than_a_lease_makes_sure_and_goes_on(self, job: Path) -> None:
        """As on a machine that slept, or stood still: both signs are late, and there is nobody to blame."""
        late = [0.0]
        lost: list[SluiceError] = []
        named = Ours()
        times = LeaseTimes(sure=1.0, call=1.0)
        with fake_api(WORKS) as address:
            lease = Lease(
                address, "x", job, lost=lost.append, times=times, clock=lambda: time.monotonic() + late[0]
            ).acquire()
            lease.hold(named.still_ours, named.rename)
            wait_until(lambda: (job / ".heartbeat").exists())
            before = (job / ".heartbeat").read_bytes()
            late[0] = 3600.0
            assert lease.late
            wait_until(lambda: not lease.late)
            assert (job / ".heartbeat").read_bytes() != before
            assert not lost
            lease.release()
        assert not (job / ".heartbeat").exists()

    def test_without_the_api_nobody_gets_a_lease(self) -> None:
        with fake_api({}) as address:
            pass
        with Limits(address, patience=0) as limits, pytest.raises(NetworkError) as caught:
            limits.now()
        assert caught.value.reference == "prefect-unreachable"

    @pytest.mark.e2e
    @pytest.mark.parametrize(("environment", "exit_code"), [({}, 3), ({"PREFECT__FLOW_RUN_ID": "made-up"}, 0)])
    def test_a_process_that_lost_its_lease_reports_it_and_exits_with_3_or_as_worker_0(
        self, job: Path, api: ApiAddress, environment: dict[str, str], exit_code: int
    ) -> None:
        """A worker would set the run to Crashed, which another machine has by now."""
        code = (
            "import sys, time; from flows.job.running.lease import LeaseTimes, Lease; from pathlib import Path;"
            "from flows.reports.job_log import job_log; log = job_log(Path(sys.argv[3])); log.__enter__();"
            "from flows.engine.api_address import configured_api;"
            "lease = Lease(configured_api(), sys.argv[2], times=LeaseTimes(renew=0.1)).acquire();"
            "lease.hold(); print(lease.limit, flush=True); time.sleep(60)"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", code, api.url, job.name, str(job / "job.log")], cwd=ROOT, text=True,
            env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert child.stdout
        limit = child.stdout.readline().strip()
        with Limits(api) as limits:
            assert limits.remove(limit)
        _, err = child.communicate(timeout=60)
        assert child.returncode == exit_code
        for told in (err, (job / "job.log").read_text()):
            assert "error[job-lease-lost]" in told
            assert "hint:" in told


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
