"""A flattening service, and a job whose data it gets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers import services
from tests.peers.server import ScriptedServer
from tests.tasks.flattening.place import FlatteningPlace


@pytest.fixture
def service() -> Iterator[ScriptedServer]:
    with ScriptedServer(services.flattening) as server:
        yield server


@pytest.fixture
def place(tmp_path: Path) -> FlatteningPlace:
    return FlatteningPlace(tmp_path)
