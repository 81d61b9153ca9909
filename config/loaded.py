"""What loading gives: the configuration, its warnings, and where each value came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.findings import Finding
from config.keys import describe_keys, show
from config.model import PipelineConfig

MASK = "********"


@dataclass(frozen=True)
class Effective:
    """One key as it is in force: its value as text (secrets masked, empty when not set) and where it came from."""

    key: str
    value: str
    source: str


@dataclass(frozen=True)
class LoadedConfig:
    """A valid configuration, the file it was read from, and what is worth a warning."""

    config: PipelineConfig
    path: Path
    warnings: tuple[Finding, ...]
    sources: Mapping[str, str] = field(repr=False)

    def effective(self) -> list[Effective]:
        """Every key, in the order of the documentation."""
        return [
            Effective(
                info.key,
                _shown(self.config, info.key, secret=info.secret),
                self.sources.get(info.key, "default"),
            )
            for info in describe_keys()
        ]


def _shown(config: PipelineConfig, key: str, *, secret: bool) -> str:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return MASK if secret and value is not None else show(value)
