"""The memory of a step is bounded by its longest line, not by its data (``performance.md``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.peers import data
from tests.peers.steps import CASES, StepPlace, start

MIB = 1 << 20
LINE = 100
"""MiB of the longest line."""


def peak(name: str, place: StepPlace) -> float:
    """Run the step in a process of its own; return its peak of memory, in MiB."""
    with place.serve() as service:
        child = start(name, place.directory, service.url)
        out, err = child.communicate(timeout=150)
    assert child.returncode == 0, err
    return int(out) / 1024


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_line_of_100_mb_takes_250_mb_and_a_few_times_the_line(tmp_path: Path, name: str) -> None:
    place = StepPlace(name, tmp_path)
    place.fill(files=1, persons=1)
    data.write(place.input / "long.ndjson", data.person("long-p0", observations=5 * LINE, size=MIB // 5))
    assert (place.input / "long.ndjson").stat().st_size > LINE * MIB
    assert peak(name, place) < 250 + 4 * LINE


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_many_lines_and_files_take_no_more_than_250_mb(tmp_path: Path, name: str) -> None:
    place = StepPlace(name, tmp_path)
    place.fill(files=100, persons=10, observations=2, size=20_000)
    assert peak(name, place) < 250
