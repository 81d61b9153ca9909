"""The ledger of what was done (architecture.md rule 6, document 3 §7 "A ledger … records what was sent")."""

from __future__ import annotations

import itertools
import stat
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tasks.shared.errors import StorageError
from tasks.shared.files.ledger import SYNC_SECONDS, Ledger, Ranges, ranges_of

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8)).map(lambda pair: (pair[0], pair[0] + pair[1])))


@given(spans)
def test_ranges_hold_what_was_added_and_nothing_else(added: list[tuple[int, int]]) -> None:
    ranges = Ranges(added)
    expected = {value for start, stop in added for value in range(start, stop)}
    assert [value for value in range(80) if value in ranges] == sorted(expected)
    assert len(ranges) == len(expected)
    pieces = list(ranges)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(pieces))


@given(spans, st.integers(0, 70), st.integers(0, 10))
@example([(0, 3)], 0, 4)
@example([(0, 3), (4, 6)], 0, 6)
def test_ranges_cover_what_they_hold_completely(added: list[tuple[int, int]], start: int, length: int) -> None:
    ranges = Ranges(added)
    assert ranges.covers(start, start + length) == all(value in ranges for value in range(start, start + length))


@given(st.sets(st.integers(0, 50)))
def test_ranges_of_values_are_the_shortest_list(values: set[int]) -> None:
    found = ranges_of(values)
    assert {value for start, stop in found for value in range(start, stop)} == values
    assert len(found) == sum(1 for value in values if value - 1 not in values)


def fill(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.account("a.ndjson", "sha256:1")
        ledger.done("a.ndjson", range(100), sent=98, collapsed=2)
        ledger.account("b.ndjson", "sha256:2")
        ledger.done("b.ndjson", [3, 1, 2], sent=3)
        ledger.done("a.ndjson", range(100, 150), sent=50)
        ledger.complete("a.ndjson", {"resources": 150})


def test_a_reopened_ledger_knows_what_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "send" / "ledger.ndjson"
    fill(path)
    with Ledger(path) as ledger:
        a, b = ledger.account("a.ndjson", "sha256:1"), ledger.account("b.ndjson", "sha256:2")
    assert list(a.done) == [(0, 150)]
    assert a.counts == {"sent": 148, "collapsed": 2}
    assert a.complete == {"resources": 150}
    assert list(b.done) == [(1, 4)]
    assert b.complete is None


def test_the_ledger_is_private_and_append_only(tmp_path: Path) -> None:
    path = tmp_path / "send" / "ledger.ndjson"
    fill(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    before = path.read_bytes()
    with Ledger(path) as ledger:
        ledger.account("a.ndjson", "sha256:1")
        ledger.done("b.ndjson", [9], sent=1)
    assert path.read_bytes().startswith(before)


def test_changed_content_begins_a_new_account(tmp_path: Path) -> None:
    path = tmp_path / "ledger.ndjson"
    fill(path)
    with Ledger(path) as ledger:
        assert len(ledger.account("a.ndjson", "sha256:other").done) == 0
        assert len(ledger.account("b.ndjson", "sha256:2").done) == 3
    with Ledger(path) as ledger:
        assert len(ledger.account("a.ndjson", "sha256:other").done) == 0


@pytest.mark.slow
def test_every_prefix_of_a_ledger_is_a_ledger_that_forgot_only_the_end(tmp_path: Path) -> None:
    full, path = tmp_path / "full", tmp_path / "ledger.ndjson"
    fill(full)
    data = full.read_bytes()
    known = 0
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        with Ledger(path) as ledger:
            done = len(ledger.account("a.ndjson", "sha256:1").done)
            ledger.done("a.ndjson", [500], sent=1)
        assert done >= known
        known = done
        assert size == 0 or path.read_bytes()[: data[:size].rfind(b"\n") + 1] == data[: data[:size].rfind(b"\n") + 1]
        with Ledger(path) as ledger:  # what is written behind a torn entry is readable
            assert 500 in ledger.account("a.ndjson", "sha256:1").done
    assert known == 150


@pytest.mark.parametrize(
    "garbage",
    [b"\x00\x00\x00\x00\n", b"{}\n", b'{"file":"c.ndjson","done":[[0,5]]}\n', b'{"file":"a.ndjson","done":[[5,2]]}\n'],
)
def test_what_stands_behind_an_unreadable_entry_is_forgotten(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "ledger.ndjson"
    fill(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], garbage, *lines[2:]]))
    with Ledger(path) as ledger:
        assert list(ledger.account("a.ndjson", "sha256:1").done) == [(0, 100)]
        assert len(ledger.account("b.ndjson", "sha256:2").done) == 0


def test_entries_are_in_the_file_at_once(tmp_path: Path) -> None:
    now = 0.0
    path = tmp_path / "ledger.ndjson"
    with Ledger(path, clock=lambda: now) as ledger:
        ledger.account("a.ndjson", "x")
        size = path.stat().st_size
        assert size > 0
        now += SYNC_SECONDS
        ledger.done("a.ndjson", [0], sent=1)
        assert path.stat().st_size > size


def test_a_ledger_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "ledger.ndjson").mkdir()
    with pytest.raises(StorageError):
        Ledger(tmp_path / "ledger.ndjson")


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.ndjson")
    ledger.close()
    ledger.close()
