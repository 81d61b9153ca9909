"""The step ``validation``, and its gate: findings in the data stop the pipeline after the step (docs/services.md).

The step itself completes. Continuing does not pass the gate: only ``fail_on_error: false`` or corrected data opens it.
"""

from __future__ import annotations

from tasks.shared.errors import GateError
from tasks.shared.report import StepReport
from tasks.shared.step import Step, StepContext
from tasks.shared.units import human_count
from tasks.validation.run import REPORTS, run
from tasks.validation.service import service


def gate(context: StepContext, report: StepReport) -> GateError | None:
    """Return the error that stops the pipeline after this validation step, if the report requires it."""
    details = report.details
    findings: int = details["findings"]
    if not findings or not context.config.services.validation.fail_on_error:
        return None
    reports = context.job_dir / str(details["reports"])
    return GateError(
        "validation-findings",
        f"validation found {human_count(findings, 'error')} in "
        + human_count(details["resources_with_findings"], "resource"),
        context=str(reports / "summary.csv"),
        hint=f"correct the data and validate again ({context.again(context.position)}), or set "
        "services.validation.fail_on_error: false and continue",
    )


STEP = Step(
    name="validation",
    run=run,
    folders=(REPORTS,),
    services=lambda config: [service(config)],
    gate=gate,
)
