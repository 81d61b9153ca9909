"""Parts: groups of the files of a step, each processed by a process of its own, perhaps on another machine.

Whoever finishes a file leaves its record, so parts need not be merged: the step sums up the records.
``flows/job/parts.py`` starts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tasks.shared.errors import TransientError
from tasks.shared.file_work import FileWork
from tasks.shared.files.data_directory import CORE
from tasks.shared.step import Part, StepContext

SEEN_WITHIN = 90
"""Seconds to wait for files of other machines: NFS caches the content of a directory for up to a minute."""


def groups(sizes: Mapping[str, int], parts: int) -> list[list[str]]:
    """Return at most ``parts`` groups of about the same size; ``sizes`` is base name → bytes."""
    found: list[list[str]] = [[] for _ in range(parts)]
    for base in sorted(sizes, key=lambda base: (-sizes[base], base)):
        min(found, key=lambda group: sum(sizes[one] + 1 for one in group)).append(base)
    return [group for group in found if group]


def do_in_parts(context: StepContext, work: FileWork, files: Mapping[str, Path], proof: str = "") -> list[str]:
    """Have unfinished ``files`` (base name → path) processed in parts, ``core`` first; return those left over.

    ``proof`` is a digest that the parts need for their terms. Raises the error of a part.
    """
    if context.divide is None or not files:
        return [*files]
    core = [[base] for base in files if base.lower() == CORE]
    others = {base: path.stat().st_size for base, path in files.items() if base.lower() != CORE}
    rounds = [found for found in (core, groups(others, context.config.pipeline.parts)) if found]
    context.divide(
        context,
        [[Part(tuple(one), proof, number, len(found)) for number, one in enumerate(found, 1)] for found in rounds],
    )
    for _ in range(SEEN_WITHIN):
        missing = work.take_over(files)
        if not missing:
            return []
        context.stop.sleep(1)
    raise TransientError(
        "parts-missing", f"{context.name}: the workers left no usable record of some files", context=missing[0],
        hint="give all machines the same jobs_dir, configuration and variables, then continue the job",
    )  # fmt: skip
