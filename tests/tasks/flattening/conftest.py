"""A flattening service, and a job whose data it gets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.flattening import FakeService, Job, serving


@pytest.fixture
def service() -> Iterator[FakeService]:
    with serving() as fake:
        yield fake


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "job")
