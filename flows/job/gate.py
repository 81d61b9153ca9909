"""The validation gate: findings in the data stop the pipeline after the step (document 1, "Pseudonymization, send and
validation behavior"; document 3 §6).

The step itself completes. The gate is looked at whenever the flow comes by, also when the step answers from its stored
result, so that continuing does not pass it: only ``fail_on_error: false`` or corrected data opens it.
"""

from __future__ import annotations

from pathlib import Path

from config import ValidationConfig
from tasks.shared.errors import GateError
from tasks.shared.report import StepReport


def closed(config: ValidationConfig, report: StepReport, directory: Path, position: int) -> GateError | None:
    """Why the pipeline stops behind this validation step; ``None`` when it goes on.

    ``report`` is the step's, ``directory`` the job's.
    """
    details = report.details
    findings: int = details["findings"]
    if not findings or not config.fail_on_error:
        return None
    reports = directory / str(details["reports"])
    return GateError(
        "validation-findings",
        f"validation found {findings:,} errors in {details['resources_with_findings']:,} resources",
        context=str(reports / "summary.csv"),
        hint=f"correct the data and validate again (job run --step {position} --force), or set "
        "services.validation.fail_on_error: false and continue",
    )
