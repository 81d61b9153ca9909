"""How much disk a job needs, estimated before it begins; nothing here is an error of its own."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.shared.import_directory import IMPORT
from tasks.shared.step import CheckContext, Reads, Step

RESERVE = 100_000_000
"""Bytes that must stay free on the disk of the jobs directory besides the data."""


def needed(context: CheckContext, steps: Sequence[Step]) -> int:
    """Bytes that must be free for ``steps``, those that are still to do: what each writes, and ``RESERVE``.

    What the steps left in the job's directory before is there already. An extraction's size is known to nobody before
    it ran, and counts as nothing.
    """
    imports = [step for step in steps if step.reads(context.config) is Reads.NOTHING]
    size = sum(step.space(context, 0) for step in imports) if imports else context.held(IMPORT)
    needed = RESERVE
    for step in steps:
        written = size if step in imports else step.space(context, size)
        needed += max(written - context.held(step.output or step.folders[0]), 0) if written else 0
    return needed
