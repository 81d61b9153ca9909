"""The step ``send``: which mode runs (document 1, services.send.send_as)."""

from __future__ import annotations

from collections.abc import Callable

from config import PipelineConfig, SendMode
from tasks.send import STATE, checks, direct, transfer
from tasks.send.checks import SentInput, compare
from tasks.shared.errors import InputError
from tasks.shared.files.data_directory import left_alone, left_alone_warning
from tasks.shared.report import StepReport
from tasks.shared.step import Reads, Step, StepContext


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
    return result.model_copy(update={"warnings": (*_left_alone(context), *result.warnings)})


def _mode(mode: SendMode) -> Callable[[StepContext, SentInput], StepReport]:
    if mode is SendMode.DIRECT_RESOURCE_LOAD:
        return direct.run
    if mode is SendMode.TRANSFER_LOAD:
        return transfer.run
    from tasks.send import s3_upload  # boto3 takes its time to import; the other modes need not wait for it

    return s3_upload.run


def _left_alone(context: StepContext) -> tuple[str, ...]:
    """Return the files that are not sent; a wait has already named those in its directory."""
    recorded = context.input.recorded
    if recorded is not None and recorded.step == "wait":
        return ()
    return left_alone_warning(context.input_dir, left_alone(context.input_dir))


STEP = Step(
    name="send",
    run=run,
    reads=reads,
    folders=(STATE,),
    services=lambda config: [checks.service(config)],
    space=checks.space,
)
