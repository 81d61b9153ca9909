"""The zip is deterministic, streamed and readable by others (document 3 §7)."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.send.transfer.archive import Archive, ArchiveContents, survey, write_archive
from tasks.shared.errors import DataError, Stopped, StorageError
from tests.conftest import examples

NAMES = st.text(st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="/\0"), min_size=1, max_size=20)
LINE = b'{"resourceType":"Patient","id":"p%d"}\n'


def put(directory: Path, files: dict[str, bytes], *, compress: bool = False) -> Path:
    for name, data in files.items():
        path = directory / (f"{name}.zst" if compress else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zstandard.compress(data) if compress else data)
    return directory


def packed(directory: Path, name: str = "t.zip") -> tuple[ArchiveContents, Archive, Path]:
    contents = survey(directory / "in")
    final = directory / name
    return contents, write_archive(contents, final), final


def test_the_same_contents_give_the_same_bytes_whenever_and_however_they_are_stored(tmp_path: Path) -> None:
    files = {f"{name}.ndjson": LINE % n for n, name in enumerate("bacd")} | {"sub/x.csv": b"a,b\n1,2\n"}
    archives = []
    for number, compress in enumerate((False, True)):
        place = tmp_path / str(number)
        put(place / "in", files if number else dict(reversed(files.items())), compress=compress)
        for path in (place / "in").iterdir():
            os.utime(path, (1e9 + number, 1e9 + number))
            path.chmod(0o600 + number * 0o44)
        archives.append(packed(place)[2].read_bytes())
    assert archives[0] == archives[1]


def test_names_are_plain_and_sorted_behind_the_manifest_times_and_modes_fixed(tmp_path: Path) -> None:
    put(tmp_path / "in", {"b.ndjson": LINE % 1, "ä.csv": b"x\n", "B.ndjson": LINE % 2}, compress=True)
    put(tmp_path / "in", {"core.ndjson": LINE % 3})
    _, _, path = packed(tmp_path)
    with zipfile.ZipFile(path) as zipped:
        assert zipped.namelist() == ["manifest.json", "B.ndjson", "b.ndjson", "core.ndjson", "ä.csv"]
        for info in zipped.infolist():
            assert info.date_time == (1980, 1, 1, 0, 0, 0)
            assert info.compress_type == zipfile.ZIP_DEFLATED
            assert (info.external_attr >> 16, info.create_system) == (stat.S_IFREG | 0o600, 3)
            assert not info.flag_bits & 0x08, "sizes stand before the data, not behind them"
            assert info.extra == b"", "no ZIP64 where none is needed"


def test_the_manifest_lists_name_size_sha256_and_lines(tmp_path: Path) -> None:
    files = {"a.ndjson": LINE % 1 + b"\n" + LINE % 2, "b.csv": b'x\n"y\nz"'}
    put(tmp_path / "in", files)
    _, _, path = packed(tmp_path)
    with zipfile.ZipFile(path) as zipped:
        listed = json.loads(zipped.read("manifest.json"))["files"]
    assert listed == [
        {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "lines": lines}
        for (name, data), lines in zip(files.items(), (2, 3), strict=True)
    ]


def test_size_and_hashes_are_those_of_the_file_which_only_its_owner_reads(tmp_path: Path) -> None:
    put(tmp_path / "in", {"a.ndjson": LINE % 1})
    _, archive, path = packed(tmp_path)
    data = path.read_bytes()
    assert archive == Archive(len(data), hashlib.sha256(data).hexdigest(), hashlib.sha1(data).hexdigest())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.slow
def test_unzip_finds_no_fault(tmp_path: Path) -> None:
    put(tmp_path / "in", {f"batch-{n}.ndjson": (LINE % n) * 5000 for n in range(30)}, compress=True)
    _, _, path = packed(tmp_path)
    ran = subprocess.run(["unzip", "-t", str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "No errors detected" in ran.stdout


def is_plain(data: bytes) -> bool:
    """Return whether data is read as plain: without a zstd frame at its beginning, whatever its name."""
    return not data.startswith(b"\x28\xb5\x2f\xfd")


@settings(max_examples=examples(40), deadline=None)
@given(st.dictionaries(NAMES, st.binary(max_size=5000).filter(is_plain), min_size=1, max_size=8))
def test_what_goes_in_comes_out(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        wanted = {
            f"{key}.bin": data for key, data in files.items() if not key.startswith(".") and len(key.encode()) < 200
        }
        if not wanted:
            return
        put(directory / "in", wanted)
        _, _, path = packed(directory)
        with zipfile.ZipFile(path) as zipped:
            got = {info.filename: zipped.read(info) for info in zipped.infolist() if info.filename != "manifest.json"}
        assert got == wanted


@pytest.mark.parametrize("change", [b'{"id":"other___________________"}\n', b"", LINE * 3])
def test_input_that_changes_after_the_survey_is_an_error_and_leaves_no_zip(tmp_path: Path, change: bytes) -> None:
    contents = survey(put(tmp_path / "in", {"a.ndjson": LINE % 1, "b.ndjson": LINE % 2}))
    (tmp_path / "in/b.ndjson").write_bytes(change)
    with pytest.raises(DataError) as caught:
        write_archive(contents, tmp_path / "t.zip")
    assert (caught.value.reference, caught.value.context) == ("transfer-input-changed", "b.ndjson")
    assert {path.name for path in tmp_path.iterdir()} == {"in"}


def test_a_stop_leaves_no_half_zip(tmp_path: Path) -> None:
    contents = survey(put(tmp_path / "in", {"a.ndjson": (LINE % 1) * 50_000}))

    def stop(_: int) -> None:
        raise Stopped("SIGTERM")

    with pytest.raises(Stopped):
        write_archive(contents, tmp_path / "t.zip", packed=stop)
    assert {path.name for path in tmp_path.iterdir()} == {"in"}


def test_a_disk_that_refuses_is_a_storage_error(tmp_path: Path) -> None:
    contents = survey(put(tmp_path / "in", {"a.ndjson": LINE % 1}))
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        write_archive(contents, tmp_path / "file" / "t.zip")


def test_a_leftover_of_a_killed_run_is_replaced(tmp_path: Path) -> None:
    put(tmp_path / "in", {"a.ndjson": LINE % 1})
    (tmp_path / "t.zip.part").write_bytes(b"half a zip" * 1000)
    (tmp_path / "t.zip").write_bytes(b"old")
    _, archive, path = packed(tmp_path)
    assert path.stat().st_size == archive.size
