"""The step ``send``: which mode runs (document 1, services.send.send_as), and how it is divided among child runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence

from config import PipelineConfig, SendMode
from tasks.send import LEDGER, STATE, checks, direct
from tasks.send.comparison import (
    WITHOUT_RECORD,
    InputComparison,
    compare,
    compare_before_shards,
    forget_comparison,
)
from tasks.send.order import holds_patients
from tasks.send.shared_ids import find_shared_ids, shared_ids_path
from tasks.send.transfer import transfer
from tasks.shared.errors import InputError, storage_errors
from tasks.shared.files.data_directory import CORE, base_name, finished_files, left_alone, left_alone_warning
from tasks.shared.files.kept_answers import FAILED
from tasks.shared.files.ledger import Ledger
from tasks.shared.report import StepReport
from tasks.shared.shards import load_division
from tasks.shared.step import Reads, Splits, Step, StepContext, input_files


def reads(config: PipelineConfig) -> Reads:
    """Return the input: a direct load reads resources, the other modes the files written last."""
    direct = config.services.send.send_as is SendMode.DIRECT_RESOURCE_LOAD
    return Reads.RESOURCES if direct else Reads.LATEST


def run(context: StepContext) -> StepReport:
    """Compare the input with the record, then send it the way the configuration says.

    What in it is no data is named once and stays here.

    Raises what the mode raises.
    """
    mode = context.config.services.send.send_as
    if mode is None:
        raise InputError("send-mode", "send: no mode is configured", context="services.send.send_as")
    compared = compare(context)
    result = _mode(mode)(context, compared)
    if context.part is None:
        forget_comparison(context)
        with storage_errors(context.job_dir):
            shared_ids_path(context).unlink(missing_ok=True)
    notes = (*_left_alone(context), *(() if compared.recorded else (WITHOUT_RECORD,)))
    return result.model_copy(update={"warnings": (*notes, *result.warnings)})


def _mode(mode: SendMode) -> Callable[[StepContext, InputComparison], StepReport]:
    if mode is SendMode.DIRECT_RESOURCE_LOAD:
        return direct.run
    if mode is SendMode.TRANSFER_LOAD:
        return transfer.run
    from tasks.send.s3 import upload  # boto3 takes its time to import; the other modes need not wait for it

    return upload.run


def _left_alone(context: StepContext) -> tuple[str, ...]:
    """Return the files that are not sent; a wait has already named those in its directory."""
    recorded = context.input.recorded
    if recorded is not None and recorded.step == "wait":
        return ()
    return left_alone_warning(context.input_dir, left_alone(context.input_dir))


def divided_files(context: StepContext) -> list[tuple[str, int]]:
    """Return the files that can be sent by child runs, with their stored bytes.

    None if the mode sends them together, or a load has a file that does not begin with the Bundle of a patient. Raises
    what reading raises.
    """
    directory, mode = context.input_dir, context.config.services.send.send_as
    if mode is SendMode.DIRECT_RESOURCE_LOAD:
        files = input_files(context)
        every = [name for name, _ in files]
        others = [directory / name for name in every if name not in core_files(every)]
        if load_division(context.job_dir, context.position) is not None or all(map(holds_patients, others)):
            return files
        context.meter.warn("send: the load is not divided, because not every file holds Bundles of patients", once=True)
        return []
    if mode is not SendMode.S3_UPLOAD:
        return []
    with storage_errors(directory):
        return [(path.relative_to(directory).as_posix(), path.stat().st_size) for path in finished_files(directory)]


def core_files(names: Sequence[str]) -> Collection[str]:
    """Return the file that is sent before all others."""
    return [name for name in names if base_name(name).lower() == CORE]


def requests_at_once(config: PipelineConfig) -> int:
    """Return how many requests may be under way in the whole job."""
    if config.services.send.send_as is SendMode.DIRECT_RESOURCE_LOAD:
        return config.services.send.max_concurrent_requests
    from tasks.send.s3.client import CONNECTIONS  # boto3 again

    return CONNECTIONS


def prepare(context: StepContext) -> None:
    """Compare the whole input with the record before a child run sends a part of it, and find out what of a load none
    of them may send. Raises as ``compare`` does."""
    compared = compare_before_shards(context)
    if context.config.services.send.send_as is SendMode.DIRECT_RESOURCE_LOAD:
        find_shared_ids(context, compared.resource_files())


def adopt(context: StepContext, child: StepContext) -> None:
    """Take over what a child run has sent. Raises ``StorageError``."""
    with Ledger(context.state(STATE) / LEDGER) as ledger:
        ledger.adopt(child.state(STATE) / LEDGER)
    shutil.rmtree(child.state(STATE) / FAILED, ignore_errors=True)  # what was refused is sent again


STEP = Step(
    name="send",
    run=run,
    reads=reads,
    folders=(STATE,),
    services=lambda config: [checks.service(config)],
    space=checks.space,
    splits=Splits(at_once=requests_at_once, adopt=adopt, files=divided_files, first=core_files, prepare=prepare),
)
