"""What the suites against real programs share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.real.hapi_server import Hapi, hapi_running
from tests.real.shared import for_all_workers


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real: talks to a program of other people; skipped when that is not installed")


@pytest.fixture(scope="session")
def session_directory(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A directory that all workers of this session see."""
    own = tmp_path_factory.getbasetemp()
    return own if worker_id == "master" else own.parent


@pytest.fixture(scope="session")
def hapi(session_directory: Path) -> Iterator[Hapi]:
    """HAPI's JPA server. All tests share one, and each uses ids of its own."""
    with (
        for_all_workers(session_directory / "hapi", hapi_running) as url,
        httpx.Client(trust_env=False, timeout=60) as http,
    ):
        yield Hapi(url, http)
