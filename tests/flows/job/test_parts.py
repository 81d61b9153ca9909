"""What a Dask worker refuses; ``tests/e2e/test_parts.py`` has whole jobs in parts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import dask
import pytest
from prefect.client.schemas.objects import State

from flows.job.inputs import JobInputs
from flows.job.lock import job_lock, new_order
from flows.job.parts import PartOrder, do_part
from tasks.shared.step import Part, Source

Do = Callable[[str], "State[object]"]


@pytest.fixture
def do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Do:
    monkeypatch.setattr(os, "umask", lambda _: 0)
    part = "validation", 2, Source(tmp_path), Part(("batch-1",), number=1)

    def do(order: str, *, profiler: bool = False) -> State[object]:
        with dask.config.set({"distributed.worker.profile.enabled": profiler}):
            return do_part(PartOrder(order, JobInputs(config="not read"), tmp_path, *part))

    return do


def test_a_part_of_a_run_that_has_ended_does_nothing(tmp_path: Path, do: Do) -> None:
    order = new_order(tmp_path)
    assert do(order).name == "Stopped"
    with job_lock(tmp_path):
        assert do(order).name == "Stopped"  # another order was given to whoever holds the lock now


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Dask's profiler is no danger there")
def test_a_worker_whose_profiler_can_stop_it_refuses_its_part(tmp_path: Path, do: Do) -> None:
    state = do(new_order(tmp_path), profiler=True)  # type: ignore[call-arg]
    assert state.is_failed()
    assert "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=false" in str(state.message)
