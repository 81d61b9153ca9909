"""Files in parts: how they are divided, what workers refuse, missing records (whole jobs: ``tests/e2e``)."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import dask
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.client.schemas.objects import State

from flows.job import parts
from flows.job.inputs import JobInputs
from flows.job.lock import LOCK, holder, job_lock, part_lock
from flows.job.parts import do_part
from tasks.shared.errors import Stopped, TransientError
from tasks.shared.step import Part, Source
from tasks.validation.step import STEP
from tests.peers import data, job, services
from tests.peers.server import ScriptedServer

Do = Callable[[str], "State[object]"]


@pytest.fixture
def do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Do:
    monkeypatch.setattr(os, "umask", lambda _: 0)
    part = Part(("batch-1",), number=1)

    def do(run: str, *, profiler: bool = False) -> State[object]:
        with dask.config.set({"distributed.worker.profile.enabled": profiler}):
            return do_part(
                run=run, inputs=JobInputs(config="not read"), directory=tmp_path, step="validation", position=2,
                source=Source(tmp_path), part=part,
            )  # fmt: skip

    return do


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 100)), st.integers(1, 9))
def test_every_file_is_in_one_part_and_no_part_is_too_heavy(sizes: dict[str, int], count: int) -> None:
    groups = [part.files or () for one in parts.rounds(sizes, count) for part in one]
    assert sorted(base for group in groups for base in group) == sorted(sizes)
    assert len(groups) == min(count, len(sizes))
    weights = [sum(sizes[base] for base in group) for group in groups]
    assert max(weights, default=0) <= sum(sizes.values()) / count + max(sizes.values(), default=0)


def test_core_is_a_round_before_and_files_without_a_usable_record_end_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[Sequence[Part]] = []
    monkeypatch.setattr(parts, "SEEN_WITHIN", 1)
    monkeypatch.setattr(parts, "process", lambda *given: rounds.extend(given[2]))
    data.people(tmp_path / "import")
    with ScriptedServer(services.validation) as server:
        config = job.configuration({"validation": {"url": server.url}}, pipeline={"parts": 2})
        divide = partial(parts.divide, JobInputs(config="not read"))
        context = job.context(tmp_path, "validation", config, source=tmp_path / "import", divide=divide)
        with pytest.raises(TransientError) as caught:
            STEP.run(context)
    assert (caught.value.reference, caught.value.exit_code) == ("parts-missing", 3)
    assert [[(sorted(part.files or ()), part.number, part.at_once) for part in one] for one in rounds] == [
        [(["core"], 1, 1)], [(["batch-0", "batch-1"], 1, 2), (["batch-2", "batch-3"], 2, 2)],
    ]  # fmt: skip


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
    with (tmp_path / LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with part_lock(tmp_path, "", 1) as stop:
            (tmp_path / LOCK).write_text("another process")
            with pytest.raises(Stopped):
                stop.sleep(5)
