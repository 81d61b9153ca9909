"""Divide a step's files into parts, which run as Prefect tasks on Dask.

``divide`` runs in the job's process, ``do_part`` in a worker, which reads the configuration and its secrets itself. The
worker writes files and their records, so nothing is merged, but no label of the job.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from prefect import task, unmapped
from prefect.client.schemas.objects import State, StateType
from prefect.states import Completed, Failed

from flows.job.inputs import JobInputs
from flows.job.lock import holder, part_lock
from flows.job.problem import Problem, reported
from flows.prefect.runs import translated
from tasks import declared
from tasks.shared.blanked import remember
from tasks.shared.errors import InputError, NetworkError, Stopped, TransientError
from tasks.shared.file_work import FileWork, read_records, records_of
from tasks.shared.files.data_directory import CORE
from tasks.shared.log import logger
from tasks.shared.meter import Meter
from tasks.shared.step import Divide, Part, Source, StepContext

SEEN_WITHIN: Final = 90
"""Seconds to wait for files of other machines: NFS caches the content of a directory for up to a minute."""

ANSWERS_WITHIN: Final = 10.0
"""Seconds for the scheduler's answer: Dask itself waits forever if another program listens there."""

_LOCAL: Final = {
    "threads_per_worker": 1, "memory_limit": 0, "silence_logs": logging.CRITICAL,
    "dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False},  # else it takes port 8787
    "security": True,  # else every user of this machine could run programs in the workers
    # Ctrl-C in a terminal reaches all processes, but only the job may end the workers.
    "preload": ["import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"],
}  # fmt: skip
"""Settings of a cluster of processes on this machine."""

_PROFILER: Final = "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED"
"""Dask's profiler can make CPython 3.11 hang (python/cpython#106883)."""

_INHERITED: Final = {
    _PROFILER: "false",
    # No HTTP pages about the parts, because every user of this machine could read them.
    "DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES": "[]",
    "DASK_DISTRIBUTED__WORKER__HTTP__ROUTES": "[]",
}
"""Variables for the processes on this machine, set before Dask is imported."""


def dividing(inputs: JobInputs) -> Divide:
    """Return the function that has the files of a step processed in parts.

    It runs in the context of this call, which is that of the flow: parts are tasks of the flow.
    """
    flow = copy_context()
    return lambda *given: flow.run(divide, inputs, *given)


def divide(inputs: JobInputs, context: StepContext, work: FileWork, files: Mapping[str, Path], proof: str) -> None:
    """Have files (base name → path) processed by the workers of a Dask cluster. No part is left running when this ends.

    Raises the first error of a part, ``TransientError`` (no record of a file), ``NetworkError`` (cluster), ``Stopped``.
    """
    sizes = {base: path.stat().st_size for base, path in files.items()}
    process(inputs, context, rounds(sizes, context.config.pipeline.parts, proof), sizes)
    for _ in range(SEEN_WITHIN):
        missing = work.take_over(files)
        if not missing:
            return
        context.stop.sleep(1)
    raise TransientError(
        "parts-missing", f"{context.name}: the workers left no usable record of some files", context=missing[0],
        hint="give all machines the same jobs_dir, configuration and variables, then continue the job",
    )  # fmt: skip


def rounds(sizes: Mapping[str, int], parts: int, proof: str = "") -> list[list[Part]]:
    """Return two rounds: a part with ``core``, then parts of about the same size. ``sizes`` is base name → bytes."""
    groups: list[list[str]] = [[] for _ in range(parts)]
    core = [base for base in sizes if base.lower() == CORE]
    for base in sorted(sizes.keys() - set(core), key=lambda base: (-sizes[base], base)):
        min(groups, key=lambda group: sum(sizes[one] + 1 for one in group)).append(base)
    found = [[core], [group for group in groups if group]]
    return [
        [Part(tuple(group), proof, number, len(one)) for number, group in enumerate(one, 1)]
        for one in found if any(one)
    ]  # fmt: skip


def process(
    inputs: JobInputs, context: StepContext, rounds: Sequence[Sequence[Part]], sizes: Mapping[str, int]
) -> None:
    """Run one round after the other on the cluster, its parts at the same time, and count finished files."""
    step, limit, seen = context.name, f"services.{context.name}.max_concurrent_requests", set[str]()
    with _cluster(context) as runner:
        for parts in rounds:
            share = max(1, attrgetter(limit)(context.config) // len(parts))
            overrides = (*inputs.overrides, "pipeline.parts=1", f"{limit}={share}")
            common = {
                "run": holder(context.job_dir), "inputs": inputs.model_copy(update={"overrides": overrides}),
                "directory": context.job_dir, "step": step, "position": context.position, "source": context.input,
            }  # fmt: skip
            logger.info("%s: parts: %d", step, len(parts))
            name = f"{step} part {{part.number}} of {len(parts)}"
            do = task(name=f"{step} part", task_run_name=name, persist_result=False)(do_part)
            futures = runner.map(do, {name: unmapped(one) for name, one in common.items()} | {"part": parts})
            waiting = [future.wrapped_future for future in futures]
            while waiting:
                context.stop.sleep(0.25)
                waiting = [future for future in waiting if not _has_ended(future, context.meter)]
                _show_finished(context, seen, sizes)


def _cluster(context: StepContext) -> Any:
    """Return a task runner for the configured cluster, or for processes on this machine that end with its block."""
    os.environ.update(_INHERITED)
    from prefect_dask.task_runners import DaskTaskRunner

    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    pipeline = context.config.pipeline
    if pipeline.dask_address is None:
        return DaskTaskRunner(cluster_kwargs=_LOCAL | {"n_workers": pipeline.parts})
    try:
        asyncio.run(_greet(pipeline.dask_address))
    except Exception:  # noqa: BLE001 - Dask raises many types if another program answers
        raise _failed("it does not answer") from None
    return DaskTaskRunner(address=pipeline.dask_address)


async def _greet(address: str) -> None:
    distributed: Any = import_module("distributed")
    async with asyncio.timeout(ANSWERS_WITHIN):
        security = distributed.Security().get_connection_args("client")
        await (await distributed.comm.connect(address, **security)).close()


def _has_ended(future: Any, meter: Meter) -> bool:
    """Return whether a part has ended, and count its requests. Raises its error."""
    if future.status == "pending":
        return False
    if future.status != "finished":
        error = future.exception() if future.status == "error" else None
        if isinstance(error, RuntimeError):
            with translated():  # Prefect was away when the part began
                raise error
        raise _failed(type(error).__name__ if error is not None else "the connection to its scheduler was lost")
    data = future.result().data
    if data is None:
        raise _failed("a worker stopped before its part was complete")
    if isinstance(data.result, Problem):
        raise data.result.error()
    meter.count(*data.result)
    return True


def _failed(what: str) -> NetworkError:
    return NetworkError(
        "dask-failed", f"the Dask cluster failed ({what})", context="pipeline.dask_address",
        hint="check the scheduler and the workers, and that they have this version of Sluice; then continue the job",
    )  # fmt: skip


def _show_finished(context: StepContext, seen: set[str], sizes: Mapping[str, int]) -> None:
    """Count the files that were finished since the last look."""
    for done in read_records(records_of(context.job_dir, context.position), seen):
        seen.add(done.file)
        if done.file in sizes:
            resources = done.counts.get("resources_in", done.counts.get("resources", 0))
            context.meter.add(files=1, resources=resources, bytes=done.counts["content"], stored=sizes[done.file])


def do_part(
    *, run: str, inputs: JobInputs, directory: Path, step: str, position: int, source: Source, part: Part
) -> State[Any]:
    """Process a part in a worker. Return a state with the numbers of its requests, or with its error.

    The parameters are paths and names, no secret; ``run`` names the run that ordered the part (``holder``).
    """
    os.umask(0o077)
    meter = Meter()
    try:
        _refuse_profiler()
        with part_lock(directory, run, part.number) as stop:
            config = inputs.load().config
            remember(config)
            declared(step).run(StepContext(
                config=config, job_id=directory.name, job_dir=directory, position=position, name=step, source=source,
                meter=meter, stop=stop, part=part,
            ))  # fmt: skip
    except Stopped as stopped:
        return State(type=StateType.CRASHED, name="Stopped", message=f"stopped by {stopped}")
    except Exception as error:  # noqa: BLE001 - a defect becomes an error of the job
        problem = Problem.of(reported(error))
        return Failed(message=problem.render(), data=problem)
    return Completed(data=(meter.requests, meter.retries, meter.times))


def _refuse_profiler() -> None:
    import dask

    if sys.version_info < (3, 12) and dask.config.get("distributed.worker.profile.enabled"):
        hint = f"start workers with {_PROFILER}=false"
        raise InputError("dask-profiler", "Dask's profiler can make this version of Python hang", hint=hint)
