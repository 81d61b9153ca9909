"""Memory follows ``batch_size_mb``, not the data (document 3 §5; performance.md: 300 MB for the process)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.bench_flattening import make, service
from tests.bench.echo import serving
from tests.peers.job import printed

MOST = 300
"""MB."""

# A process of its own, whose peak memory is its own: port, input, job directory, batch_size_mb.
CLIENT = """
import json, sys
from pathlib import Path
from tests.bench.bench_flattening import measured, peak

port, source, job, batch = sys.argv[1:]
_, result, _ = measured(int(port), Path(source), Path(job), int(batch))
print(json.dumps({"peak": peak(), "in": result.resources_in, "rows": result.details["rows"], "bytes": result.bytes_in,
                  "requests": result.details["requests"]}))
"""


def flattened(port: int, source: Path, job: Path, batch: int) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(printed(CLIENT, port, source, job, batch))
    assert result["rows"] == result["in"]
    return result


@pytest.mark.slow
def test_the_same_batch_size_takes_the_same_memory_for_four_times_the_data(tmp_path: Path) -> None:
    peaks = []
    with serving(service) as port:
        for megabytes in (4, 16):
            size = make(tmp_path / f"{megabytes}", megabytes)
            found = flattened(port, tmp_path / f"{megabytes}", tmp_path / f"job-{megabytes}", 2)
            assert found["bytes"] == size
            peaks.append(found["peak"])
    assert peaks[1] <= peaks[0] + 15
    assert max(peaks) <= MOST


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("long", [False, True])
def test_200_mb_with_a_batch_size_of_50_take_at_most_300_mb(tmp_path: Path, long: bool) -> None:
    size = make(tmp_path / "data", 200, long=long)
    with serving(service) as port:
        found = flattened(port, tmp_path / "data", tmp_path / "job", 50)
    print(found)
    assert found["bytes"] == size
    assert found["peak"] <= MOST
