"""A flattening service, and a job whose data it gets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.flattening import FakeFlattening, FlatteningJob, serving


@pytest.fixture
def service() -> Iterator[FakeFlattening]:
    with serving() as fake:
        yield fake


@pytest.fixture
def job(tmp_path: Path) -> FlatteningJob:
    return FlatteningJob(tmp_path / "job")
