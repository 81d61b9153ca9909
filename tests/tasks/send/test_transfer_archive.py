"""The zip is deterministic, streamed and readable by others (document 3 §7)."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zipfile
from pathlib import Path

import pytest
import zstandard

from tasks.send.transfer.archive import Archive, plain_names, read_archive, write_archive
from tasks.shared.errors import DataError, SluiceError, Stopped
from tasks.shared.files.data_directory import finished_files

LINE = b'{"resourceType":"Patient","id":"p%d"}\n'


def put(directory: Path, files: dict[str, bytes], *, compress: bool = False) -> Path:
    for name, data in files.items():
        path = directory / (f"{name}.zst" if compress else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zstandard.compress(data) if compress else data)
    return directory


def packed(directory: Path) -> tuple[Archive, Path]:
    path = directory / "t.zip"
    write_archive(plain_names(directory / "in", list(finished_files(directory / "in"))), path)
    return read_archive(path), path


def test_the_same_contents_give_the_same_bytes_whenever_and_however_they_are_stored(tmp_path: Path) -> None:
    files = {f"{name}.ndjson": LINE % n for n, name in enumerate("bacd")} | {"sub/x.csv": b"a,b\n1,2\n"}
    archives = []
    for number, compress in enumerate((False, True)):
        place = tmp_path / str(number)
        put(place / "in", files if number else dict(reversed(files.items())), compress=compress)
        for path in (place / "in").iterdir():
            os.utime(path, (1e9 + number, 1e9 + number))
            path.chmod(0o600 + number * 0o44)
        archives.append(packed(place)[1].read_bytes())
    assert archives[0] == archives[1]


def test_names_are_plain_and_sorted_before_the_manifest_times_and_modes_fixed(tmp_path: Path) -> None:
    put(tmp_path / "in", {"b.ndjson": LINE % 1, "ä.csv": b"x\n", "B.ndjson": LINE % 2}, compress=True)
    put(tmp_path / "in", {"core.ndjson": LINE % 3, ".hidden": b"x", "c.ndjson.part": b"x", "NOTES.txt": b"x"})
    _, path = packed(tmp_path)
    with zipfile.ZipFile(path) as zipped:
        assert zipped.namelist() == ["B.ndjson", "b.ndjson", "core.ndjson", "ä.csv", "manifest.json"]
        for info in zipped.infolist():
            assert info.date_time == (1980, 1, 1, 0, 0, 0)
            assert info.compress_type == zipfile.ZIP_DEFLATED
            assert (info.external_attr >> 16, info.create_system) == (stat.S_IFREG | 0o600, 3)
            assert not info.flag_bits & 0x08, "sizes stand before the data, not behind them"


def test_the_manifest_lists_name_size_sha256_and_lines(tmp_path: Path) -> None:
    files = {"a.ndjson": LINE % 1 + b"\n" + LINE % 2, "b.csv": b'x\n"y\nz"'}
    put(tmp_path / "in", files)
    archive, path = packed(tmp_path)
    with zipfile.ZipFile(path) as zipped:
        listed = json.loads(zipped.read("manifest.json"))["files"]
    assert listed == [
        {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "lines": lines}
        for (name, data), lines in zip(files.items(), (2, 3), strict=True)
    ]
    assert archive.lines is None, "lines of tables are no resources"


def test_size_and_hash_are_those_of_the_file_which_only_its_owner_reads(tmp_path: Path) -> None:
    put(tmp_path / "in", {"a.ndjson": LINE % 1 * 3})
    archive, path = packed(tmp_path)
    data = path.read_bytes()
    assert (archive.size, archive.sha1) == (len(data), hashlib.sha1(data).hexdigest())
    assert (archive.lines, archive.content) == (3, len(LINE % 1) * 3)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("names", [("a.ndjson", "a.ndjson.zst"), ("manifest.json",), ("manifest.json.zst",)])
def test_two_files_with_one_name_in_the_zip_are_an_error(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(DataError) as caught:
        plain_names(tmp_path, [tmp_path / name for name in names])
    assert caught.value.reference == "name-clash"
    assert caught.value.hint


def test_a_name_that_no_zip_can_hold_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        plain_names(tmp_path, [Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.ndjson"))])
    assert caught.value.reference == "transfer-name"


def test_a_truncated_zst_leaves_no_zip(tmp_path: Path) -> None:
    put(tmp_path / "in", {"a.ndjson.zst": zstandard.compress(LINE % 1 * 1000)[:-5]})
    with pytest.raises(SluiceError) as caught:
        packed(tmp_path)
    assert caught.value.reference == "zst-truncated"
    assert {path.name for path in tmp_path.iterdir()} == {"in"}


def test_a_stop_leaves_no_half_zip(tmp_path: Path) -> None:
    files = {"a.ndjson": put(tmp_path / "in", {"a.ndjson": LINE % 1}) / "a.ndjson"}

    def stop(_: int) -> None:
        raise Stopped("SIGTERM")

    with pytest.raises(Stopped):
        write_archive(files, tmp_path / "t.zip", packed=stop)
    assert {path.name for path in tmp_path.iterdir()} == {"in"}
