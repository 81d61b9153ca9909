"""A way to load a configuration from text, without the process's own environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from config import ConfigError, Finding, LoadedConfig, load_config

SECRETS = ("hunter2", "CANARY")
"""Values that no finding may quote, wherever they stand."""

MINIMAL = "pipeline: {enabled_steps: [local_import]}\n"


@dataclass(frozen=True)
class Loader:
    directory: Path

    def load(self, text: str, *, env: Mapping[str, str] | None = None, overrides: Sequence[str] = ()) -> LoadedConfig:
        path = self.directory / "config.yaml"
        path.write_text(text, encoding="utf-8")
        return load_config(path, overrides=overrides, environ=env or {})

    def errors(
        self, text: str, *, env: Mapping[str, str] | None = None, overrides: Sequence[str] = ()
    ) -> dict[tuple[str, str], Finding]:
        """The errors by reference and key; fails when the configuration loads, or when one of them quotes a secret."""
        with pytest.raises(ConfigError) as caught:
            self.load(text, env=env, overrides=overrides)
        assert not [secret for secret in SECRETS if secret in str(caught.value) + repr(caught.value.findings)]
        return {(f.reference, f.key): f for f in caught.value.findings if f.level == "error"}


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
