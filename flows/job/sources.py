"""The data that each step reads (docs/steps.md)."""

from __future__ import annotations

from collections.abc import Sequence

from config import PipelineConfig
from tasks import declared
from tasks.shared.step import Reads, Source, Step


class Sources:
    """The data in the directory of a job while its steps finish one after the other.

    ``newest`` is the output of the last finished step that has one, ``resources`` the newest one that is not tables.
    """

    def __init__(self, steps: Sequence[str], config: PipelineConfig) -> None:
        self._steps = [declared(name) for name in steps]
        self._config = config
        self.newest: Source | None = None
        self.resources: Source | None = None

    def wrote(self, source: Source) -> None:
        """Record the output of a step."""
        self.newest = source
        self.resources = self.resources if source.tables else source

    def read_by(self, step: Step) -> Source | None:
        """Return the data that a step reads; ``None`` if it reads none."""
        of = {Reads.NOTHING: None, Reads.LATEST: self.newest, Reads.RESOURCES: self.resources}
        return of[step.reads(self._config)]

    def delivery(self, position: int) -> Step | None:
        """Return the step after ``position`` that sends the data unchanged; ``None`` if a step changes them before."""
        for step in self._steps[position:]:
            if step.delivers:
                return step
            if step.output is not None:
                return None
        return None

    def at_wait(self, position: int) -> Source:
        """Return the data that a wait covers: those that a later step sends unchanged, else the newest output."""
        step = self.delivery(position)
        found = (self.read_by(step) if step is not None else None) or self.newest
        if found is None:
            raise ValueError(f"a wait at step {position} has nothing before it")
        return found

    def passed(self, before: Source, after: Source) -> None:
        """Replace the data that a wait covered with the approved ones, which may be corrected files."""
        self.newest = after if self.newest is before else self.newest
        self.resources = after if self.resources is before else self.resources
