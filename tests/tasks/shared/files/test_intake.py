"""Checking NDJSON and taking foreign files in: ``tasks/shared/files``."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import traceback
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from config import CompressionConfig
from tasks.shared.errors import DataError
from tasks.shared.files.check import LineCheck
from tasks.shared.files.intake import FileFacts, FileLedger, Intake, facts_of
from tasks.shared.stop import Stop
from tests.peers.lines import read_lines

PLAIN = CompressionConfig(enabled=False)
ZST = CompressionConfig(enabled=True)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=5), children, max_size=4),
    max_leaves=10,
)
resources = st.dictionaries(st.text(max_size=8), json_values, max_size=5)


class Chunks:
    """A source that returns the given pieces for any requested size, as a network does."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = [piece for piece in pieces if piece]

    def read(self, size: int, /) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, position = [], 0
    for size in sizes:
        pieces.append(data[position : position + size])
        position += size
    return [*pieces, data[position:]]


def check(*pieces: bytes) -> LineCheck:
    checking = LineCheck("x.ndjson")
    for piece in pieces:
        checking.feed(piece)
    checking.finish()
    return checking


def failure(*pieces: bytes) -> DataError:
    with pytest.raises(DataError) as caught:
        check(*pieces)
    return caught.value


@pytest.mark.slow
@given(
    objects=st.lists(resources, max_size=12),
    ascii_only=st.booleans(),
    end=st.sampled_from([b"\n", b"\r\n", b"\n\n", b" \n"]),
    final=st.booleans(),
    mark=st.booleans(),
    sizes=st.lists(st.integers(min_value=1, max_value=60), max_size=30),
)
def test_every_json_object_is_one_line_however_the_bytes_arrive(
    objects: list[dict[str, object]], ascii_only: bool, end: bytes, final: bool, mark: bool, sizes: list[int]
) -> None:
    text = [
        json.dumps(each, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()
        for each in objects
    ]
    data = (b"\xef\xbb\xbf" if mark else b"") + end.join(text) + (end if final else b"")
    checked = check(*cut(data, sizes))
    assert checked.lines == len(objects)
    assert checked.bytes == len(data)


@given(
    before=st.integers(min_value=0, max_value=5),
    bad=st.sampled_from(
        [
            b'{"a":1',
            b'{"a":01}',
            b'{"a":1}{"b":2}',
            b'{"a":1},{"b":2}',
            b"{'a':1}",
            b'{"a":NaN}',
            b'{"a":1,}',
            b'{"a" 1}',
            b"{",
            b'{"a":"\x01"}',
            b'{"a":tru}',
            b"{}x",
        ]
    ),
    sizes=st.lists(st.integers(min_value=1, max_value=20), max_size=20),
)
def test_a_line_that_is_no_json_is_named_with_its_number(before: int, bad: bytes, sizes: list[int]) -> None:
    error = failure(*cut(b'{"ok":true}\n' * before + bad + b'\n{"ok":true}\n', sizes))
    assert error.reference == "not-json"
    assert error.context == f"x.ndjson:{before + 1}"


@given(
    before=st.integers(min_value=0, max_value=5), sizes=st.lists(st.integers(min_value=1, max_value=20), max_size=20)
)
def test_bytes_that_are_not_utf8_are_named_with_their_line(before: int, sizes: list[int]) -> None:
    error = failure(*cut('{"ok":"ä€𝄞"}\n'.encode() * before + b'{"a":"M\xfcller"}\n{}\n', sizes))
    assert error.reference == "not-utf8"
    assert error.context == f"x.ndjson:{before + 1}"


def test_the_first_error_of_a_piece_is_reported() -> None:
    error = failure(b'{"a":1}\n{"a":}\n{"a":"\xff"}\n')
    assert (error.reference, error.context) == ("not-json", "x.ndjson:2")


def test_a_character_cut_off_at_the_end_of_the_file_is_not_utf8() -> None:
    assert failure(b"{}\n\xc3").reference == "not-utf8"


@pytest.mark.parametrize("line", [b"[1]", b"1", b'"text"', b"null", b"true", b"-1.5"])
@pytest.mark.parametrize("before", [b"", b"{}\n"])
def test_json_that_is_no_object_is_named(before: bytes, line: bytes) -> None:
    error = failure(before + line + b"\n")
    assert error.reference == "not-object"
    assert error.context == f"x.ndjson:{2 if before else 1}"


def test_blank_lines_count_for_numbers_and_not_for_lines() -> None:
    assert check(b'\n\n{"a":1}\n \r\n{"b":2}\n\n').lines == 2
    assert failure(b'\n\n{"a":1}\n\n{"b":}\n').context == "x.ndjson:5"
    assert failure(b"\n \n", b"\n<html>").context == "x.ndjson:4"


def test_too_deep_nesting_is_an_error_not_a_crash() -> None:
    assert failure(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}\n").reference == "not-json"


@pytest.mark.parametrize(
    ("head", "word"),
    [
        (b"<!DOCTYPE html><html><body>Please log in", "HTML"),
        (b'\xef\xbb\xbf  <?xml version="1.0"?>', "XML"),
        (b'[{"resourceType":"Patient"}', "array"),
        (b"PK\x03\x04", "archive"),
        (b"resourceType,id", "NDJSON"),
    ],
)
def test_what_cannot_be_ndjson_is_refused_at_its_first_bytes(head: bytes, word: str) -> None:
    checking = LineCheck("x.ndjson")
    with pytest.raises(DataError) as caught:
        checking.feed(head)  # no line end yet: nothing more needs to arrive
    assert word in caught.value.message
    assert caught.value.context == "x.ndjson:1"


def test_a_gzip_file_is_refused_with_a_hint() -> None:
    checking = LineCheck("x.ndjson")
    with pytest.raises(DataError) as caught:
        checking.feed(b"\x1f\x8b\x08\x00\x00\x00\x00\x00")
    assert "compressed" in caught.value.message


@pytest.mark.parametrize(
    "data",
    [b'{"a":CANARY-1}\n', b'{"a":"CANARY-1\xff"}\n', b"CANARY-1\n", b'["CANARY-1"]\n', b'"CANARY-1"\n', b'{"CANARY-1"'],
)
def test_no_error_quotes_the_content(data: bytes) -> None:
    error = failure(data)
    shown = error.render() + repr(error) + "".join(traceback.format_exception(error))
    assert "CANARY" not in shown


# Intake


def take_in(directory: Path, compression: CompressionConfig, *pieces: bytes) -> FileFacts:
    with Intake(directory, "x", compression, name="source.ndjson") as intake:
        intake.run(Chunks(*pieces))
        return intake.commit()


@pytest.mark.slow
@given(
    lines=st.lists(resources, max_size=10),
    final=st.booleans(),
    stored_zst=st.booleans(),
    enabled=st.booleans(),
    sizes=st.lists(st.integers(min_value=1, max_value=80), max_size=30),
)
def test_content_comes_in_unchanged_from_either_form_into_either_form(
    lines: list[dict[str, object]], final: bool, stored_zst: bool, enabled: bool, sizes: list[int]
) -> None:
    content = b"\r\n".join(json.dumps(line).encode() for line in lines) + (b"\n" if final else b"")
    stored = zstandard.compress(content) if stored_zst else content
    with tempfile.TemporaryDirectory() as name:
        facts = take_in(Path(name), CompressionConfig(enabled=enabled), *cut(stored, sizes))
        assert facts.name == ("x.ndjson.zst" if enabled else "x.ndjson")
        data = Path(name, facts.name).read_bytes()
        assert facts.lines == len(lines)
        assert facts.content_bytes == len(content)
        assert facts.stored_bytes == len(data)
        assert facts.sha256 == hashlib.sha256(data).hexdigest()
        if enabled:
            data = b"" if not data else zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
        assert data == content


def test_zst_data_is_stored_as_it_came_when_compression_is_enabled(tmp_path: Path) -> None:
    stored = zstandard.ZstdCompressor(level=19).compress(b'{"a":1}\n') + zstandard.compress(b'{"b":2}\n')
    facts = take_in(tmp_path, ZST, stored)
    assert (tmp_path / facts.name).read_bytes() == stored
    assert facts.lines == 2


@pytest.mark.parametrize("compression", [PLAIN, ZST])
@pytest.mark.parametrize(
    ("data", "reference"),
    [
        (b'{"a":1}\n{"b":\n', "not-json"),
        (zstandard.compress(b'{"a":1}\n' * 100)[:-6], "zst-truncated"),
        (zstandard.compress(b'{"a":1}\n{"b":\n'), "not-json"),
        (b"<html>", "not-json"),
    ],
)
def test_bad_data_leaves_nothing_behind(
    tmp_path: Path, compression: CompressionConfig, data: bytes, reference: str
) -> None:
    with pytest.raises(DataError) as caught:
        take_in(tmp_path, compression, data)
    assert caught.value.reference == reference
    assert str(caught.value.context).startswith("source.ndjson")
    assert not tmp_path.exists() or names(tmp_path) == []


@pytest.mark.parametrize("compression", [PLAIN, ZST], ids=["stored plain", "stored as it came"])
@pytest.mark.parametrize("line", [b'{"a":', b'{"a":"\xff"}'], ids=["no JSON", "no UTF-8"])
def test_a_bad_line_in_zst_data_hints_at_a_damaged_file(
    tmp_path: Path, compression: CompressionConfig, line: bytes
) -> None:
    """A changed byte in compressed literals decompresses without complaint, into something that is no JSON."""
    packed = zstandard.compress(b'{"a":1}\n' + line + b"\n")
    with pytest.raises(DataError) as caught, Intake(tmp_path, "x", compression, name="x") as intake:
        intake.run(Chunks(packed))
    assert caught.value.context == "x:2"
    assert "damaged" in (caught.value.hint or "")
    assert names(tmp_path) == []


@pytest.mark.parametrize("data", [b"", b"\n\n", zstandard.compress(b""), zstandard.compress(b"\n")])
def test_data_without_a_line_is_an_error_where_it_must_not_be_empty(tmp_path: Path, data: bytes) -> None:
    with Intake(tmp_path, "x", ZST, name="source.ndjson") as intake:
        intake.run(Chunks(data))
        with pytest.raises(DataError) as caught:
            intake.commit(allow_empty=False)
    assert caught.value.reference == "empty-file"
    assert names(tmp_path) == []


def test_an_intake_stored_plain_goes_on_where_a_source_broke_off(tmp_path: Path) -> None:
    with Intake(tmp_path, "x", PLAIN, name="source.ndjson") as intake:
        assert not intake.resumable
        intake.run(Chunks(b'{"a":1}\n{"b"'))
        assert intake.resumable
        intake.run(Chunks(b":2}\n"))
        facts = intake.commit()
    assert facts.lines == 2
    assert (tmp_path / facts.name).read_bytes() == b'{"a":1}\n{"b":2}\n'


@pytest.mark.slow
@pytest.mark.parametrize("compression", [PLAIN, ZST])
def test_memory_stays_bounded_by_pieces_however_far_zst_expands(tmp_path: Path, compression: CompressionConfig) -> None:
    line = b'{"a":"' + b"z" * 1000 + b'"}\n'
    stored = zstandard.compress(line * 50_000)  # 50 MB from a few KB
    tracemalloc.start()
    try:
        facts = take_in(tmp_path, compression, stored)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert facts.lines == 50_000
    assert peak < 5_000_000


def test_a_long_line_is_held_once(tmp_path: Path) -> None:
    size = 20_000_000
    path = tmp_path / "x.ndjson"
    path.write_bytes(b'{"a":"' + b"q" * size + b'"}\n')
    tracemalloc.start()
    try:
        facts_of(path, Stop())
        checked = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        assert sum(len(line) for line in read_lines(path)) == size + 8
        read = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert checked < size * 1.25 + 2_000_000
    assert read < size * 1.25 + 2_000_000


# Ledger of finished files


FACTS = FileFacts(
    name="x.ndjson", lines=2, content_bytes=16, stored_bytes=16, sha256="0" * 64, resources=2, bytes_in=16
)


def test_a_ledger_remembers_finished_files_over_a_restart(tmp_path: Path) -> None:
    (tmp_path / "x.ndjson").write_bytes(b'{"a":1}\n{"b":2}\n')
    FileLedger(tmp_path / "state" / "files.ndjson").add(FACTS)
    assert FileLedger(tmp_path / "state" / "files.ndjson").get(tmp_path / "x.ndjson") == FACTS


@pytest.mark.parametrize("plant", ["link", "pipe"])
def test_a_ledger_that_is_a_link_or_a_pipe_is_neither_read_nor_written_into(tmp_path: Path, plant: str) -> None:
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "state" / "files.ndjson"
    (tmp_path / "x.ndjson").write_bytes(b"x" * FACTS.stored_bytes)
    FileLedger(path).add(FACTS)
    before = path.read_bytes()
    path.unlink()
    elsewhere.write_bytes(before)
    if plant == "link":
        path.symlink_to(elsewhere)
    else:
        os.mkfifo(path)
    ledger = FileLedger(path)
    assert ledger.get(tmp_path / "x.ndjson") is None
    ledger.add(FACTS)
    assert elsewhere.read_bytes() == before
    assert path.is_file()
    assert not path.is_symlink()
    assert FileLedger(path).get(tmp_path / "x.ndjson") == FACTS


def test_a_torn_last_line_of_a_ledger_is_ignored_and_written_after(tmp_path: Path) -> None:
    path = tmp_path / "files.ndjson"
    (tmp_path / "x.ndjson").write_bytes(b'{"a":1}\n{"b":2}\n')
    path.write_bytes(b'{"name":"y.ndj')
    FileLedger(path).add(FACTS)
    assert FileLedger(path).get(tmp_path / "x.ndjson") == FACTS


def test_a_file_that_no_longer_has_its_recorded_size_is_not_known(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path / "files.ndjson")
    ledger.add(FACTS)
    (tmp_path / "x.ndjson").write_bytes(b'{"a":1}\n')
    assert ledger.get(tmp_path / "x.ndjson") is None
