"""Survey of an input directory (document 3 §7 "All files of the input directory")."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import zstandard

from tasks.send.transfer.archive import survey
from tasks.shared.errors import DataError, SluiceError, Stopped

LINE = b'{"resourceType":"Patient","id":"p"}\n'


def put(directory: Path, *names: str, data: bytes = LINE) -> Path:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zstandard.compress(data) if name.endswith(".zst") else data)
    return directory


def test_every_file_is_taken_but_hidden_and_unfinished_ones_and_what_is_no_data(tmp_path: Path) -> None:
    put(tmp_path, "a.ndjson", "b.ndjson.zst", "sub/c.csv", "E.NDJSON.ZST")
    put(tmp_path, ".hidden", ".git/x", "b.ndjson.part", "d.csv.partial", "Thumbs.db", "NOTES.txt", "sub/c.csv.bak")
    names = [member.name for member in survey(tmp_path).members]
    assert names == ["E.NDJSON", "a.ndjson", "b.ndjson", "sub/c.csv"]


def test_the_identity_depends_on_names_and_contents_alone(tmp_path: Path) -> None:
    one = survey(put(tmp_path / "1", "a.ndjson", "b.ndjson"))
    two = survey(put(tmp_path / "2", "b.ndjson.zst", "a.ndjson.zst"))
    other = survey(put(tmp_path / "3", "a.ndjson", "c.ndjson"))
    assert one.identity == two.identity
    assert one.identity != other.identity
    assert one.size == two.size == 2 * len(LINE)


def test_the_magic_bytes_decide_what_is_compressed_not_the_name(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_bytes(zstandard.compress(LINE))
    assert survey(tmp_path).members[0].size == len(LINE)


@pytest.mark.parametrize(
    ("data", "lines"), [(b"", 0), (b"\n\n", 0), (LINE * 3, 3), (LINE + b"\r\n \n" + LINE.rstrip(), 2)]
)
def test_blank_lines_of_ndjson_are_not_counted_as_everywhere(tmp_path: Path, data: bytes, lines: int) -> None:
    (tmp_path / "a.ndjson").write_bytes(data)
    contents = survey(tmp_path)
    assert contents.lines == contents.members[0].lines == lines


def test_lines_of_tables_are_no_resources(tmp_path: Path) -> None:
    put(tmp_path, "a.ndjson")
    put(tmp_path, "b.csv", data=b"x\ny")
    contents = survey(tmp_path)
    assert [member.lines for member in contents.members] == [1, 2]
    assert contents.lines is None


@pytest.mark.parametrize("names", [("a.ndjson", "a.ndjson.zst"), ("manifest.json",), ("manifest.json.zst",)])
def test_two_files_with_one_name_in_the_zip_are_an_error(tmp_path: Path, names: tuple[str, ...]) -> None:
    put(tmp_path, *names, data=b"{}\n")
    with pytest.raises(DataError) as caught:
        survey(tmp_path)
    assert caught.value.reference == "name-clash"
    assert caught.value.hint


def test_a_name_that_no_zip_can_hold_is_an_error(tmp_path: Path) -> None:
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.ndjson")).write_bytes(LINE)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    with pytest.raises(DataError) as caught:
        survey(tmp_path)
    assert caught.value.reference == "transfer-name"


def test_broken_ndjson_is_found_before_anything_is_sent_and_not_quoted(tmp_path: Path) -> None:
    put(tmp_path, "a.ndjson", data=LINE + b"<html>canary</html>\n")
    with pytest.raises(DataError) as caught:
        survey(tmp_path)
    assert (caught.value.reference, caught.value.context) == ("not-json", "a.ndjson:2")
    assert "canary" not in caught.value.render()


def test_a_truncated_zst_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson.zst").write_bytes(zstandard.compress(LINE * 1000)[:-5])
    with pytest.raises(SluiceError) as caught:
        survey(tmp_path)
    assert caught.value.reference == "zst-truncated"


@pytest.mark.parametrize("exists", [True, False])
def test_an_empty_directory_is_nothing_to_send(tmp_path: Path, exists: bool) -> None:
    with pytest.raises(DataError) as caught:
        survey(tmp_path if exists else tmp_path / "missing")
    assert caught.value.reference == "send-no-input"


def test_who_counts_the_pieces_may_stop_it(tmp_path: Path) -> None:
    put(tmp_path, "a.ndjson")

    def stop(_: int) -> None:
        raise Stopped("SIGINT")

    with pytest.raises(Stopped):
        survey(tmp_path, read=stop)
