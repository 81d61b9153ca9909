"""The data each step reads (``4-product.md`` §4, "What a step reads"), the data sent, and the destinations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from config import PipelineConfig
from tasks import declared
from tasks.shared.report import Corrections
from tasks.shared.step import Reads, Source, Step


class Sources:
    """The data in the directory of a job while its steps finish one after the other.

    ``newest`` is the output of the nearest earlier step, ``resources`` the newest output that is not tables.
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
        """Return the data that a step reads now."""
        of = {Reads.NOTHING: None, Reads.LATEST: self.newest, Reads.RESOURCES: self.resources}
        return of[step.reads(self._config)]

    def data_sent_after(self, position: int) -> Source | None:
        """Return the data that are sent after ``position`` as they are; ``None`` if a step changes them before."""
        step = self.delivery(position)
        return self.read_by(step) if step is not None else None

    def delivery(self, position: int) -> Step | None:
        """Return the step after ``position`` that sends the data unchanged; ``None`` if a step changes them before."""
        for step in self._steps[position:]:
            if step.delivers:
                return step
            if step.output is not None:
                return None
        return None

    def asks_before_delivery(self) -> bool:
        """Return whether a person reviews the data that are sent."""
        return any(step.is_wait and self.delivery(at) is not None for at, step in enumerate(self._steps, start=1))

    def readers(self, position: int) -> list[int]:
        """Return the positions of the steps that read the data released at ``position``, up to the next wait for the
        same data.
        """
        found: list[int] = []
        made: list[Step] = []  # by steps before, of that data
        for at, step in enumerate(self._steps[position:], start=position + 1):
            if step.is_wait and not made:
                break
            resources = step.reads(self._config) is Reads.RESOURCES and all(one.tables for one in made)
            if not step.is_wait and (not made or resources):
                found.append(at)
            if step.output is not None:
                made.append(step)
        return found

    def corrections(self, position: int) -> Corrections:
        """Return which corrected files a wait at ``position`` can take."""
        if self.newest is None or not self.newest.tables:
            return Corrections.NDJSON
        leaving = self.data_sent_after(position)
        return Corrections.NOT_SENT if leaving is not None and leaving is not self.newest else Corrections.TABLES


def destinations(config: PipelineConfig, position: int) -> list[tuple[str, str]]:
    """Return name and target of the steps that send data, from the wait at ``position`` (from 1) to the next wait."""
    behind = itertools.takewhile(lambda step: not step.is_wait, map(declared, config.pipeline.enabled_steps[position:]))
    return [(step.name, service.destination) for step in behind for service in step.services(config)]
