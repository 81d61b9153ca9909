"""The step ``send``: which mode runs (docs/services.md)."""

from __future__ import annotations

from config import PipelineConfig, SendMode
from tasks.send import STATE, checks, direct, transfer
from tasks.shared.report import StepReport
from tasks.shared.step import Reads, Step, StepContext


def reads(config: PipelineConfig) -> Reads:
    """Return the input: a direct load reads resources, the other modes the files written last."""
    direct = config.services.send.send_as is SendMode.DIRECT_RESOURCE_LOAD
    return Reads.RESOURCES if direct else Reads.LATEST


def run(context: StepContext) -> StepReport:
    """Compare the input with the record, then send it the way the configuration says. Raises what the mode raises."""
    compared = checks.compare(context)
    match context.config.services.send.send_as:
        case SendMode.DIRECT_RESOURCE_LOAD:
            return direct.run(context, compared)
        case SendMode.TRANSFER_LOAD:
            return transfer.run(context, compared)
    from tasks.send import s3_upload  # botocore takes its time to import; the other modes need not wait for it

    return s3_upload.run(context, compared)


STEP = Step(
    name="send",
    run=run,
    reads=reads,
    folders=(STATE,),
    services=lambda config: [checks.service(config)],
    space=checks.space,
)
