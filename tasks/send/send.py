"""The send step: which mode runs (document 1, services.send.send_as)."""

from __future__ import annotations

from config import SendMode
from tasks.send import direct
from tasks.shared.errors import InputError, TerminalError
from tasks.shared.step import StepContext, StepResult


def run(context: StepContext) -> StepResult:
    """Send the input the way the configuration says.

    Raises ``TerminalError`` ``mode-not-available`` for modes that this version does not have.
    """
    mode = context.config.services.send.send_as
    if mode is None:
        raise InputError("send-mode", "send: no mode is configured", context="services.send.send_as")
    if mode is SendMode.DIRECT_RESOURCE_LOAD:
        return direct.run(context)
    raise TerminalError(
        "mode-not-available",
        f"send: {mode.value} is not available yet in this version",
        context="services.send.send_as",
        hint=f"{SendMode.DIRECT_RESOURCE_LOAD.value} is available",
    )
