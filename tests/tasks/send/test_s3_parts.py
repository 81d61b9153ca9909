"""The small rules of ``s3_upload``: keys, content types, files and their sections, sizes of parts, refusals."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zlib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.send.comparison import InputComparison
from tasks.send.s3.files import (
    FileSection,
    OpenFile,
    Uploaded,
    content_type,
    job_prefix,
    object_key,
    timestamp,
    write_manifest,
)
from tasks.send.s3.refusal import BUSY_CODES, DAMAGED_CODES, FULL_CODES, REGION_CODES, Refusal
from tasks.send.s3.upload import MIB, Sizes
from tasks.shared.errors import DataError, InputError, Stopped
from tasks.shared.files.inventory import take_inventory
from tasks.shared.http.answer import RequestContext
from tasks.shared.stop import Stop
from tests.conftest import examples

WHERE = RequestContext("send", "upload", "PUT", "https://store.example/bucket/key?partNumber=1&uploadId=canary")


def nothing() -> None:
    """A check that never stops."""


def compared(directory: Path) -> InputComparison:
    return InputComparison(directory, directory, take_inventory(directory, [directory], stop=Stop()))


def opened(directory: Path) -> OpenFile:
    """Return the only file of a directory."""
    found = compared(directory)
    (path,) = found.files()
    return OpenFile(found, path)


# Keys


@pytest.mark.parametrize(
    ("prefix", "expected"), [(None, "j/"), ("", "j/"), ("/", "j/"), ("a", "a/j/"), ("a/", "a/j/"), ("/a/b/", "a/b/j/")]
)
def test_a_key_begins_with_prefix_and_job_id(prefix: str | None, expected: str) -> None:
    assert job_prefix(prefix, "j") == expected
    assert object_key(expected, "csv/x.csv") == f"{expected}csv/x.csv"


def test_the_limit_of_a_key_is_in_bytes_not_in_letters() -> None:
    assert len(object_key("j/", "ä" * 511).encode()) == 1024
    with pytest.raises(InputError):
        object_key("j/", "ä" * 511 + "a")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("core.ndjson.zst", "application/zstd"),
        ("CORE.NDJSON.ZST", "application/zstd"),
        ("a.ndjson", "application/fhir+ndjson"),
        ("A.NDJSON", "application/fhir+ndjson"),
        ("dir/a.csv", "text/csv; charset=utf-8"),
        ("a.json", "application/json"),
        ("a", "application/octet-stream"),
        ("ndjson", "application/octet-stream"),
    ],
)
def test_content_types(name: str, kind: str) -> None:
    assert content_type(name) == kind


# Files


def test_core_comes_first_then_names_in_order_then_subdirectories_by_path(tmp_path: Path) -> None:
    for name in ("b.ndjson", "a.ndjson", "core.ndjson.zst", "sub/a.csv", "Z.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = compared(tmp_path)
    names = [found.name(path) for path in found.files()]
    assert names == ["core.ndjson.zst", "Z.csv", "a.ndjson", "b.ndjson", "sub/a.csv"]


def test_a_directory_that_is_not_there_has_nothing_to_send_as_in_the_other_modes(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        compared(tmp_path / "nowhere").files()
    assert caught.value.reference == "send-no-input"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("large")
    (directory / "a.ndjson").write_bytes(os.urandom(700_001))
    return directory


def test_digests_are_those_of_the_bytes(large: Path) -> None:
    content = (large / "a.ndjson").read_bytes()
    with opened(large) as file:
        assert (file.size, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
        part = FileSection(file, 600_000, 100_001, nothing)
        assert part.md5 == hashlib.md5(content[600_000:]).digest()
        assert int.from_bytes(part.crc32, "big") == zlib.crc32(content[600_000:])


@settings(max_examples=examples(60))
@given(
    start=st.integers(0, 700_001),
    length=st.integers(0, 700_001),
    moves=st.lists(
        st.one_of(
            st.tuples(st.just("read"), st.one_of(st.none(), st.integers(-1, 400_000))),
            st.tuples(st.just("seek"), st.integers(0, 700_001)),
            st.tuples(st.just("back"), st.integers(-400_000, 0)),
            st.tuples(st.just("end"), st.integers(-400_000, 0)),
        ),
        max_size=8,
    ),
)
def test_a_section_reads_seeks_and_measures_like_a_file_of_its_bytes(
    large: Path, start: int, length: int, moves: list[tuple[str, int]]
) -> None:
    content = (large / "a.ndjson").read_bytes()
    length = min(length, len(content) - start)
    model = io.BytesIO(content[start : start + length])
    with opened(large) as file:
        section = FileSection(file, start, length, nothing)
        for move, number in moves:
            if move == "read":
                assert section.read(number) == model.read(number)
            elif move == "seek":
                assert section.seek(number) == model.seek(number)
            else:
                whence = io.SEEK_CUR if move == "back" else io.SEEK_END
                assert section.seek(number, whence) == model.seek(number, whence)
            assert section.tell() == model.tell()


def test_a_section_stops_when_it_is_asked_to(large: Path) -> None:
    def stop() -> None:
        raise Stopped("SIGTERM")

    with opened(large) as file:
        section = FileSection(file, 0, 10, stop)
        for reading in (lambda: section.read(1), lambda: section.md5, lambda: section.crc32):
            with pytest.raises(Stopped):
                reading()


def test_a_file_that_was_replaced_is_not_the_one_that_was_found(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"one")
    with opened(tmp_path) as file:
        file.verify()
        (tmp_path / "b").write_bytes(b"two")
        (tmp_path / "b").replace(path)
        with pytest.raises(DataError) as caught:
            file.verify()
    assert caught.value.reference == "send-input-changed"


# Parts


@pytest.mark.parametrize(
    ("size", "part"),
    [
        (64 * MIB + 1, 32 * MIB),
        (10_000 * 32 * MIB, 32 * MIB),
        (10_000 * 32 * MIB + 1, 33 * MIB),
        (5 * 1024**4, 525 * MIB),
    ],
)
def test_parts_grow_so_that_there_are_never_more_than_ten_thousand(size: int, part: int) -> None:
    assert Sizes().part_size(size) == part
    assert -(-size // part) <= 10_000


def test_files_up_to_64_mib_go_in_one_request() -> None:
    assert Sizes().threshold == 64 * 1024 * 1024


# Refusals


def refusal(status: int, code: str = "", region: str | None = None, **headers: str) -> Refusal:
    return Refusal(WHERE, status, code, region, headers)


@pytest.mark.parametrize("code", sorted(BUSY_CODES | DAMAGED_CODES))
def test_busy_and_damaged_are_transient_under_any_status(code: str) -> None:
    assert refusal(400, code).error().transient
    assert refusal(503, code).error().transient


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 520, 599])
def test_busy_statuses_are_transient(status: int) -> None:
    assert refusal(status).error().transient


@pytest.mark.parametrize("code", sorted(FULL_CODES))
def test_a_full_store_is_terminal_under_any_status(code: str) -> None:
    for status in (400, 403, 503, 507):
        error = refusal(status, code).error()
        assert (error.reference, error.transient) == ("s3-store-full", False)


@pytest.mark.parametrize("code", sorted(REGION_CODES))
def test_a_region_is_named_only_when_it_looks_like_one(code: str) -> None:
    assert "eu-west-3" in refusal(400, code, "eu-west-3").error().render()
    assert "canary" not in refusal(400, code, "canary <b>").error().render()


def test_a_refusal_names_operation_host_status_and_code_but_no_query() -> None:
    error = refusal(400, "InvalidArgument").error()
    assert error.render().splitlines()[0] == (
        "error[s3-refused]: send: upload was answered 400 InvalidArgument by store.example: the store refuses"
    )
    assert "PUT https://store.example/bucket/key\n" in error.render()
    assert "canary" not in error.render()


@given(code=st.text(max_size=80))
def test_what_is_no_code_is_not_shown(code: str) -> None:
    shown = refusal(400, code).error().message
    assert "\n" not in shown
    assert len(shown) < 250


def test_the_clock_error_says_by_how_much() -> None:
    now = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
    message = refusal(403, "RequestTimeTooSkewed", date="Mon, 02 Mar 2026 09:10:00 GMT").error(now).message
    assert "differ by 1,200 s, this one is ahead" in message


# The manifest


def test_the_manifest_is_a_list_in_the_order_of_the_keys(tmp_path: Path) -> None:
    moment = timestamp(datetime(2026, 3, 2, 9, 15, 40, 123456, tzinfo=UTC))
    path = write_manifest(
        tmp_path / "send", [Uploaded("j/b", 1, "s", "e", moment), Uploaded("j/a", 2, "t", "f", moment)]
    )
    assert path == tmp_path / "send" / "upload_manifest.json"
    assert json.loads(path.read_text()) == [
        {"key": "j/a", "size": 2, "sha256": "t", "etag": "f", "time": "2026-03-02T09:15:40Z"},
        {"key": "j/b", "size": 1, "sha256": "s", "etag": "e", "time": "2026-03-02T09:15:40Z"},
    ]
    assert [entry.name for entry in path.parent.iterdir()] == ["upload_manifest.json"]
