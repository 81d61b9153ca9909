"""The packages of the steps. ``config/steps.py`` lists the steps; each declares itself in ``tasks/<name>/step.py``.

Importing this package imports no step and no Prefect.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.shared.step import Step


def declared(name: str) -> Step:
    """Return the declaration of a step, ``STEP`` of ``tasks/<name>/step.py``. Imports its package, but not Prefect."""
    step: Step = importlib.import_module(f"tasks.{name}.step").STEP
    return step
