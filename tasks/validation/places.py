"""Where a validation step keeps its reports."""

from __future__ import annotations

from collections.abc import Sequence


def directory_name(steps: Sequence[str], position: int) -> str:
    """The directory of the validation step at ``position`` (from 1) of ``steps``, relative to the job directory."""
    return f"validation-{position}" if "validation" in steps[: position - 1] else "validation"
