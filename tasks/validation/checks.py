"""Where the validation service is, and that it answers."""

from __future__ import annotations

from config import PipelineConfig
from tasks.shared.service import Service
from tasks.validation.probe import PROBE


def service(config: PipelineConfig) -> Service:
    """``services.validation``: it has no credentials, and its URL is the one that is asked."""
    return Service("validation", config.services.validation.url, probe=PROBE)
