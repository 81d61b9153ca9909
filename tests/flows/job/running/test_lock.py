"""The lock of a job (4-product.md §4: held with flock by the process that runs the job)."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.job.running.lease import LeaseLostError
from flows.job.running.lock import JobBusyError, JobLock, is_held
from tasks.shared.errors import StorageError
from tasks.shared.stop import SharedStop, Stop
from tests.conftest import ROOT

HOLDER = """
import sys, time
from pathlib import Path
from flows.job.running.lease import LeaseLostError
from flows.job.running.lock import JobLock
with JobLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.e2e
def test_a_second_process_is_refused_with_exit_code_4_and_is_told_who_has_the_job(tmp_path, holder):
    assert is_held(tmp_path)
    with pytest.raises(JobBusyError) as caught, JobLock(tmp_path):
        pass
    assert caught.value.exit_code == 4
    assert str(holder.pid) in caught.value.message


@pytest.mark.e2e
def test_kill_9_releases_the_lock(tmp_path, holder):
    holder.kill()
    holder.wait()
    assert not is_held(tmp_path)
    with JobLock(tmp_path):
        pass


def test_the_process_that_holds_the_lock_may_lock_again_and_is_not_another_holder(tmp_path):
    with JobLock(tmp_path):
        with JobLock(tmp_path):
            assert not is_held(tmp_path)
        assert tmp_path.absolute() / ".lock" in JobLock.held
    assert not JobLock.held


def test_a_lock_that_cannot_be_written_is_not_held(tmp_path, monkeypatch):
    released = []

    class FullDiskLease:
        limit = "limit"

        def release(self):
            released.append(self)

    def full(handle, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as on_a_full_disk:
        on_a_full_disk.setattr("flows.job.running.lock._write", full)
        on_a_full_disk.setattr(JobLock, "_leased", lambda self, before: FullDiskLease())
        with pytest.raises(StorageError) as caught, JobLock(tmp_path):
            pass
    assert caught.value.reference == "disk-full"
    assert len(released) == 1
    assert not JobLock.held
    with JobLock(tmp_path):
        pass


def test_a_lock_that_cannot_be_given_back_in_writing_is_let_go_and_fails_no_job(tmp_path, monkeypatch):
    def gone(handle, content):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as away, JobLock(tmp_path):
        away.setattr("flows.job.running.lock._write", gone)
    assert not JobLock.held
    with JobLock(tmp_path):
        pass


def test_the_lock_file_is_private(tmp_path):
    with JobLock(tmp_path):
        assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o600


def test_ownership_is_checked_before_a_request_if_another_machine_could_own_the_job(tmp_path, monkeypatch):
    lost = []

    class RenamedLease:
        limit, late = "limit", False

        def hold(self, still_ours, rename):
            pass

        def lose(self, message):
            lost.append(message)
            return LeaseLostError("job-lease-lost", message)

        def end(self):
            pass

        release = end

    monkeypatch.setattr(JobLock, "_leased", lambda self, before: RenamedLease())
    run = Stop()
    with JobLock(tmp_path) as lock:
        run.fence = lock.fence
        together = SharedStop(run)
        together.before_request()
        lock.rename("another limit of ours")
        together.before_request()
        (tmp_path / ".lock").write_text("{}")
        together.check()
        with pytest.raises(LeaseLostError):
            together.before_request()
    assert lost == ["another machine has taken the job"]


def test_who_took_too_long_to_write_his_name_does_not_begin(tmp_path, monkeypatch):
    released = []

    class LateLease:
        name, limit, late = "job-x", "limit", True

        def release(self):
            released.append(self)

    monkeypatch.setattr(JobLock, "_leased", lambda self, before: LateLease())
    with pytest.raises(LeaseLostError), JobLock(tmp_path):
        pass
    assert len(released) == 1
    assert not JobLock.held


def test_no_request_goes_out_while_nobody_knows_whose_the_job_is(tmp_path, monkeypatch):
    looks = []

    class WatchedLease:
        limit = "limit"
        holds = False

        def hold(self, still_ours, rename):
            self.holds = True

        @property
        def late(self):
            looks.extend([1] * self.holds)
            return self.holds and len(looks) < 3

        def end(self):
            pass

        release = end

    monkeypatch.setattr(JobLock, "_leased", lambda self, before: WatchedLease())
    with JobLock(tmp_path) as lock:
        lock.fence()
    assert len(looks) == 3
