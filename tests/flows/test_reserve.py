"""The disk space that is kept for ``job prune`` and ``job delete`` (``flows/jobs_dir.py``, docs/disk.md)."""

from __future__ import annotations

from pathlib import Path

from flows.jobs_dir import RESERVE, RESERVED, keep_reserve, reserve_given_up
from tests.tasks.shared.files.test_out_file import largest


def test_it_takes_its_room_and_is_private(tmp_path: Path) -> None:
    for _ in range(2):  # one that is there is kept
        keep_reserve(tmp_path)
        facts = (tmp_path / RESERVE).stat()
        assert (facts.st_size, facts.st_mode & 0o777) == (RESERVED, 0o600)
        assert facts.st_blocks * 512 >= RESERVED


def test_it_is_given_up_for_a_while(tmp_path: Path) -> None:
    keep_reserve(tmp_path)
    with reserve_given_up(tmp_path):
        assert not (tmp_path / RESERVE).exists()
    assert (tmp_path / RESERVE).exists()


def test_where_none_was_none_is_made(tmp_path: Path) -> None:
    with reserve_given_up(tmp_path / "nowhere"):
        pass
    with reserve_given_up(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_without_room_for_it_there_is_none_and_nobody_fails(tmp_path: Path) -> None:
    with largest(RESERVED - 1):
        keep_reserve(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_it_is_not_made_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / RESERVE).symlink_to(tmp_path / "elsewhere")
    keep_reserve(tmp_path / "home")
    assert not (tmp_path / "elsewhere").exists()
