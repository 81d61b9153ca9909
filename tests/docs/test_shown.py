"""Comparison of a page's output block with printed output."""

from __future__ import annotations

import pytest

from tests.docs.shown import assert_shown, shape

SHOWN = """\
job 368f91e2-dd1f-4d71-8c99-58332d55a824
1 send: complete: 2 files, 233 B → 1.5 kB, 0.0 s, p95 10 ms
  look at …/jobs/368f91e2-dd1f-4d71-8c99-58332d55a824/import
…
"""
PRINTED = """\
job 01dd3a9d-7ab3-46dd-a172-7eb53c8ec0e3
1 send: complete: 14 files, 1,233.5 MB → 7 B, 3.1 min, p95 2 s
  look at /somewhere/else/jobs/01dd3a9d-7ab3-46dd-a172-7eb53c8ec0e3/import
and
so on
"""


def test_numbers_sizes_times_ids_and_paths_may_differ_and_dots_stand_for_any_lines() -> None:
    assert_shown(SHOWN, PRINTED)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("complete", "completed"), ("p95", "p99"), ("look at", "see"), ("/import\n", "/import_wait\n"),
        ("14 files", "no files"), ("job 01dd3a9d-7ab3-46dd-a172-7eb53c8ec0e3\n", ""), ("7 B", "7"),
    ],
)  # fmt: skip
def test_words_may_not(was: str, now: str) -> None:
    assert was in PRINTED
    with pytest.raises(AssertionError):
        assert_shown(SHOWN, PRINTED.replace(was, now))


def test_the_shape_of_json_is_its_keys_at_every_level() -> None:
    assert shape({"a": [{"b": 1}, {"b": 2}], "c": None}) == shape({"a": [{"b": "x"}], "c": 3})
    assert shape({"a": {"b": 1}}) != shape({"a": {"c": 1}})
