"""The step ``pseudonymizer``, and the check of the anonymization file before a job exists (docs/services.md)."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.pseudonymizer.output import OUTPUT, refuse_leaks
from tasks.pseudonymizer.probe import service
from tasks.pseudonymizer.rules import read_rules
from tasks.pseudonymizer.run import STATE, run
from tasks.shared.errors import GateError, InputError, SluiceError
from tasks.shared.report import StepReport
from tasks.shared.step import CheckContext, GivenInputs, Step, StepContext


def rules_unused(_given: GivenInputs) -> InputError:
    """Return an error rather than a warning, so that data cannot be sent without the given rules unnoticed."""
    return InputError(
        "anonymization-config-unused",
        "--anonymization-config is given, but the step pseudonymizer, which reads it, is not enabled",
        context="pipeline.enabled_steps", hint="enable pseudonymizer, or leave out --anonymization-config",
    )  # fmt: skip


def checks(context: CheckContext) -> Iterator[SluiceError]:
    """Yield the errors of the anonymization file."""
    path = context.config.services.pseudonymizer.anonymization_config
    try:
        if path is not None:
            read_rules(path)
    except SluiceError as error:
        yield error


def warnings(context: CheckContext) -> Iterator[str]:
    """Yield the warnings about the anonymization file."""
    path = context.config.services.pseudonymizer.anonymization_config
    if path is not None and not [*checks(context)]:
        yield from read_rules(path).warnings


def gate(context: StepContext, report: StepReport) -> GateError | None:
    """Return the error if identifying values came back and ``residual_identifiers`` is ``stop``."""
    try:
        refuse_leaks(context.config, report.details.get("tallies", {}).get("leaks", {}), OUTPUT)
    except GateError as closed:
        return closed
    return None


STEP = Step(
    name="pseudonymizer",
    run=run,
    output=OUTPUT,
    folders=(STATE,),
    takes={"anonymization_config": rules_unused},
    services=lambda config: [service(config)],
    checks=checks,
    warnings=warnings,
    space=lambda _context, read: read,  # as much as it reads
    gate=gate,
)
