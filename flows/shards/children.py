"""Start, watch and stop the children of a divided step: processes of this machine, or runs of a deployment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from flows.engine.api import FLOW_NAME, Json, PrefectApi
from flows.engine.flow_runs import children_of, run_child
from flows.job.running.lock import is_held
from flows.job.running.state import TAKEN_UP
from flows.shards.files import ShardError, ShardOrder
from flows.signals import SUPERVISOR
from tasks.shared.errors import InputError, SluiceError, StorageError
from tasks.shared.log import logger
from tasks.shared.step import StepContext, shard_directory

STOP_SECONDS: Final = 5.0
"""Time that children of this machine have to end after a stop; then they are killed."""

LOOK_EVERY: Final = 3.0
"""Seconds between two looks at the runs of a deployment."""

SILENT: Final = 15.0
"""Seconds after which the process of a run that has held its shard is taken for dead. It holds the shard, for others,
as long as it gave a sign of life within a lease."""

TAKING: Final = 60.0
"""Seconds that a running run has for taking its shard: on a busy machine, or with a slow Prefect API, more than
``SILENT``."""

UNSTARTED: Final = 30.0
"""Seconds after which runs that nobody starts are processed by the parent itself."""

LOST_NAME: Final = "ShardLost"
FAILED_NAME: Final = "ShardFailed"
"""Names of the states of runs of shards: notifications are for those of jobs."""

_FAILURE: Final = re.compile(r"error\[((?!shard-)[a-z0-9-]+)\]")
"""The message of the state of a run that ended with an error of its own, not with one of its order."""


class ChildState(Enum):
    """The state of a child, as far as its parent must know it. The receipt says how an ended one ended."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class LocalChildren:
    """Children that are processes of this machine. They end with this process, however it ends."""

    def __init__(self, job_dir: Path) -> None:
        self.most = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._job_dir = job_dir
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def attempts(self, shard: int) -> int:
        """Return 0: nothing is known of earlier processes but their orders."""
        return 0

    def start(self, order: ShardOrder) -> None:
        """Start a process. Raises ``OSError``."""
        directory = shard_directory(self._job_dir, order.position, order.shard)
        self._processes[order.shard] = subprocess.Popen(  # noqa: S603 - this program
            (sys.executable, "-m", "flows.shards.child", str(directory)),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | {SUPERVISOR: str(os.getpid())},
        )  # fmt: skip

    def states(self) -> Mapping[int, ChildState]:
        """Return the state of each process, by the number of its shard."""
        return {
            shard: ChildState.RUNNING if one.poll() is None else ChildState.ENDED
            for shard, one in self._processes.items()
        }

    def error(self, shard: int) -> SluiceError | None:
        """Return the error that an ended process had to report without a receipt."""
        one = self._processes.get(shard)
        if one is None or one.stdout is None:
            return None
        with one.stdout:
            text = one.stdout.read()
        one.stdout = None
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(text, type=ShardError).error()
        return None

    def stop(self) -> None:
        """Ask the processes to end, and kill them if they do not."""
        for one in self._processes.values():
            one.terminate()
        end = time.monotonic() + STOP_SECONDS
        for one in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                one.wait(max(0.0, end - time.monotonic()))
            with one:
                one.kill()

    def unstarted(self) -> bool:
        """Return ``False``: a process starts at once."""
        return False


class PoolChildren:
    """Children that are runs of a deployment, which the workers of its pool or a served deployment take up."""

    def __init__(
        self, api: PrefectApi, deployment: str, context: StepContext, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Read which runs the job has had. Raises ``NetworkError``."""
        self.most = sys.maxsize
        self._api = api
        self._deployment = deployment
        self._context = context
        self._clock = clock
        self._earlier: dict[str, list[Json]] = {}
        for run in children_of(api, [context.job_id]):
            self._earlier.setdefault(str(run["parameters"]["shard"]), []).append(run)
        self._runs: dict[int, str] = {}
        self._states: dict[int, ChildState] = {}
        self._silent_at: dict[tuple[str, str], float] = {}
        self._failures: dict[int, str] = {}
        self._looked = self._moved = clock()

    def attempts(self, shard: int) -> int:
        """Return the last attempt that Prefect knows, also of a division that ``job run --force`` removed."""
        runs = self._earlier.get(self._parameter(shard), ())
        return max((int(run["idempotency_key"].rpartition(" ")[2]) for run in runs), default=0)

    def _parameter(self, shard: int) -> str:
        return f"{self._context.job_id}/{self._context.position}/{shard}"

    def start(self, order: ShardOrder) -> None:
        """Submit a run. A repetition for the same attempt returns the same run.

        Runs of earlier attempts are over, whatever Prefect's record says: the shard's lock was free.
        """
        for run in self._earlier.pop(self._parameter(order.shard), ()):
            if run["state_type"] in {"PENDING", "RUNNING", "CANCELLING"}:
                self._end(run, "its process is gone")
        self._runs[order.shard] = run_child(
            self._api, self._deployment, order.job,
            {"config": "", "shard": self._parameter(order.shard)},
            f"step {order.position} shard {order.shard} attempt {order.attempt}",
        )  # fmt: skip
        self._states[order.shard] = ChildState.WAITING
        self._moved = self._clock()

    def _end(self, run: Json, why: str) -> None:
        """Record the end of a run whose process cannot do it."""
        if run["state_type"] == "CANCELLING":
            self._api.set_state(str(run["id"]), "CANCELLED", message=why)
        else:
            self._api.set_state(str(run["id"]), "CRASHED", name=LOST_NAME, message=why)

    def states(self) -> Mapping[int, ChildState]:
        """Return the states, at most ``LOOK_EVERY`` seconds old."""
        now = self._clock()
        if now - self._looked >= LOOK_EVERY:
            self._looked = now
            followed = {run: shard for shard, run in self._runs.items() if self._states[shard] is not ChildState.ENDED}
            wanted = {"flow_runs": {"id": {"any_": list(followed)}}}
            found = {str(run["id"]): run for run in self._api.read_all("/flow_runs/filter", wanted)} if followed else {}
            for run, shard in followed.items():
                self._states[shard] = self._state(shard, found.get(run), now)
            if ChildState.RUNNING in self._states.values():
                self._moved = now
        return self._states

    def _state(self, shard: int, run: Json | None, now: float) -> ChildState:
        kind = str((run or {}).get("state_type"))
        if kind == "SCHEDULED":
            return ChildState.WAITING
        if run is not None and kind in {"PENDING", "RUNNING", "CANCELLING"}:
            if not self._silent(shard, str(run["id"]), kind, now):
                return ChildState.RUNNING
            self._end(run, "it gave no sign of life")
            if kind != "CANCELLING":
                logger.warning("the run of shard %d gives no sign of life; it is submitted again", shard)
        if kind in {"CANCELLING", "CANCELLED"}:
            logger.warning("the run of shard %d was cancelled; it is submitted again", shard)
        if run is not None and kind == "FAILED":
            self._failures[shard] = str(run["state"]["message"])
        return ChildState.ENDED

    def _silent(self, shard: int, run: str, kind: str, now: float) -> bool:
        """Return whether a run in a state of this kind has not held the lock of its shard for too long."""
        limit = {"PENDING": TAKEN_UP.total_seconds(), "RUNNING": TAKING}.get(kind, SILENT)
        silent_at = self._silent_at.setdefault((run, kind), now + limit)
        directory = shard_directory(self._context.job_dir, self._context.position, shard)
        try:
            held = is_held(directory, job=self._context.job_dir)
        except SluiceError:
            held = True  # as far as is known
        if held:
            silent_at = self._silent_at[run, kind] = now + SILENT
        return now > silent_at

    def error(self, shard: int) -> SluiceError | None:
        """Return the error of a run that could not write its receipt, as far as its state names it."""
        found = _FAILURE.match(self._failures.pop(shard, ""))
        if found is None:
            return None
        return StorageError(
            found[1], "the run of a shard could not write its receipt",
            context=str(shard_directory(self._context.job_dir, self._context.position, shard)),
            hint="the reason is in job.log and in the log of the run; remove it, then continue the job",
        )  # fmt: skip

    def stop(self) -> None:
        """Cancel the runs. Their workers stop those that are running; none is waited for."""
        for shard, run in self._runs.items():
            state = self._states.get(shard)
            if state is not ChildState.ENDED:
                kind = "CANCELLED" if state is ChildState.WAITING else "CANCELLING"
                try:
                    self._api.set_state(run, kind, message="the job does not need it any more")
                except SluiceError as error:
                    logger.warning("the run of shard %d is not cancelled: %s", shard, error.message)

    def unstarted(self) -> bool:
        """Return whether all remaining runs have waited for ``UNSTARTED`` seconds, and none is running."""
        waiting = ChildState.WAITING in self._states.values()
        return waiting and self._clock() - self._moved > UNSTARTED


Children = LocalChildren | PoolChildren
"""The children of one step. ``most`` of them can run at once."""


def find_deployment(api: PrefectApi, name: str) -> Json:
    """Return a deployment of the flow, by its name ``flow/deployment``. Raises ``InputError`` if there is none."""
    found: Json | None = api.request("GET", f"/deployments/name/{name}")
    if found is None or not name.startswith(f"{FLOW_NAME}/"):
        raise InputError(
            "shard-deployment", f"there is no such deployment of the flow {FLOW_NAME}",
            context=f"pipeline.shard_deployment: {name}",
            hint="create it (deployments/prefect.yaml), or leave the key out",
        )  # fmt: skip
    return found
