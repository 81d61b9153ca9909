"""Files that are whole or absent."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zstandard

from tasks.shared.errors import StorageError
from tasks.shared.files.part_file import LEVELS, PartFile, publish, write_whole


def test_a_part_is_gone_without_an_end_and_its_final_name_is_as_it_was(tmp_path: Path) -> None:
    final = tmp_path / "new" / "a"
    write_whole(final, b"first")
    with PartFile(final) as part:
        part.write(b"second")
        assert final.with_name("a.part").is_file()
    assert [path.name for path in final.parent.iterdir()] == ["a"]
    assert final.read_bytes() == b"first"
    assert stat.S_IMODE(final.stat().st_mode) == 0o600
    assert stat.S_IMODE(final.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("level", [None, *LEVELS])
def test_size_and_hash_are_those_of_the_stored_file(tmp_path: Path, level: str | None) -> None:
    with PartFile(tmp_path / "a", level) as part:
        part.write(b"content " * 1000)
        part.sync()
        publish(tmp_path / "a")
    stored = (tmp_path / "a").read_bytes()
    assert (part.size, part.sha256) == (len(stored), hashlib.sha256(stored).hexdigest())
    assert part.content == 8000
    content = zstandard.ZstdDecompressor().decompressobj().decompress(stored) if level else stored
    assert content == b"content " * 1000


def test_a_file_is_on_the_disk_before_its_final_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut, a file of that name is either missing or whole."""
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        found = os.fstat(handle)
        done.append("directory" if stat.S_ISDIR(found.st_mode) else f"{found.st_size} bytes")
        fsync(handle)

    def renamed(path: Path, target: Path) -> Path:
        done.append("name")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    write_whole(tmp_path / "a", b"whole")
    assert done == ["5 bytes", "name", "directory"]


@contextmanager
def largest(size: int) -> Iterator[None]:
    """No file becomes larger: a write takes what fits, the next one fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_of_a_part_that_does_not_fit_nothing_stays(tmp_path: Path) -> None:
    with largest(10), pytest.raises(StorageError):
        write_whole(tmp_path / "a", b"x" * 11)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError) as caught:
        write_whole(tmp_path / "file" / "a", b"x")
    assert caught.value.context == str(tmp_path / "file" / "a")
