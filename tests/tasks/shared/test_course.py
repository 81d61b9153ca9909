"""How far a step is (``4-product.md`` §5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.shared.course import Course


def test_plain_files_count_with_their_bytes_and_compressed_ones_with_the_ratio_seen_so_far(tmp_path: Path) -> None:
    plain, first, second = tmp_path / "a.ndjson", tmp_path / "b.ndjson.zst", tmp_path / "c.ndjson.zst"
    for path in (plain, first, second):
        path.write_bytes(b"x" * 100)
    course = Course([plain, first, second])
    assert course.within(plain, 50) == pytest.approx(50 / 300)
    assert course.end_of(plain, 100) == pytest.approx(100 / 300)
    assert course.within(first, 500) == pytest.approx(150 / 300)
    assert course.within(first, 10**9) == pytest.approx(200 / 300)
    assert course.end_of(first, 2000) == pytest.approx(200 / 300)
    assert course.within(second, 1000) == pytest.approx(250 / 300)
    assert course.end_of(second, 2000) == 1.0
