"""Our files: private, whole, and never written through a foreign link or file (architecture.md rule 6)."""

from __future__ import annotations

import ast
import os
import resource
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tasks.shared.errors import StorageError
from tasks.shared.files.out_file import OutFile, PartFile, Spool, publish, write_file
from tests.conftest import ROOT


def test_what_stands_behind_the_known_size_is_cut_off_and_writing_goes_on_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with OutFile(path) as first:
        first.write(b"known")
        first.write(b"unknown")
    assert path.stat().st_size == 12
    with OutFile(path, 5) as again:
        again.write(b" more")
        assert again.size == 10
        again.cut(8)
        again.write(b"!")
        again.sync()
    again.close()
    assert path.read_bytes() == b"known mo!"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def continued(path: Path) -> None:
    with OutFile(path, 3) as file:
        file.write(b"ours\n")


def anew(path: Path) -> None:
    with OutFile(path) as file:
        file.write(b"ours\n")


@pytest.mark.parametrize("write", [continued, anew])
def test_a_directory_that_is_gone_is_a_storage_error(tmp_path: Path, write: Callable[[Path], None]) -> None:
    with pytest.raises(StorageError) as caught:
        write(tmp_path / "gone" / "a")
    assert caught.value.reference == "file-vanished"


@pytest.mark.parametrize("write", [continued, anew])
def test_what_cannot_be_opened_is_not_taken_for_foreign(tmp_path: Path, write: Callable[[Path], None]) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(StorageError):
        write(tmp_path / "a")
    assert (tmp_path / "a").is_dir()


def test_a_part_is_gone_without_a_commit_and_its_final_name_is_as_it_was(tmp_path: Path) -> None:
    final = tmp_path / "new" / "a"
    write_file(final, b"first")
    with PartFile(final, hashed=True) as part:
        part.write(b"second")
        assert part.sha256 == "16367aacb67a4a017c8da8ab95682ccb390863780f7114dda0a0e0c55644c7c4"
        assert final.with_name("a.part").stat().st_size == 6
    assert [path.name for path in final.parent.iterdir()] == ["a"]
    assert final.read_bytes() == b"first"
    assert stat.S_IMODE(final.parent.stat().st_mode) == 0o700


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
    write_file(tmp_path / "a", b"whole")
    assert done == ["5 bytes", "name", "directory"]


def test_names_are_given_in_order_and_the_error_is_about_the_final_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    with pytest.raises(StorageError) as caught:
        publish((tmp_path / "a", tmp_path / "A"), (tmp_path / "b", tmp_path / "B"))
    assert caught.value.context == str(tmp_path / "B")
    assert (tmp_path / "A").read_bytes() == b"a"


def test_a_spool_has_no_name_is_read_anywhere_and_gone_with_its_last_reference(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "new")
    spool.write(b"0123456789")
    handle = spool._handle
    assert (spool.size, spool.read(3, 5), spool.read(8, 99)) == (10, b"34", b"89")
    assert list((tmp_path / "new").iterdir()) == []
    assert stat.S_IMODE(os.fstat(handle).st_mode) == 0o600
    del spool
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError):
        Spool(tmp_path / "file")


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
        write_file(tmp_path / "a", b"x" * 11)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("kind", [OutFile, PartFile])
def test_a_full_disk_is_a_storage_error(tmp_path: Path, kind: type[OutFile]) -> None:
    with kind(tmp_path / "a") as file, Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), file._handle)
        with pytest.raises(StorageError) as caught:
            file.write(b"x")
    assert caught.value.reference == "disk-full"
    assert not caught.value.transient
    assert "jobs_dir" in str(caught.value.hint)
    assert caught.value.context == str(tmp_path / "a")


@pytest.mark.slow
def test_there_is_one_loop_that_writes_all() -> None:
    found = [
        path.relative_to(ROOT).as_posix()
        for folder in ("config", "tasks", "flows")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for loop in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(loop, ast.While | ast.For) and {"os.write", "os.pwrite"} & {*map(ast.unparse, ast.walk(loop))}
    ]
    assert found == ["tasks/shared/files/out_file.py"]
