"""Units that a person reads: ``21.6 s``, ``153 kB``, ``1,204 resources``."""

from __future__ import annotations

import pytest

from tasks.shared.units import human_bytes, human_count, human_duration, human_rate, human_seconds


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (99_949, "99.9 kB"), (153_000, "153 kB"), (999_600, "1.0 MB"),
        (2_500_000, "2.5 MB"), (3.2e12, "3.2 TB"), (4e15, "4000 TB"), (-1500, "-1.5 kB"),
    ],
)  # fmt: skip
def test_sizes_have_three_figures_at_most(size: float, text: str) -> None:
    assert human_bytes(size) == text
    assert human_rate(size) == f"{text}/s"


@pytest.mark.parametrize(
    ("seconds", "left", "measured"),
    [
        (0, "0 s", "0 ms"), (0.0354, "0 s", "35 ms"), (0.9999, "1 s", "1.0 s"), (21.6, "22 s", "21.6 s"),
        (59.96, "1 min 0 s", "1 min 0 s"), (61, "1 min 1 s", "1 min 1 s"), (3599.7, "1 h 0 min", "1 h 0 min"),
        (7322, "2 h 2 min", "2 h 2 min"), (200_000, "2 d 7 h", "2 d 7 h"),
    ],
)  # fmt: skip
def test_a_remaining_time_has_no_fractions_and_a_measured_time_has_one_digit(
    seconds: float, left: str, measured: str
) -> None:
    assert (human_seconds(seconds), human_duration(seconds)) == (left, measured)


def test_counts_have_thousands_and_a_plural() -> None:
    assert human_count(1204, "resource") == "1,204 resources"
    assert human_count(1, "resource") == "1 resource"
    assert human_count(0, "retry", "retries") == "0 retries"
