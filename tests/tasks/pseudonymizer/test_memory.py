"""Memory does not grow with the data (performance.md: 300 MB for the process)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.bench_pseudonymizer import make, measured
from tests.bench.data import one_line
from tests.bench.echo import serving

MOST = 300e6 / (1 << 20)
"""MiB."""


@pytest.fixture
def address() -> Iterator[str]:
    with serving() as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize("requests", [4, 16])
def test_200_mb_of_bundles_and_one_bundle_of_400_mb_take_at_most_300_mb(
    tmp_path: Path, address: str, requests: int
) -> None:
    size = make(tmp_path / "lines", 200, 8)
    lines = measured(address, tmp_path / "lines", tmp_path / "job", requests, True)
    assert lines.read == size
    size = one_line(tmp_path / "large", 400)
    one = measured(address, tmp_path / "large", tmp_path / "job-large", requests, True)
    assert one.read == size
    print(f"{requests} requests: {lines.peak:.0f} MiB for lines, {one.peak:.0f} MiB for one Bundle")
    assert max(lines.peak, one.peak) <= MOST


@pytest.mark.slow
def test_a_bundle_of_40_mb_takes_no_more_than_one_of_400_mb_may(tmp_path: Path, address: str) -> None:
    size = one_line(tmp_path / "large", 40)
    one = measured(address, tmp_path / "large", tmp_path / "job", 4, True)
    assert one.read == size
    assert one.requests == 4  # chunks of 10 MiB
    assert one.peak <= MOST
