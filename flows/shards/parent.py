"""The parent of a divided step: start the children, follow them, and put their work together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from flows.job.job import RunningJob
from flows.job.running.lock import is_held
from flows.shards.child import digest_of
from flows.shards.children import Children, ChildState, LocalChildren, PoolChildren, find_deployment
from flows.shards.files import (
    ORDER,
    PROGRESS,
    RECEIPT,
    ShardOrder,
    ShardProgress,
    ShardReceipt,
    ShardSource,
    ledger_digests,
    read_state,
    write_state,
)
from tasks.shared.errors import SluiceError, StorageError, TransientError, storage_errors
from tasks.shared.files.intake import FileFacts, FileLedger
from tasks.shared.log import logger
from tasks.shared.meter import Meter
from tasks.shared.report import ShardCounts, StepReport
from tasks.shared.shards import (
    Division,
    Shard,
    begin_divided,
    finish_divided,
    load_division,
    plan_division,
    refuse_other_files,
    save_division,
)
from tasks.shared.step import Splits, Step, StepContext, shard_directory

LOOK_EVERY: Final = 0.25
"""Seconds between two looks at the children."""

HELD_EVERY: Final = 3.0
"""Seconds between two looks at the lock of a shard whose child has ended."""

COUNT_EVERY: Final = 1.0
"""Seconds between two readings of what the children have done."""


def run_of(job: RunningJob, step: Step, context: StepContext) -> Callable[[StepContext], StepReport]:
    """Return the function that does a step: its own, or one that runs it in shards.

    A step that has not begun is divided when that function is called: what an import has to fetch is known only then.

    Raises:
        StorageError: the division of a step that has begun cannot be read, or was changed.
    """
    if step.splits is None:
        return step.run
    division = load_division(context.job_dir, context.position)
    folders = step.writes(job.config.pipeline.enabled_steps, context.position)
    begun = any((context.job_dir / folder).exists() for folder in folders)
    if division is None and (begun or job.config.pipeline.shards == 1):
        return step.run
    splits, shards = step.splits, job.config.pipeline.shards

    def run(context: StepContext) -> StepReport:
        found = division or plan_division(splits, context, shards)
        if found is None:
            return step.run(context)
        if division is None:
            save_division(found, context.job_dir, context.position)
        return _DividedRun(job, step, splits, found)(context)

    return run


@dataclass
class _ShardState:
    """One shard, as the parent knows it."""

    shard: Shard
    directory: Path
    attempt: int = 0
    started: int = 0
    slot: int | None = None
    failed: bool = False
    receipt: ShardReceipt | None = None
    """That of a child that has done its shard."""
    look_at: float = 0.0
    counted: ShardProgress = field(default_factory=ShardProgress)


class _DividedRun:
    """Runs a step in shards, in the place of the step's own function."""

    def __init__(self, job: RunningJob, step: Step, splits: Splits, division: Division) -> None:
        self._job = job
        self._step = step
        self._splits = splits
        self._division = division
        self._shown: ShardCounts | None = None

    def __call__(self, context: StepContext) -> StepReport:
        """Run the step. Raises the errors of its function, and those of ``_run_children``."""
        self._shards = [
            _ShardState(shard, shard_directory(context.job_dir, context.position, shard.index))
            for shard in self._division.shards
        ]
        begin_divided(self._step, self._splits, context, self._division)
        for one in self._shards:
            self._take_up(one, context.meter)
        self._run_children(context)
        self._record_outputs(context)
        report = finish_divided(self._step, self._splits, context, self._division)
        return report.model_copy(update={"shards": self._counts()})

    def _take_up(self, one: _ShardState, meter: Meter) -> None:
        """Learn how far an earlier run of the job came with a shard."""
        order = read_state(one.directory / ORDER, ShardOrder)
        one.attempt = order.attempt if order is not None and order.sha256 == one.shard.sha256 else 0
        receipt = self._receipt(one)
        if receipt is not None and receipt.error is None:
            one.receipt = receipt
        _count(one, _progress(one), meter, earlier=True)

    def _run_children(self, context: StepContext) -> None:
        """Run all shards that are not done. Raises the error of the first child that ends with one."""
        left = [one for one in self._shards if one.receipt is None]
        left.sort(key=lambda one: not _is_held(one, context.job_dir))  # children of an earlier run count, too
        if not left:
            return
        children = self._children(context)
        total = self._splits.at_once(context.config)
        width = min(len(left), children.most, total)
        shares = [total // width + (slot < total % width) for slot in range(width)]
        free = list(range(width))
        next_count = 0.0
        try:
            while left or any(one.slot is not None for one in self._shards):
                context.stop.check()
                while free and left:
                    one, slot = left.pop(0), free.pop(0)
                    one.slot = slot
                    self._start(one, children, context, shares[slot])
                if time.monotonic() >= next_count:
                    next_count = time.monotonic() + COUNT_EVERY
                    self._follow(context)
                states = children.states()
                for one in self._shards:
                    if one.slot is not None and self._ended(one, states.get(one.shard.index), context, children):
                        free.append(one.slot)
                        one.slot = None
                        if one.receipt is None:
                            left.append(one)
                if children.unstarted():
                    logger.warning("no worker starts the shards: this process runs them, one after the other")
                    children.stop()
                    children = LocalChildren(context.job_dir)
                    left += [one for one in self._shards if one.slot is not None]
                    for one in self._shards:
                        one.slot = None
                    shares, free = [total], [0]
                context.stop.sleep(LOOK_EVERY)
        except BaseException:
            children.stop()
            raise
        self._follow(context)

    def _children(self, context: StepContext) -> Children:
        """Return the children: runs of a deployment if one is configured or runs this job, else local processes."""
        api, name = self._job.api, self._job.config.pipeline.shard_deployment
        if name is not None:
            return PoolChildren(api, str(find_deployment(api, name)["id"]), context)
        if self._job.deployed and (run := api.read_run(self._job.id)) is not None:
            return PoolChildren(api, str(run["deployment_id"]), context)
        return LocalChildren(context.job_dir)

    def _start(self, one: _ShardState, children: Children, context: StepContext, requests: int) -> None:
        """Write the order of the next attempt and start its child, unless an earlier one still has the shard."""
        if _is_held(one, context.job_dir):
            logger.info("shard %d is being run by an earlier attempt", one.shard.index)
            return
        if one.started >= context.config.retry.max_attempts:
            raise TransientError(
                "shard-crashed", f"the process of shard {one.shard.index} ended {one.started} times before it was done",
                context=str(one.directory), hint="see job.log for its last lines, then continue the job",
            )  # fmt: skip
        refuse_other_files(self._splits, context, self._division)
        one.attempt, one.started = max(one.attempt, children.attempts(one.shard.index)) + 1, one.started + 1
        source = context.source
        order = ShardOrder(
            context.job_id, context.position, one.shard.index, one.attempt, requests, one.shard.sha256,
            digest_of(self._job.loaded), self._job.inputs.parameters(),
            ShardSource(source.path.relative_to(context.job_dir).as_posix(), source.tables) if source else None,
            str(context.given.crtdl) if context.given.crtdl is not None else None, context.doubts,
        )  # fmt: skip
        write_state(one.directory / ORDER, order)
        context.stop.before_request()
        children.start(order)

    def _ended(self, one: _ShardState, state: ChildState | None, context: StepContext, children: Children) -> bool:
        """Return whether a child has ended, with a receipt or without. Raises its error."""
        if state in {ChildState.WAITING, ChildState.RUNNING}:
            return False
        if time.monotonic() < one.look_at:
            return False
        one.look_at = time.monotonic() + HELD_EVERY
        receipt = self._receipt(one)
        if receipt is None and _is_held(one, context.job_dir):
            return False  # by an attempt of an earlier run of the job, on another machine
        error = children.error(one.shard.index)
        if receipt is None and isinstance(error, StorageError):
            one.slot, one.failed = None, True
            raise error
        if receipt is None:
            logger.warning("shard %d ended without a receipt, attempt %d", one.shard.index, one.attempt)
            return True
        if receipt.error is not None:
            one.slot, one.failed = None, True
            self._follow(context)
            refuse_other_files(self._splits, context, self._division)  # which is why a child may fail
            raise receipt.error.error()
        one.receipt = receipt
        return True

    def _receipt(self, one: _ShardState) -> ShardReceipt | None:
        """Return the receipt of the last attempt, if it is there.

        Raises:
            StorageError: it is the receipt of something else, or a ledger is not as the child left it.
        """
        receipt = read_state(one.directory / RECEIPT, ShardReceipt)
        if receipt is None or (receipt.error is not None and receipt.attempt < one.attempt):
            return None
        ours = (self._job.id, one.shard.index, one.shard.sha256)
        ledgers = ledger_digests(one.directory) or receipt.ledgers  # without any, the step has taken them over
        if (receipt.job, receipt.shard, receipt.sha256) != ours or receipt.ledgers != ledgers:
            raise _changed(one.directory / RECEIPT, "the receipt of a shard does not agree with its files")
        return receipt

    def _follow(self, context: StepContext) -> None:
        """Count what the children have done since the last look, and show it."""
        for one in self._shards:
            _count(one, _progress(one), context.meter)
        counts = self._counts()
        if counts != self._shown:
            self._shown = counts
            context.meter.set_status(f"{counts.total} shards, {counts.running} running, {counts.done} done")
            step = self._job.steps[context.position].model_copy(update={"shards": counts})
            self._job.steps[context.position] = step
            self._job.writer.step(step)

    def _counts(self) -> ShardCounts:
        return ShardCounts(
            total=len(self._shards),
            done=sum(one.receipt is not None for one in self._shards),
            running=sum(one.slot is not None for one in self._shards),
            failed=sum(one.failed for one in self._shards),
        )

    def _record_outputs(self, context: StepContext) -> None:
        """Record the hashes of the outputs as the children found them, for the inventory of the step.

        Raises:
            StorageError: an output has another size than its child left (``shard-file-damaged``).
        """
        if context.source is None:
            return  # an import hashes what it stores
        hashes = FileLedger(context.job_dir / ".results" / f"{context.position}-files.ndjson")
        for one in self._shards:
            for output in one.receipt.outputs if one.receipt is not None else ():
                path = context.job_dir / str(self._step.output) / output.name
                with storage_errors(path):
                    size = path.stat().st_size
                if size != output.size:
                    raise _changed(path, "an output file of a shard has changed")
                known = hashes.get(path)
                if known is None or known.sha256 != output.sha256:
                    hashes.add(FileFacts(output.name, 0, 0, output.size, output.sha256))


def _is_held(one: _ShardState, job_dir: Path) -> bool:
    """Return whether a process has the shard, or may have it, because the Prefect API does not say."""
    try:
        return is_held(one.directory, job=job_dir)
    except SluiceError:
        return True


def _progress(one: _ShardState) -> ShardProgress | None:
    return one.receipt.progress if one.receipt is not None else read_state(one.directory / PROGRESS, ShardProgress)


def _count(one: _ShardState, found: ShardProgress | None, meter: Meter, *, earlier: bool = False) -> None:
    """Count what was done since the last look; ``earlier``: by an earlier run of the job."""
    before = one.counted
    if found is None or found == before:
        return
    again = before if found.attempt == before.attempt else ShardProgress()
    meter.add(files=max(0, found.files - before.files), resources=max(0, found.resources - before.resources))
    meter.advance(
        max(0.0, found.stored - before.stored), max(0, found.content - before.content), earlier=earlier
    )  # fmt: skip
    if not earlier:
        times = {bucket: count - again.times.get(bucket, 0) for bucket, count in found.times.items()}
        meter.count_requests(found.repeated - again.repeated, times)
    for warning in found.warnings:
        meter.warn(warning, once=True)
    one.counted = msgspec.structs.replace(
        found, files=max(found.files, before.files), resources=max(found.resources, before.resources),
        content=max(found.content, before.content), stored=max(found.stored, before.stored),
    )  # fmt: skip


def _changed(path: Path, message: str) -> StorageError:
    return StorageError(
        "shard-file-damaged", message, context=str(path),
        hint="remove the file and continue the job: the shard goes on where its ledger ends",
    )  # fmt: skip
