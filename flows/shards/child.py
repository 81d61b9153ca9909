"""The child: run a step's function on the files of one shard, and leave a receipt.

``python -m flows.shards.child DIRECTORY`` is a child of this machine; a run of a deployment calls ``run_in_pool``. Both
do what ``order.json`` in the shard's directory says, under the lock of that directory: two processes never work on one
shard, and a machine that was taken for dead ends before its next request, as for jobs.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from config import ConfigError, LoadedConfig
from flows.job.inputs import JobInputs, config_command, config_error, job_command
from flows.job.running.lock import JobLock
from flows.reports.job_log import job_log
from flows.shards.files import (
    ORDER,
    PROGRESS,
    RECEIPT,
    ShardError,
    ShardOrder,
    ShardOutput,
    ShardProgress,
    ShardReceipt,
    ledger_digests,
    read_state,
    write_state,
)
from flows.signals import end_with_supervisor, exit_code_of, signals
from tasks import declared
from tasks.shared.blanked import SECRETS
from tasks.shared.errors import InputError, SluiceError, Stopped, internal_error, storage_errors
from tasks.shared.files.data_directory import base_name
from tasks.shared.files.out_file import PART
from tasks.shared.files.private_file import open_private
from tasks.shared.log import logger
from tasks.shared.meter import Meter
from tasks.shared.report import StepReport
from tasks.shared.shards import Shard, load_division, shard_context
from tasks.shared.step import Source, StepContext
from tasks.shared.stop import Stop
from tasks.shared.units import human_count

PROGRESS_EVERY: Final = 1.0
"""Seconds between two writings of the progress."""


def digest_of(loaded: LoadedConfig) -> str:
    """Return the SHA-256 (hex) of a configuration in force, without its secrets."""
    return hashlib.sha256(repr(loaded.config).encode()).hexdigest()


class _ShardRun:
    """One attempt of a child at its shard."""

    def __init__(self, directory: Path, stop: Stop) -> None:
        self.directory = directory
        self.job_dir = directory.parents[2]
        found = read_state(directory / ORDER, ShardOrder)
        if found is None or directory != self.job_dir / ".results" / str(found.position) / str(found.shard):
            raise InputError("shard-unknown", "there is no order for this shard", context=str(directory))
        self.order = found
        self.shard = self._divided(found)
        self.meter = Meter()
        self._stop = stop
        self._lock = threading.Lock()

    def _divided(self, order: ShardOrder) -> Shard:
        division = load_division(self.job_dir, order.position)
        for shard in division.shards if division is not None else ():
            if shard.index == order.shard and shard.sha256 == order.sha256:
                return shard
        raise InputError("shard-unknown", "the order is not one for this division", context=str(self.directory))

    def run(self) -> ShardReceipt:
        """Run the step's function. Return its receipt, also for an error. Raises ``Stopped``."""
        try:
            context = self._context()
            with self._writing_progress():
                report = declared(context.name).run(context)
            logger.info("complete: %s", human_count(len(self.shard.files), "file"))
            return self._receipt(report=report.result(), outputs=tuple(self._outputs(context, report)))
        except Stopped as reason:
            logger.info("stopped: %s", reason)
            raise
        except Exception as error:  # noqa: BLE001 - the seam where defects become reports
            known = error if isinstance(error, SluiceError) else internal_error(error)
            logger.error("%s", known.render())
            return self._receipt(error=ShardError.of(known))

    def _receipt(self, **end: object) -> ShardReceipt:
        order = self.order
        return ShardReceipt(
            order.job, order.position, order.shard, order.attempt, order.sha256, self.progress(),
            ledgers=ledger_digests(self.directory), **end,  # type: ignore[arg-type]
        )  # fmt: skip

    def _context(self) -> StepContext:
        order = self.order
        inputs = JobInputs.of(order.inputs)
        try:
            loaded = inputs.load()
        except ConfigError as error:
            raise config_error(error) from None
        if digest_of(loaded) != order.config:
            raise InputError(
                "shard-config-changed", "the configuration is not that of the job's process", context=inputs.config,
                hint="continue the job, and do not change the file while it runs; a worker on another machine must "
                "read the same configuration and environment",
            )  # fmt: skip
        config = loaded.config
        SECRETS.config(config)
        about = partial(config_command, inputs)
        source = order.source
        context = StepContext(
            config=config,
            job_id=order.job,
            job_dir=self.job_dir,
            position=order.position,
            name=config.pipeline.enabled_steps[order.position - 1],
            given=replace(inputs.step_inputs(), crtdl=Path(order.crtdl) if order.crtdl is not None else None),
            given_crtdl=inputs.step_inputs().crtdl,
            source=Source(self.job_dir / source.path, tables=source.tables) if source is not None else None,
            doubts=order.doubts,
            meter=self.meter,
            stop=self._stop,
            command=about,
            again=lambda position: job_command(
                inputs, config, self.job_dir, "job run", "--step", str(position), "--force"
            ),
        )
        return shard_context(context, self.shard, order.requests)

    def _outputs(self, context: StepContext, report: StepReport) -> Iterator[ShardOutput]:
        """Yield the output files that were made of the files of this shard, hashed."""
        if report.output is None:
            return
        bases = {base_name(file.name) for file in self.shard.files}
        folder = context.job_dir / report.output
        for path in sorted(folder.iterdir()):  # those of other shards may vanish at any moment
            if base_name(path.name) in bases and path.suffix != PART:
                with storage_errors(path), open_private(path) as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    yield ShardOutput(path.name, os.fstat(file.fileno()).st_size, digest)

    def progress(self) -> ShardProgress:
        """Return what has been done so far."""
        now, (repeated, times) = self.meter.snapshot(), self.meter.requests_made()
        stored = (now.fraction or 0.0) * (now.bytes_total or 0)
        return ShardProgress(
            self.order.attempt, now.files, now.resources, now.bytes, stored, repeated, times, now.warnings
        )  # fmt: skip

    @contextmanager
    def _writing_progress(self) -> Iterator[None]:
        """Write the progress while the step works."""
        over = threading.Event()

        def tell() -> None:
            try:
                while not over.wait(PROGRESS_EVERY):
                    write_state(self.directory / PROGRESS, self.progress())
            except SluiceError as error:
                logger.warning("the progress is not written any more: %s", error.message)

        thread = threading.Thread(target=tell, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def run_shard(directory: Path, stop: Stop) -> ShardReceipt:
    """Run the shard whose directory this is, and write its receipt.

    Raises:
        JobBusyError: another process has the shard.
        InputError: the directory has no order for a child.
        StorageError: the receipt cannot be written.
        Stopped: a stop was requested.
    """
    with ExitStack() as stack:
        run = _ShardRun(directory, stop)
        order = run.order
        lock = JobLock(directory, job=run.job_dir, bridges=True)
        stack.enter_context(job_log(run.job_dir / "job.log", who=f"step {order.position} shard {order.shard}: "))
        stack.enter_context(lock)
        stop.fence = lock.fence
        known = read_state(directory / RECEIPT, ShardReceipt)
        if known is not None and known.attempt >= order.attempt:
            return known  # the same order a second time
        files = human_count(len(run.shard.files), "file")
        logger.info("attempt %d runs in process %d: %s", order.attempt, os.getpid(), files)
        receipt = run.run()
        stop.before_request()  # the last thing that only the holder of the lock may do
        write_state(directory / RECEIPT, receipt)
        return receipt


def main(directory: str) -> int:
    """Run a shard as a child of this machine. Return the exit code: 0 with a receipt, 4 if another process has it.

    An error without a receipt, because the disk is full for example, goes to the parent on standard output.
    """
    end_with_supervisor()
    os.umask(0o077)
    stop = Stop()
    signals.install()
    with signals.stopping(stop, lambda name: os._exit(exit_code_of(name))):
        try:
            run_shard(Path(directory), stop)
        except Stopped as reason:
            return exit_code_of(str(reason))
        except SluiceError as error:
            sys.stdout.buffer.write(msgspec.json.encode(ShardError.of(error)))
            return error.exit_code
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1])
    signals.fix_exit_code(code)
    sys.exit(code)
