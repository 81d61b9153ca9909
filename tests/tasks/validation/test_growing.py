"""Files that are written in several runs (``architecture.md`` rule 6)."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tasks.shared.errors import StorageError
from tasks.validation.growing import GrowingFile, size_of


def test_what_stands_behind_the_known_size_is_cut_off_and_writing_goes_on_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    first = GrowingFile(path)
    first.write(b"known")
    first.write(b"unknown")
    first.close()
    again = GrowingFile(path, 5)
    again.write(b" more")
    again.finish()
    again.close()
    assert path.read_bytes() == b"known more"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_foreign_leftover_is_replaced_and_never_written_into(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"theirs")
    path = tmp_path / "a"
    path.symlink_to(foreign)
    file = GrowingFile(path)
    file.write(b"ours")
    file.close()
    assert foreign.read_bytes() == b"theirs"
    assert path.read_bytes() == b"ours"
    path.unlink()
    path.symlink_to(foreign)
    with pytest.raises(StorageError):
        GrowingFile(path, 3)
    assert foreign.read_bytes() == b"theirs"
    assert size_of(path) == -1


def test_a_directory_that_is_gone_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        GrowingFile(tmp_path / "gone" / "a")
    assert caught.value.reference == "file-vanished"
    assert size_of(tmp_path / "gone" / "a") == -1
