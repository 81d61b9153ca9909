"""``kill -9`` while a job is being parked: it waits, and a command decides.

A bridge before the Prefect API holds one request of the parking: before the API has it, or its answer. There the
process is killed. The order is: record (labels), state, form (its schema, then its description).
"""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from tests.conftest import Commands, ask_prefect, kill
from tests.peers.bridge import Bridge
from tests.peers.project import Fhir

ENDS = {"--approve": "completed", "--reject": "cancelled", None: "waiting"}


class StoppingBridge(Bridge):
    """Holds the ``number``-th request whose path ends in ``path``; ``taken``: the answer to it."""

    def __init__(self, upstream: str, path: str, number: int, *, taken: bool) -> None:
        self._path, self._left, self._taken = path, number, taken
        self.stopped = threading.Event()
        self._muted: set[socket.socket] = set()
        super().__init__(upstream)

    def passes(self, method: str, path: str, upstream: socket.socket) -> bool:
        with self._lock:
            self._left -= path.endswith(self._path) and "/flow_runs/" in path and method == "POST"
            stops = self._left == 0
            self._left -= stops
        if stops and self._taken:
            self._muted.add(upstream)
        elif stops:
            self.stopped.set()
        return not stops or self._taken

    def returns(self, upstream: socket.socket) -> bool:
        if upstream in self._muted:
            self.stopped.set()
        return upstream not in self._muted


@pytest.mark.e2e
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("path", "number", "taken", "state", "decision"),
    [
        ("/set_state", 2, False, "RUNNING", "--approve"),
        ("/set_state", 2, True, "PAUSED", "--reject"),
        ("/input", 1, False, "PAUSED", "--approve"),
        ("/input", 2, False, "PAUSED", None),
    ],
)
def test_a_job_killed_while_it_is_parked_waits_and_a_command_decides(
    sluice: Commands, project: Path, fhir: Fhir, prefect_api: str,
    path: str, number: int, taken: bool, state: str, decision: str | None,
) -> None:  # fmt: skip
    bridge = StoppingBridge(prefect_api.removesuffix("/api"), path, number, taken=taken)
    try:
        child = sluice.start("pipeline", "start", "config.yaml", env={"PREFECT_API_URL": f"{bridge.url}/api"})
        assert child.stdout
        job = child.stdout.readline().split()[1]
        assert bridge.stopped.wait(120)
        kill(child.pid)
        child.wait()
    finally:
        bridge.close()
    assert ask_prefect("GET", f"{prefect_api}/flow_runs/{job}")["state_type"] == state
    assert sluice.status(job)["state"] == "waiting"
    assert fhir.total() == 0
    ran = sluice.here("pipeline", "continue", "config.yaml", job, *([decision] if decision else []))
    assert ran.code == 0, ran.err
    assert sluice.status(job)["state"] == ENDS[decision]
    assert fhir.total() == (19 if decision == "--approve" else 0)
