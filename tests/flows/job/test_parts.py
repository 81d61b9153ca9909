"""What a Dask worker refuses; ``tests/e2e/test_parts.py`` has whole jobs in parts."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path

import dask
import pytest
from prefect.client.schemas.objects import State

from flows.job.inputs import JobInputs
from flows.job.lock import LOCK, holder, job_lock, part_lock
from flows.job.parts import PartOrder, do_part
from tasks.shared.errors import Stopped
from tasks.shared.step import Part, Source

Do = Callable[[str], "State[object]"]


@pytest.fixture
def do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Do:
    monkeypatch.setattr(os, "umask", lambda _: 0)
    part = "validation", 2, Source(tmp_path), Part(("batch-1",), number=1)

    def do(run: str, *, profiler: bool = False) -> State[object]:
        with dask.config.set({"distributed.worker.profile.enabled": profiler}):
            return do_part(PartOrder(run, JobInputs(config="not read"), tmp_path, *part))

    return do


def test_a_part_of_a_run_that_has_ended_does_nothing(tmp_path: Path, do: Do) -> None:
    with job_lock(tmp_path):
        run = holder(tmp_path)
    assert do(run).name == "Stopped"
    with (tmp_path / LOCK).open("r+") as another:
        fcntl.flock(another, fcntl.LOCK_EX)
        assert do(run).is_failed(), "it went on to read its configuration"
        another.write("process 1 on another-machine")
        another.flush()
        assert do(run).name == "Stopped"


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Dask's profiler is no danger there")
def test_a_worker_whose_profiler_can_stop_it_refuses_its_part(tmp_path: Path, do: Do) -> None:
    state = do("a run", profiler=True)  # type: ignore[call-arg]
    assert state.is_failed()
    assert "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=false" in str(state.message)


def test_a_part_that_waits_for_its_next_attempt_ends_with_its_run(tmp_path: Path) -> None:
    with (tmp_path / LOCK).open("w") as job:
        fcntl.flock(job, fcntl.LOCK_EX)
        with part_lock(tmp_path, "", 1) as stop:
            (tmp_path / LOCK).write_text("another process")
            with pytest.raises(Stopped):
                stop.sleep(5)
