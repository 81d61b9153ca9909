"""Prefect's process worker and runner, changed to survive any outage of the server.

Run as ``python -m flows.engine.pool_worker …`` with the options of ``prefect worker start``. Prefect's own worker ends
after twelve failed polls in a row, its runner (``serve``) after three, and their runs end with them; an error while a
run is being taken up ends a worker at once. Here a failed poll is logged and the next one follows at the usual time. A
run that was being taken up stays Pending in Prefect, and the sweep (``flows/job/running/sweep.py``) corrects it.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateName,
)
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import WorkerFlowRunResponse
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Scheduled
from prefect.utilities.services import critical_service_loop
from prefect.workers.process import ProcessWorker

from flows.engine import patches
from flows.engine.flow_runs import BEHIND
from flows.signals import end_with_supervisor
from tasks.shared.errors import TerminalError

logger = logging.getLogger("sluice.worker")

AGAIN = timedelta(seconds=30)
"""Time between two checks of a run that waits for another; Prefect's server uses the same."""

Workload = Callable[..., Coroutine[Any, Any, Any]]


def passes(error: httpx.HTTPError) -> bool:
    """Return whether an error comes from a server that is away, failing or overloaded, and will pass."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= 500 or error.response.status_code in {408, 429}
    return isinstance(error, httpx.TransportError)


def retrying(workload: Workload) -> Workload:
    """Return ``workload`` changed to log once that the server is away, and once that it is back, instead of failing."""
    away = False

    async def retried_once(*args: Any) -> Any:
        nonlocal away
        try:
            found = await workload(*args)
        except httpx.HTTPError as error:
            if not passes(error):
                raise
            if not away:
                away = True
                logger.warning("the Prefect API is away (%s); runs continue; it is retried", type(error).__name__)
            return None
        if away:
            away = False
            logger.warning("the Prefect API is back")
        return found

    return retried_once


async def loop(workload: Workload, interval: float, **options: Any) -> None:
    """Run Prefect's loop without counting failures."""
    await critical_service_loop(workload=retrying(workload), interval=interval, **options)


def later(due: Sequence[FlowRun], waiting: Sequence[FlowRun]) -> list[FlowRun]:
    """Return the runs that are ``due`` and planned later than another one, due or ``waiting``.

    Runs of another deployment, or in another queue (which may have no worker), do not count.
    """
    first: dict[tuple[UUID | None, UUID | None], FlowRun] = {}
    never = datetime.max.replace(tzinfo=UTC)
    for run in sorted([*due, *waiting], key=lambda run: (run.expected_start_time or never, run.id)):
        first.setdefault((run.deployment_id, run.work_queue_id), run)
    return [run for run in due if first[run.deployment_id, run.work_queue_id].id != run.id]


with warnings.catch_warnings():  # it takes the place of Prefect's own on purpose
    warnings.simplefilter("ignore", UserWarning)

    class Worker(ProcessWorker):
        """Prefect's process worker. An exception in one of its tasks would end it together with all its runs."""

        get_and_submit_flow_runs = retrying(ProcessWorker.get_and_submit_flow_runs)
        _sync_and_initialize = retrying(ProcessWorker._sync_and_initialize)  # noqa: SLF001 - as above

        async def _submit_scheduled_flow_runs(self, flow_run_response: list[WorkerFlowRunResponse]) -> list[FlowRun]:
            # A run resumed or continued while its last process here still ends waits for the next check:
            # Prefect's worker would not find its place free, and would end.
            ending = self._limiter.statistics().borrowers if self._limiter is not None else ()
            behind = await self._behind([entry.flow_run for entry in flow_run_response])
            free = [entry for entry in flow_run_response if entry.flow_run.id not in {*ending, *behind}]
            return await super()._submit_scheduled_flow_runs(free)

        async def _behind(self, due: list[FlowRun]) -> set[UUID]:
            """Return the runs that are not taken up now, because an earlier one of their deployment is due or waits.

            Where a deployment has a ``concurrency_limit``, Prefect's server gives a free slot to the first run that
            asks, and each asks every 30 seconds. They get the state that Prefect's server sets.
            """
            ids = {run.deployment_id for run in due if run.deployment_id is not None}
            if not ids:
                return set()
            these = DeploymentFilter(id=DeploymentFilterId(any_=sorted(ids)))
            found = await self.client.read_deployments(deployment_filter=these)
            limited = {one.id for one in found if one.global_concurrency_limit is not None}
            if not limited:
                return set()
            state = FlowRunFilterState(name=FlowRunFilterStateName(any_=[BEHIND]))
            waiting = await self.client.read_flow_runs(
                deployment_filter=these, flow_run_filter=FlowRunFilter(state=state),
                sort=FlowRunSort.EXPECTED_START_TIME_ASC,
            )  # fmt: skip
            behind = later([run for run in due if run.deployment_id in limited], waiting)
            for run in behind:
                if run.state is not None and run.state.name in {"Scheduled", "Late"}:
                    waits: State[Any] = Scheduled(name=BEHIND, scheduled_time=datetime.now(UTC) + AGAIN)
                    await self.client.set_flow_run_state(run.id, waits)
            return {run.id for run in behind}

        async def _submit_run(self, flow_run: FlowRun) -> None:
            try:
                await super()._submit_run(flow_run)
            except httpx.HTTPError as error:
                _log_failure("run %s is not taken up now: the Prefect API failed (%s)", flow_run.id, error)
                self._release_limit_slot(flow_run.id)
                self._submitting_flow_run_ids.discard(flow_run.id)
                if self._cancelling_observer is not None:
                    self._cancelling_observer.remove_in_flight_flow_run_id(flow_run.id)

        async def _cancel_run(self, flow_run_id: UUID) -> None:
            # The run checks for a cancel, too, and the sweep ends dead runs.
            try:
                await super()._cancel_run(flow_run_id)
            except httpx.HTTPError as error:
                _log_failure("the cancel of %s is not passed on: the Prefect API failed (%s)", flow_run_id, error)


def _log_failure(what: str, run: UUID, error: httpx.HTTPError) -> None:
    logger.warning(what, run, type(error).__name__)


def main() -> None:
    """Run Prefect's command line for a process worker in this process, if the private parts of Prefect fit."""
    end_with_supervisor()
    try:
        patches.require("run", "worker")  # includes the needs of its runs
        patches.apply("worker")
    except TerminalError as unfit:
        sys.stderr.write(unfit.render() + "\n")
        sys.exit(unfit.exit_code)
    from prefect.cli import app

    sys.argv = ["prefect", "worker", "start", "--type", "process", *sys.argv[1:]]
    app()


if __name__ == "__main__":
    main()
