"""The lock of a job (held with flock by the process that runs the job)."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.job.lock import LOCK, JobBusyError, is_held, job_lock
from tests.conftest import ROOT

HOLDER = """
import sys, time
from pathlib import Path
from flows.job.lock import job_lock
with job_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_is_refused_with_exit_code_4_and_learns_the_holder(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    assert is_held(tmp_path)
    with pytest.raises(JobBusyError) as caught, job_lock(tmp_path, patience=0.1):
        pass
    assert caught.value.exit_code == 4
    assert f"(process {holder.pid} on " in caught.value.message


def test_kill_9_releases_the_lock(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    assert not is_held(tmp_path)
    with job_lock(tmp_path):
        pass


def test_the_holder_may_lock_again_and_is_not_another_process(tmp_path: Path) -> None:
    with job_lock(tmp_path):
        with job_lock(tmp_path):
            assert not is_held(tmp_path)
        assert (tmp_path / LOCK).stat().st_mode & 0o777 == 0o600
    assert not is_held(tmp_path / "nowhere")


def test_a_process_that_looks_at_the_lock_neither_holds_nor_refuses_it(tmp_path: Path) -> None:
    with (tmp_path / LOCK).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not is_held(tmp_path)
        threading.Timer(0.2, fcntl.flock, (other, fcntl.LOCK_UN)).start()
        with job_lock(tmp_path):
            pass
