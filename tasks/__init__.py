"""The steps of document 1, "pipeline", in the order of its table: name → where its declaration is.

Importing this package imports no step and no Prefect.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.shared.step import Step

STEPS: dict[str, str] = {
    name: f"tasks.{name}.step"
    for name in (
        "extractor", "local_import", "http_import", "pseudonymizer", "wait", "validation", "flattening", "send",
    )
}  # fmt: skip


def declared(name: str) -> Step:
    """What a step says of itself, ``STEP`` of its module. Imports its package, but not Prefect."""
    step: Step = importlib.import_module(STEPS[name]).STEP
    return step
