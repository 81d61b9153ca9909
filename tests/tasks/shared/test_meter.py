"""How far a step is (``4-product.md`` §5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.shared.meter import Meter


def test_plain_files_count_with_their_bytes_and_compressed_ones_with_the_ratio_seen_so_far(tmp_path: Path) -> None:
    plain, first, second = tmp_path / "a.ndjson", tmp_path / "b.ndjson.zst", tmp_path / "c.ndjson.zst"
    for path in (plain, first, second):
        path.write_bytes(b"x" * 100)
    meter = Meter()
    meter.work_on([plain, first, second])

    def after(path: Path, content: int, *, whole: bool = False) -> float | None:
        meter.within(path, content, whole=whole)
        return meter.snapshot().fraction

    assert after(plain, 50) == pytest.approx(50 / 300)
    assert after(plain, 100, whole=True) == pytest.approx(100 / 300)
    assert after(first, 500) == pytest.approx(150 / 300)
    assert after(first, 10**9) == pytest.approx(200 / 300)
    assert after(first, 2000, whole=True) == pytest.approx(200 / 300)
    assert after(second, 1000) == pytest.approx(250 / 300)
    assert after(second, 2000, whole=True) == 1.0
