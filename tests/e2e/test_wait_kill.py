"""``kill -9`` while a job is being parked: it waits and can be decided (4-product.md §4, "Wait").

Between the run and the Prefect API stands a bridge that stops it at one request: before the API has it, or after, when
the answer is on its way. There the process is killed.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flows.job.record import JobRecord
from flows.prefect.api import PrefectApi
from tests.conftest import Commands, address_of, kill
from tests.peers.bridge import Bridge
from tests.peers.project import Fhir

PARKING = ("input", "input", "labels", "artifacts", "set_state")
"""What a run asks the API from the first request of its parking on: form and description, record, page, state."""


class StoppingBridge(Bridge):
    """Stops the run at a request of its parking; ``taken``: when the API has carried it out.

    ``stop`` is the number of the request, from 0, or the end of its path: a slow run may ask something in between.
    """

    def __init__(self, upstream: str, *, stop: int | str, taken: bool) -> None:
        self._stop, self._taken = stop, taken
        self.asked: list[tuple[str, str]] = []
        """Method and path of the requests of the parking that came here."""
        self.stopped = threading.Event()
        self._muted: set[socket.socket] = set()
        super().__init__(upstream)

    def passes(self, method: str, path: str, upstream: socket.socket) -> bool:
        with self._lock:
            if path.endswith("/input") or (self.asked and path.startswith(("/api/flow_runs/", "/api/artifacts/"))):
                self.asked.append((method, path.rpartition("/")[2]))
                stops = self._stop in (len(self.asked) - 1, self.asked[-1][1])
            else:
                stops = False
        if stops and self._taken:
            self._muted.add(upstream)
        elif stops:
            self.stopped.set()  # the run is left waiting
        return not stops or self._taken

    def returns(self, upstream: socket.socket) -> bool:
        if upstream in self._muted:
            self.stopped.set()  # what the API answered comes to nobody
        return upstream not in self._muted


@dataclass
class KilledJob:
    """A job whose process was killed while it was parked."""

    sluice: Commands
    api: PrefectApi
    job: str
    asked: list[tuple[str, str]]

    def run(self) -> dict[str, Any]:
        return self.api.read_run(self.job) or {}

    def record(self) -> JobRecord:
        return JobRecord.of(self.run())

    def go_on(self, *words: str) -> str:
        ran = self.sluice.here("pipeline", "continue", "config.yaml", self.job, *words)
        assert ran.code == 0, ran.err
        return ran.out


@contextmanager
def killed_at(stop: int | str, sluice: Commands, prefect_api: str, *, taken: bool) -> Iterator[KilledJob]:
    bridge = StoppingBridge(prefect_api.removesuffix("/api"), stop=stop, taken=taken)
    try:
        child = sluice.start("pipeline", "start", "config.yaml", env={"PREFECT_API_URL": f"{bridge.url}/api"})
        assert child.stdout
        job = child.stdout.readline().split()[1]
        assert bridge.stopped.wait(120), bridge.asked
        kill(child.pid)
        child.wait()
    finally:
        bridge.close()
    with PrefectApi(address_of(prefect_api)) as api:
        yield KilledJob(sluice, api, job, bridge.asked)


def goes_on(scene: KilledJob, fhir: Fhir, decision: str) -> None:
    """The killed job waits, and a person's decision is what happens to it."""
    shown = scene.sluice.here("job", "list", "config.yaml").out
    assert f"{scene.job}  waiting " in shown
    assert fhir.total() == 0
    scene.go_on(decision, "--by", "Anna Data")
    assert scene.record().state.value == ("completed" if decision == "--approve" else "cancelled")
    assert fhir.total() == (19 if decision == "--approve" else 0)
    assert scene.record().decisions[2].by == "Anna Data"


@pytest.mark.e2e
def test_a_job_killed_in_the_moment_before_it_is_parked_waits_and_is_approved(
    sluice: Commands, project: Path, fhir: Fhir, prefect_api: str
) -> None:
    with killed_at("set_state", sluice, prefect_api, taken=False) as scene:
        assert len(scene.asked) >= len(PARKING)
        assert (project / "jobs" / scene.job / "import_wait").is_dir()
        assert scene.run()["state_type"] == "RUNNING"
        goes_on(scene, fhir, "--approve")
