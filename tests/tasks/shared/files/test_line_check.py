"""The check of every imported line, and the reading of lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tasks.shared.errors import DataError
from tasks.shared.files.line_check import ExportLogError, LineCheck
from tasks.shared.files.ndjson import lines
from tasks.shared.files.zstd import decompressed, is_zstd
from tests.peers.data import CANARY, bundle, patient, resource

PATIENT = json.dumps(patient("p")).encode()
ERROR = {"resourceType": "OperationOutcome", "issue": [{"severity": "error", "diagnostics": CANARY}]}
WARNING = {"resourceType": "OperationOutcome", "issue": [{"severity": "warning"}]}


def check(content: bytes, size: int = 1 << 20, most: int = 1 << 20) -> LineCheck:
    found = LineCheck("file.ndjson", most)
    for start in range(0, len(content), size):
        found.feed(content[start : start + size])
    found.finish()
    return found


def text(*values: Any) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


@given(st.integers(1, 60), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_it_counts_the_same_however_the_bytes_come(size: int, end: bytes, ended: bool) -> None:
    line = text(bundle(patient("a"), resource("Basic", "ü")))[:-1]
    content = end.join([PATIENT, b"", b"  ", line, PATIENT]) + (end if ended else b"")
    found = check(content, size)
    assert (found.lines, found.resources, found.bytes) == (3, 4, len(content))
    assert found.types == {"Patient": 2, "Bundle": 1}


@pytest.mark.parametrize(
    ("content", "reference", "line"),
    [
        (b"\xef\xbb\xbf" + PATIENT, "bom", 1), (b"\x1f\x8b\x08rest", "archive", 1), (b"PK\x03\x04rest", "archive", 1),
        (zstandard.compress(zstandard.compress(PATIENT)), "archive", 1),
        (b"<!DOCTYPE html><html>", "not-json", 1), (PATIENT + b"\n<html>", "not-json", 2),
        (b'{\n  "resourceType": "Patient"\n}', "not-json", 1), (PATIENT[:-1], "not-json", 1),
        (b"name,birthdate\n", "not-json", 1), (b"[" + PATIENT + b"]", "not-object", 1), (b"17\n", "not-object", 1),
        (b'{"resourceType":"Patient","x":"\xff"}', "not-utf8", 1),
        (PATIENT + b'\n{"resourceType":"Patient","x":"\\ud83d"}', "unpaired-surrogate", 2),
        (b'{"resourceType":"Patient","x":NaN}', "not-json", 1), (b'{"id":"x"}', "not-a-resource", 1),
        (b'{"resourceType":"patient"}', "not-a-resource", 1), (b'{"resourceType":7}', "not-a-resource", 1),
        (b"\n\n \n", "empty-file", None), (b"", "empty-file", None),
        (text(resource("Binary", "b", contentType="application/fhir+ndjson", data="e30=")), "data-in-binary", 1),
        (text(bundle(patient("a"), ERROR)), "source-error", 1), (text(ERROR), "source-error", 1),
        (text(bundle(patient("a"), kind="searchset", total=2)), "source-incomplete", 1),
        (text(bundle(patient("a"), kind="searchset", link=[{"relation": "next"}])), "source-incomplete", 1),
        (text({"resourceType": "Bundle", "entry": {}}), "not-a-resource", 1),
        (PATIENT + b"\n" + b'{"resourceType":"Patient","x":"' + b"y" * 3000 + b'"}', "line-too-large", 2),
    ],
)  # fmt: skip
def test_what_is_no_data_is_an_error_with_file_line_and_the_true_reason(
    content: bytes, reference: str, line: int | None
) -> None:
    for size in (7, 1 << 20):
        with pytest.raises(DataError) as caught:
            check(content, size, most=2000)
        assert caught.value.reference == reference
        assert caught.value.context == (f"file.ndjson:{line}" if line else "file.ndjson")
        assert CANARY not in caught.value.render()


@pytest.mark.parametrize(
    "content",
    [
        text(bundle(patient("a"), kind="searchset", total=1)), text(WARNING, patient("a")), text(bundle()),
        text({"resourceType": "Bundle", "type": "collection"}), text(bundle(patient("a"), WARNING)),
        text(resource("Binary", "b", contentType="image/png")), b'{"resourceType":"Patient","v":1E2,"w":-0.0}\n',
    ],
)  # fmt: skip
def test_what_is_unusual_and_whole_is_data(content: bytes) -> None:
    assert check(content).lines


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_fits_into_its_limit_or_is_an_error_with_its_place(tmp_path: Path, packed: bool) -> None:
    path, content = tmp_path / "f", b"x\n" + b"y" * (3 << 20)
    path.write_bytes(zstandard.compress(content) if packed else content)
    assert [len(line) for _, line in lines(path, 3 << 20)] == [1, 3 << 20]
    with pytest.raises(DataError) as caught:
        list(lines(path, 2 << 20))
    assert (caught.value.reference, caught.value.context) == ("line-too-large", "f:2")


def test_the_log_of_an_export_is_told_from_data() -> None:
    with pytest.raises(ExportLogError):
        check(text({"exportId": "e1", "eventId": "kickoff"}))


@given(st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=8), st.booleans())
def test_lines_have_their_numbers_whether_packed_or_not(
    tmp_path_factory: Any, found: list[bytes], packed: bool
) -> None:
    path: Path = tmp_path_factory.mktemp("lines") / "f"
    content = b"\n".join(found)
    path.write_bytes(zstandard.compress(content) if packed else content)
    expected = [(number, line) for number, line in enumerate(found, 1) if line.strip()]
    if not is_zstd(content):
        assert [*lines(path, 1000)] == expected


def test_a_line_above_the_limit_is_named_before_it_is_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "f.ndjson"
    path.write_bytes(b"a\n" + b"b" * 3_000_000 + b"\n")
    with pytest.raises(DataError, match="larger than 1 MiB") as caught:
        [*lines(path, 1 << 20)]
    assert caught.value.context == "f.ndjson:2"


def test_frames_follow_each_other_and_a_cut_one_is_an_error() -> None:
    skipped = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    whole = zstandard.compress(b"one") + skipped + zstandard.compress(b"two" * 100_000)
    for size in (1, 1000, len(whole)):
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        assert b"".join(decompressed(pieces, "f")) == b"one" + b"two" * 100_000
    for damaged, reference in ((whole[:-3], "zst-truncated"), (whole[:-9] + b"123456789", "zst-corrupt")):
        with pytest.raises(DataError) as caught:
            [*decompressed([damaged], "f")]
        assert caught.value.reference == reference
