"""Lines too long to hold: ``tasks/shared/fhir/long_line.py``."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tasks.shared.errors import DataError, StorageError
from tasks.shared.fhir.envelope import Envelope, open_bundle
from tasks.shared.fhir.long_line import LongLine, lines_with_long
from tasks.shared.files.out_file import Spool
from tests.tasks.shared.fhir.json_text import DrawnBundle, bundles

CANARY = "canary-4711"
HEAD = b'{"resourceType":"Bundle","id":"b-1","type":"transaction","entry":['


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def long_line(place: Path, line: bytes, *, piece: int = 1 << 18) -> LongLine:
    """Return the line as a ``LongLine``, whatever its length; ``piece`` bytes of it are read at a time."""
    spool = Spool(place)
    spool.write(line)
    return LongLine(spool, "x.ndjson", 7, piece=piece)


def content_of(line: bytes | LongLine) -> bytes:
    return line.whole() if isinstance(line, LongLine) else line


def lines(path: Path, limit: int) -> list[tuple[int, bool, bytes]]:
    """Number, whether it is long, and content of every line."""
    found = lines_with_long(path, limit=limit, spool=path.parent / "spool")
    return [(number, isinstance(line, LongLine), content_of(line)) for number, line in found]


def cut(line: LongLine) -> tuple[Envelope, list[bytes]] | str:
    """Return the parts of the line, or the reference of the error."""
    with line:
        try:
            return line.envelope(), list(line.entries())
        except DataError as error:
            named = (error.context or "").startswith("x.ndjson:7")
            return error.reference if named else f"{error.reference}, and not where"


def opened(line: bytes) -> tuple[Envelope, list[bytes]] | str:
    """Return the same parts from ``open_bundle``."""
    try:
        return open_bundle(line)
    except DataError as error:
        return error.reference


# What is in a long line


@pytest.mark.slow
@given(bundles(), st.integers(1, 40))
def test_a_long_bundle_is_cut_as_open_bundle_cuts_it(place: Path, bundle: DrawnBundle, piece: int) -> None:
    line = bundle.line.removesuffix(b"\r")
    assert cut(long_line(place, line, piece=piece)) == open_bundle(line)


@pytest.mark.slow
@given(bundles(), st.integers(1, 40))
def test_the_resource_type_is_read_wherever_it_stands(place: Path, bundle: DrawnBundle, piece: int) -> None:
    with long_line(place, bundle.line, piece=piece) as line:
        assert line.resource_type == "Bundle"
        assert line.number == 7


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b'{"resourceType":"Binary","data":"AAAA"}', "Binary"),
        (b'{"data":"AAAA","resourceType":"Binary"}', "Binary"),
        (b'{"contained":[{"resourceType":"Patient"}],"resourceType":"List"}', "List"),
        (b'{"\\u0072esourceType":"List"}', "List"),
        (b'{"resourceType":"Binary","data":"AAA', "Binary"),
        (b'{"data":"AAA', None),
        (b'{"resourceType":"Bin', None),
        (b'{"resourceType":7}', None),
        (b'{"resourceType":"%b"}' % (b"x" * 1000), None),
        (b"{}", None),
        (b"[1,2]", None),
        (b"not JSON", None),
    ],
)
def test_the_resource_type_of_any_line(place: Path, line: bytes, kind: str | None) -> None:
    with long_line(place, line) as long:
        assert long.resource_type == kind
        assert long.whole() == line
        assert long.size == len(line)


@pytest.mark.parametrize("count", [0, 1, 8191, 8192, 8193, 20_000])
def test_any_number_of_entries_can_be_read_again_and_again(place: Path, count: int) -> None:
    pieces = [b'{"n":%d}' % n for n in range(count)]
    with long_line(place, HEAD + b",".join(pieces) + b"]}") as line:
        assert list(line.entries()) == pieces
        assert list(line.entries()) == pieces
        assert line.envelope().around() == (HEAD, b"]}")


@pytest.mark.parametrize("backslashes", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("before", range(8))
def test_a_string_of_many_pieces_ends_where_it_ends(place: Path, before: int, backslashes: int) -> None:
    text = "x" * before + "\\" * backslashes + '"]},{[' + "y" * 50 + "\\"
    entries = [json.dumps({"a": text}).encode(), b"{}"]
    with long_line(place, HEAD + b",".join(entries) + b"]}", piece=8) as line:
        assert list(line.entries()) == entries


@pytest.mark.parametrize(
    ("line", "reference"),
    [
        (HEAD, "not-json"),
        (HEAD + b'{"a":1}', "not-json"),
        (HEAD + b'{"a":1},', "not-json"),
        (HEAD + b'{"a":1}]', "not-json"),
        (HEAD + b'{"a":"1', "not-json"),
        (HEAD + b'{"a":[}]}', "not-json"),
        (HEAD + b'{"a":01}]}', "not-json"),
        (HEAD + b"{},]}", "not-json"),
        (HEAD + b",{}]}", "not-json"),
        (HEAD + b"{} {}]}", "not-json"),
        (HEAD + b"{}]}}", "not-json"),
        (HEAD + b'{"a":"\xff"}]}', "not-utf8"),
        (HEAD + b'{}],"a":"\xff"}', "not-utf8"),
        (HEAD + b"1]}", "not-a-bundle"),
        (b'{"entry":[{}],"resourceType":"List"}', "not-a-bundle"),
        (b'{"resourceType":"Binary","data":"AAAA"}', "not-a-bundle"),
        (HEAD + b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}]}", "json-too-deep"),
        (b"{", "not-json"),
        (b"<html>", "not-json"),
        (b"[{}]", "not-json"),
    ],
)
def test_what_is_torn_or_no_bundle_is_named_with_file_and_line(place: Path, line: bytes, reference: str) -> None:
    assert cut(long_line(place, line)) == reference


def test_a_bad_entry_is_named_and_not_quoted(place: Path) -> None:
    line = long_line(place, HEAD + b'{},{"a":"' + CANARY.encode() + b'" 1}]}')
    with line, pytest.raises(DataError) as caught:
        line.envelope()
    assert caught.value.context == "x.ndjson:7 entry 1"
    assert CANARY not in caught.value.render()


def test_a_bad_entry_is_named_before_the_place_where_the_line_is_torn(place: Path) -> None:
    with long_line(place, HEAD + b'{},{"a":01},{},{"a":') as line, pytest.raises(DataError) as caught:
        line.envelope()
    assert caught.value.context == "x.ndjson:7 entry 1"


@pytest.mark.parametrize("most", [1, 30, 31, 32, 1000])
def test_the_entries_come_in_parts_as_well(place: Path, most: int) -> None:
    entries = [{"n": "x" * (number % 7)} for number in range(40)]
    text = b" , ".join(json.dumps(one).encode() for one in entries)
    with long_line(place, HEAD + text + b"]}", piece=8) as line:
        parts = list(line.parts(most))
    assert [one for part in parts for one in json.loads(part)] == entries
    assert all(len(part) <= most + len("[]") or len(json.loads(part)) == 1 for part in parts)
    assert len(parts) == {1: 40, 1000: 1}.get(most, len(parts))


def test_a_bundle_without_entries_has_no_parts(place: Path) -> None:
    with long_line(place, HEAD + b" ]}") as line:
        assert list(line.parts(10)) == []


@pytest.mark.parametrize("piece", [5, 1 << 18])
@pytest.mark.parametrize("depth", [*range(12), 200])
def test_entries_of_any_depth_end_where_they_end(place: Path, depth: int, piece: int) -> None:
    deep = b'{"b":[2,"]}"]},' * 2 + b'[{"a":' * depth + b'"}"' + b"}]" * depth
    entries = [b'{"a":[%b],"c":{}}' % deep, b"{}"]
    with long_line(place, HEAD + b",".join(entries) + b"]}", piece=piece) as line:
        assert list(line.entries()) == entries


def test_after_the_envelope_the_entries_raise_nothing(place: Path) -> None:
    with long_line(place, HEAD + b'{},{"a":"\xff"}]}') as line, pytest.raises(DataError):
        next(line.entries())  # found before the first one is given out


# Lines of a file


@given(
    content=st.lists(st.sampled_from([b"", b"{}", b" ", b"\r", b"x" * 7, b"y" * 30, b"\xef\xbb\xbf"]), max_size=12),
    end=st.sampled_from([b"", b"\n", b"\r\n"]),
    limit=st.integers(1, 32),
    compressed=st.booleans(),
)
def test_the_lines_are_what_stands_between_line_feeds_whatever_the_limit(
    place: Path, content: list[bytes], end: bytes, limit: int, compressed: bool
) -> None:
    stored = b"\n".join(content) + end
    path = place / "x.ndjson"
    path.write_bytes(zstandard.compress(stored) if compressed else stored)
    stripped = [text.removesuffix(b"\r") for text in stored.removeprefix(b"\xef\xbb\xbf").split(b"\n")]
    expected = [(number, len(line) > limit, line) for number, line in enumerate(stripped, 1) if line.strip()]
    assert lines(path, limit) == expected


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b""])
def test_a_line_of_many_pieces_is_long_above_the_limit_and_only_above(
    tmp_path: Path, ending: bytes, compressed: bool
) -> None:
    size = 3_000_000
    stored = b"\xef\xbb\xbf" + b"a" * size + b"\n{}\n\n" + b"b" * (size + 1) + ending
    path = tmp_path / "x.ndjson.zst"
    path.write_bytes(zstandard.compress(stored) if compressed else stored)
    short, middle, long = lines(path, size)
    assert short == (1, False, b"a" * size)
    assert middle == (2, False, b"{}")
    assert long == (4, True, b"b" * (size + 1))
    assert [number for number, is_long, _ in lines(path, size - 1) if is_long] == [1, 4]


def test_a_long_line_has_neither_the_byte_order_mark_nor_the_line_end(tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson"
    path.write_bytes(b"\xef\xbb\xbf" + HEAD + b"{}]}\r\n" + HEAD + b"{}]}\r\n")
    for number, line in lines_with_long(path, limit=1, spool=tmp_path):
        assert isinstance(line, LongLine)
        assert line.number == number
        assert line.whole() == HEAD + b"{}]}"
        assert line.size == len(HEAD + b"{}]}")
        assert line.envelope().around()[1] == b"]}"


def test_a_long_line_of_white_space_is_blank(tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson"
    path.write_bytes(b" " * 1_000_000 + b"\n{}\n")
    assert lines(path, 100) == [(2, False, b"{}")]


def test_the_spool_is_private_and_nothing_stays_in_it(tmp_path: Path) -> None:
    path, spool = tmp_path / "x.ndjson", tmp_path / "job" / "spool"
    path.write_bytes(HEAD + b"{}]}\n" + HEAD + b"{}]}\n")
    for _, line in lines_with_long(path, limit=1, spool=spool):
        assert isinstance(line, LongLine)
        assert list(line.entries()) == [b"{}"]
        assert stat.S_IMODE(spool.stat().st_mode) == 0o700
        assert stat.S_IMODE(os.fstat(line._spool._handle).st_mode) == 0o600
        assert list(spool.iterdir()) == []
    assert list(spool.iterdir()) == []


def test_nothing_is_spooled_when_no_line_is_long(tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson"
    path.write_bytes(b"{}\n")
    assert lines(path, 2) == [(1, False, b"{}")]
    assert not (tmp_path / "spool").exists()


def test_a_line_is_given_back_when_the_next_one_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson"
    path.write_bytes(b"first\nsecond\n")
    found = lines_with_long(path, limit=1, spool=tmp_path)
    _, first = next(found)
    _, second = next(found)
    assert isinstance(first, LongLine)
    assert isinstance(second, LongLine)
    with pytest.raises(StorageError):
        first.whole()
    assert second.whole() == b"second"
    found.close()
    with pytest.raises(StorageError):
        second.whole()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("size", [10_000, 5_000_000])
def test_a_full_disk_is_a_storage_error_that_names_the_directory(tmp_path: Path, size: int) -> None:
    class FullDisk(Spool):
        def __init__(self, directory: Path) -> None:
            super().__init__(directory)
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, self._handle)
            os.close(full)

    with FullDisk(tmp_path / "spool") as spool, pytest.raises(StorageError) as caught:
        spool.write(b"x" * size)
    assert caught.value.reference == "disk-full"
    assert caught.value.context is not None
    assert caught.value.context.endswith("spool")


def test_a_spool_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson"
    path.write_bytes(b"x" * 600_000)
    with pytest.raises(StorageError):
        list(lines_with_long(path, limit=1000, spool=path / "below"))
    with pytest.raises(StorageError):
        list(lines_with_long(path, limit=599_999, spool=path / "below"))


def test_a_truncated_zst_is_named_also_within_a_long_line(tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson.zst"
    path.write_bytes(zstandard.compress(os.urandom(1_000_000).hex().encode())[:-100_000])
    with pytest.raises(DataError) as caught:
        list(lines_with_long(path, limit=1000, spool=tmp_path))
    assert caught.value.reference == "zst-truncated"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.ndjson.zst"]


# Memory

MEASURE = """
import sys
from pathlib import Path
from tasks.shared.fhir.long_line import lines_with_long
from tests.bench.measure import peak
before, entries = peak(), 0
for _, line in lines_with_long(Path(sys.argv[1]), limit=1 << 20, spool=Path(sys.argv[2])):
    assert line.resource_type == "Bundle" and line.envelope().id == "b-1"
    entries += sum(1 for _ in line.entries())
print(entries, peak() - before)
"""


def measured(directory: Path, megabytes: int) -> tuple[int, int, int]:
    """A Bundle of that size with entries of 5 KB: entries written, entries read, bytes of memory for reading it."""
    entry = json.dumps({"resource": {"resourceType": "Observation", "note": [{"text": 'a "b" [c] {d'}] * 160}}).encode()
    count = megabytes * 1_000_000 // len(entry)
    path = directory / "x.ndjson"
    with path.open("wb") as file:
        file.write(HEAD + entry)
        for _ in range(count - 1):
            file.write(b"," + entry)
        file.write(b"]}\n")
    command = [sys.executable, "-c", MEASURE, str(path), str(directory)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[4])
    path.unlink()
    read, memory = map(int, result.stdout.split())
    return count, read, memory


@pytest.mark.slow
def test_a_bundle_of_60_mb_needs_a_few_mb_of_memory(tmp_path: Path) -> None:
    written, read, memory = measured(tmp_path, 60)
    assert read == written
    assert memory < 30_000_000
