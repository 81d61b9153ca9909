"""A way to load a configuration from text, without the process's own environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from config import ConfigError, Finding, LoadedConfig, load_config
from config.models import PipelineConfig

SECRETS = ("hunter2", "CANARY")
"""Values that no finding may quote, wherever they stand."""

MINIMAL = "pipeline: {enabled_steps: [local_import]}\n"


def value(config: PipelineConfig, key: str) -> Any:
    """Return the value of a dotted key."""
    found: Any = config
    for name in key.split("."):
        found = getattr(found, name)
    return found


def written(key: str, text: str) -> str:
    """Return a file that gives one key and the minimal step list."""
    names = key.split(".")
    block = "\n".join(f"{'  ' * depth}{name}:" for depth, name in enumerate(names)) + f" {text}\n"
    if names[0] == "pipeline":
        return block + ("" if names[1] == "enabled_steps" else "  enabled_steps: [local_import]\n")
    return block + MINIMAL


@dataclass(frozen=True)
class Loader:
    directory: Path

    @property
    def path(self) -> Path:
        return self.directory / "config.yaml"

    def load(self, text: str, *, env: Mapping[str, str] | None = None, overrides: Sequence[str] = ()) -> LoadedConfig:
        self.path.write_text(text, encoding="utf-8")
        return load_config(self.path, overrides=overrides, environ=env or {})

    def errors(
        self, text: str, *, env: Mapping[str, str] | None = None, overrides: Sequence[str] = ()
    ) -> dict[tuple[str, str], Finding]:
        """The errors by reference and key; fails when the configuration loads, or when one of them quotes a secret."""
        with pytest.raises(ConfigError) as caught:
            self.load(text, env=env, overrides=overrides)
        assert not [secret for secret in SECRETS if secret in str(caught.value) + repr(caught.value.findings)]
        found = [(one.reference, one.key) for one in caught.value.findings]
        assert len(found) == len(set(found))
        return {(one.reference, one.key): one for one in caught.value.findings if one.level == "error"}


Load = Callable[..., LoadedConfig]
Errors = Callable[..., dict[tuple[str, str], Finding]]


@pytest.fixture
def loader(tmp_path: Path) -> Loader:
    return Loader(tmp_path)


@pytest.fixture
def load(loader: Loader) -> Callable[..., LoadedConfig]:
    return loader.load


@pytest.fixture
def errors(loader: Loader) -> Callable[..., dict[tuple[str, str], Finding]]:
    return loader.errors
