"""Memory does not grow with the data (performance.md: 300 MB for the process)."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.bench_pseudonymizer import make, make_large, measured, stub

MOST = 300e6 / (1 << 20)
"""MiB."""


@pytest.fixture
def address() -> Iterator[str]:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=stub, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield f"http://127.0.0.1:{mine.recv()}"
    finally:
        process.terminate()
        process.join()
        process.close()
        mine.close()


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize("requests", [4, 16])
def test_200_mb_of_bundles_and_one_bundle_of_400_mb_take_at_most_300_mb(
    tmp_path: Path, address: str, requests: int
) -> None:
    size = make(tmp_path / "lines", 200, 8, compressed=False)
    _, read, _, _, peak = measured(address, tmp_path / "lines", tmp_path / "job", requests, True)
    assert read == size
    large = make_large(tmp_path / "large", 400)
    _, read, _, _, peak_large = measured(address, tmp_path / "large", tmp_path / "job-large", requests, True)
    assert read == large
    print(f"{requests} requests: {peak:.0f} MiB for lines, {peak_large:.0f} MiB for one Bundle")
    assert max(peak, peak_large) <= MOST


def test_a_bundle_of_40_mb_takes_no_more_than_one_of_400_mb_may(tmp_path: Path, address: str) -> None:
    size = make_large(tmp_path / "large", 40)
    _, read, requests, _, peak = measured(address, tmp_path / "large", tmp_path / "job", 4, True)
    assert read == size
    assert requests == 1 + 4  # the probe, and chunks of 10 MiB
    assert peak <= MOST
