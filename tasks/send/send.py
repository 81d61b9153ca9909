"""The send step: which mode runs (document 1, services.send.send_as)."""

from __future__ import annotations

from dataclasses import replace

from config import SendMode
from tasks.send import direct
from tasks.send.transfer import transfer
from tasks.shared.data_directory import left_alone, left_alone_warning
from tasks.shared.errors import InputError
from tasks.shared.step import StepContext, StepResult


def run(context: StepContext) -> StepResult:
    """Send the input the way the configuration says; what in it is no data is named once and stays here.

    Raises what the mode raises.
    """
    notes = left_alone_warning(context.input_dir, left_alone(context.input_dir))
    result = _send(context)
    return replace(result, warnings=(*notes, *result.warnings))


def _send(context: StepContext) -> StepResult:
    mode = context.config.services.send.send_as
    if mode is None:
        raise InputError("send-mode", "send: no mode is configured", context="services.send.send_as")
    if mode is SendMode.DIRECT_RESOURCE_LOAD:
        return direct.run(context)
    if mode is SendMode.TRANSFER_LOAD:
        return transfer.run(context)
    from tasks.send.s3 import upload  # boto3 takes its time to import; the other modes need not wait for it

    return upload.run(context)
