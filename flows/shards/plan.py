"""Describe the division of a job among shards before there is a job, for ``pipeline plan``."""

from __future__ import annotations

from collections.abc import Iterator

from config import PipelineConfig
from flows.engine.api import PrefectApi
from flows.engine.api_address import configured_api
from flows.job.inputs import JobInputs
from flows.shards.children import find_deployment
from tasks import declared
from tasks.shared.errors import InputError
from tasks.shared.shards import FEW_BYTES, count_shards, divide
from tasks.shared.step import CheckContext, Splits
from tasks.shared.units import human_bytes, human_count


def shard_lines(config: PipelineConfig, inputs: JobInputs) -> Iterator[str]:
    """Yield a line for each step that would be divided: its shards, and how many requests each may have under way."""
    for place, splits, files in _divided_steps(config, inputs):
        total = splits.at_once(config)
        if not files:
            yield f"{place}: the files are not known yet; {human_count(total, 'request')} at once in all"
            continue
        sizes = [shard.bytes for shard in divide(files, _count(config, files), in_order=splits.in_order).shards]
        at_once = min(len(sizes), total)
        least = total // at_once
        share = f"{least} or {least + 1} requests" if total % at_once else human_count(least, "request")
        yield (
            f"{place}: {human_count(len(sizes), 'shard')} of {human_bytes(min(sizes))} to {human_bytes(max(sizes))}, "
            f"{at_once} at once with {share} each"
        )


def shard_warnings(config: PipelineConfig, inputs: JobInputs) -> Iterator[str]:
    """Yield what makes the division of a job useless, a sentence each.

    Raises:
        InputError: ``pipeline.shard_deployment`` names no deployment.
        NetworkError: the Prefect API does not answer.
    """
    for place, splits, files in _divided_steps(config, inputs):
        count = _count(config, files)
        stored = sum(size for _, size in files)
        sizes = [shard.bytes for shard in divide(files, count, in_order=splits.in_order).shards]
        if len(sizes) > 1 and min(sizes) < FEW_BYTES:
            few = human_bytes(FEW_BYTES)
            yield f"{place}: a shard would hold less than {few}, and its start costs more than it saves"
        for name, size in files if len(sizes) > 1 else ():
            if size > 2 * stored / count:
                yield f"{place}: {name} has {human_bytes(size)} and is not cut: its shard takes longest"
    if config.pipeline.shard_deployment is not None:
        yield from _idle_pool(config.pipeline.shard_deployment)


def _divided_steps(config: PipelineConfig, inputs: JobInputs) -> Iterator[tuple[str, Splits, list[tuple[str, int]]]]:
    if config.pipeline.shards == 1:
        return
    names = config.pipeline.enabled_steps
    listed = declared(names[0]).planned(CheckContext(config, inputs.step_inputs()))
    for position, step in enumerate(map(declared, names), start=1):
        if (splits := step.splits) is not None:
            first = splits.first([name for name, _ in listed])
            yield f"step {position} {step.name}", splits, [file for file in listed if file[0] not in first]


def _count(config: PipelineConfig, files: list[tuple[str, int]]) -> int:
    return count_shards(config.pipeline.shards, sum(size for _, size in files))


def _idle_pool(name: str) -> Iterator[str]:
    address = configured_api()
    if address is None:
        raise InputError(
            "shard-deployment", "a deployment needs a Prefect server, and none is configured",
            context=f"pipeline.shard_deployment: {name}", hint="set PREFECT_API_URL, or leave the key out",
        )  # fmt: skip
    with PrefectApi(address) as api:
        pool = find_deployment(api, name)["work_pool_name"]
        workers = api.request("POST", f"/work_pools/{pool}/workers/filter", {}) if pool is not None else []
    if pool is not None and not any(worker["status"] == "ONLINE" for worker in workers or ()):
        yield f"pipeline.shard_deployment: no worker of the work pool {pool} is online"
