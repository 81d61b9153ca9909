"""Where data goes after a ``wait``: the services of the steps behind it, as a person who decides is told them."""

from __future__ import annotations

import itertools

from config import PipelineConfig
from tasks import declared


def destinations(config: PipelineConfig, position: int) -> list[tuple[str, str]]:
    """The steps behind the wait at ``position`` (from 1) up to the next wait that send data somewhere, and where to."""
    behind = itertools.takewhile(lambda step: not step.asks, map(declared, config.pipeline.enabled_steps[position:]))
    return [(step.name, service.destination) for step in behind for service in step.services(config)]
