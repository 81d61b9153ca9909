"""A killed job goes on: the walk of a maintainer, traced through the modules that it passes.

The lock is free, so ``continue`` takes it and executes the same flow run. Steps whose label says complete are skipped;
the unfinished one asks for the files without a done record, and does those.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.conftest import Commands, started, wait_until
from tests.peers.project import Fhir, many_transactions

WALK = (
    "flows.commands.pipeline", "flows.session", "flows.job.lock", "flows.prefect.runs", "flows.pipeline",
    "flows.job.running", "tasks.shared.prefect_task", "tasks.shared.file_work",
)  # fmt: skip
"""The modules in the order in which the walk enters them."""

JOB = {
    "lock", "state", "record", "directory", "inputs", "preflight", "running", "ends", "watch", "find", "sources",
    "waiting",
}  # fmt: skip
"""The modules of ``flows/job`` that a job may pass."""


@contextmanager
def traced() -> Iterator[list[str]]:
    """Yield the modules of this program in the order in which this thread enters their functions."""
    entered: dict[str, None] = {}

    def look(frame: FrameType, event: str, _: Any) -> None:
        # "records_of" is but a path, and "drained" comes at the end.
        if event == "call" and frame.f_code.co_name not in ("<module>", "records_of", "drained"):
            name = str(frame.f_globals.get("__name__"))
            if name == "flows.pipeline" and name not in entered:
                for checked in [one for one in entered if one.startswith("tasks.")]:
                    del entered[checked]  # by the checks before
            if name.startswith(("flows.", "tasks.")):
                entered.setdefault(name)

    modules: list[str] = []
    sys.setprofile(look)
    try:
        yield modules
    finally:
        sys.setprofile(None)
        modules += entered


@pytest.mark.e2e
def test_a_killed_job_goes_on_by_the_walk_that_the_design_describes(
    sluice: Commands, tmp_path: Path, fhir: Fhir
) -> None:
    many_transactions(tmp_path, fhir.url)
    fhir.faults({"action": "delay", "method": "POST", "times": None, "seconds": 0.3})
    child = sluice.start("pipeline", "start", "config.yaml")
    job = started(child)
    wait_until(lambda: len([*(tmp_path / "jobs" / job / ".done" / "2").glob("*.json")]) > 1, 150)
    child.kill()
    child.communicate()
    assert sluice.status(job)["state"] == "interrupted"
    finished = len([*(tmp_path / "jobs" / job / ".done" / "2").glob("*.json")])  # the core file, and others
    fhir.faults()
    before = len(fhir.posts())

    with traced() as modules:
        assert sluice.here("pipeline", "continue", "config.yaml", job).code == 0
    passed = [name for name in modules if name in WALK]
    assert passed == list(WALK)
    assert {name.removeprefix("flows.job.") for name in modules if name.startswith("flows.job.")} <= JOB
    assert "tasks.local_import.run" not in modules, "the finished step is not entered"
    assert fhir.total() == 91
    assert len(fhir.posts()) - before <= 10 * (3 - (finished - 1))
