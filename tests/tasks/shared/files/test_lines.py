"""Reading and writing data files: ``tasks/shared/files``."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from config import CompressionConfig
from tasks.shared.errors import DataError, StorageError
from tasks.shared.files.compression import is_compressed
from tasks.shared.files.data_directory import base_name, data_files, is_consent_name, is_ndjson_name
from tasks.shared.files.intake import facts_of
from tasks.shared.files.resumable import ResumableWriter
from tasks.shared.stop import Stop
from tests.peers.lines import numbered_lines, read_lines

PLAIN = CompressionConfig(enabled=False)
ZST = CompressionConfig(enabled=True)
LEVELS = ("fastest", "default", "better", "best")

lines_of_json = st.lists(
    st.binary(min_size=1, max_size=300).map(lambda data: b'{"a":"%s"}' % data.hex().encode()), max_size=60
)


def write(directory: Path, lines: list[bytes], compression: CompressionConfig, base: str = "x") -> Path:
    with ResumableWriter(directory, base, compression) as writer:
        for line in lines:
            writer.write(line)
            writer.end_line()
        writer.finish()
        return writer.publish()


@given(lines=lines_of_json, enabled=st.booleans())
def test_lines_written_are_the_lines_read_in_both_forms(lines: list[bytes], enabled: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = write(Path(name), lines, CompressionConfig(enabled=enabled))
        assert read_lines(path) == lines
        assert facts_of(path, Stop()).content_bytes == sum(len(line) + 1 for line in lines)


@given(pieces=st.lists(st.sampled_from([b"{}", b'{"a":1}', b"\n", b"\r\n", b" ", b"\n\n", b"x" * 70]), max_size=40))
def test_reading_splits_at_line_feeds_only_and_skips_blank_lines(pieces: list[bytes]) -> None:
    content = b"".join(pieces)
    expected = [line.removesuffix(b"\r") for line in content.split(b"\n") if line.strip()]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "x.ndjson")
        path.write_bytes(content)
        assert read_lines(path) == expected
        path.write_bytes(zstandard.compress(content))
        assert read_lines(path) == expected


FRAMES = {
    "one frame": [b"first\nsecond\n"],
    "two frames, as zstd -T0 | cat writes them": [b"first\n", b"second\n"],
    "a line over two frames": [b"first\nsec", b"ond"],
    "frames without content": [b"", b"first\nsecond\n", b""],
}
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
"""Of the kind that pzstd writes before each frame."""


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("skippable", [b"", SKIPPABLE])
@pytest.mark.parametrize("name", FRAMES)
def test_zstd_ends_where_a_frame_ends_and_nowhere_else(
    tmp_path: Path, name: str, skippable: bytes, checksum: bool
) -> None:
    path = tmp_path / "x.ndjson.zst"
    packer = zstandard.ZstdCompressor(write_checksum=checksum)
    frames = [part for content in FRAMES[name] for part in (skippable, packer.compress(content)) if part]
    whole = b"".join(frames)
    ends = {sum(map(len, frames[:count])) for count in range(len(frames) + 1)}
    path.write_bytes(whole)
    assert is_compressed(whole[:4])
    assert read_lines(path) == [b"first", b"second"]
    wrong = [whole[:size] for size in range(4, len(whole)) if size not in ends]
    wrong += [
        whole + more for more in (b"x", b"\0", b"\n" * 9, b"\0" * 512, whole[:5], SKIPPABLE[:9], b"PK\x03\x04more")
    ]
    for stored in wrong:
        path.write_bytes(stored)
        with pytest.raises(DataError) as caught:
            read_lines(path)
        assert caught.value.reference in ("zst-truncated", "zst-corrupt")


@pytest.mark.parametrize("compression", [PLAIN, ZST])
def test_a_line_longer_than_any_buffer_is_one_line(tmp_path: Path, compression: CompressionConfig) -> None:
    lines = [b"{}", b'{"a":"' + b"y" * 3_000_000 + b'"}', b"{}"]
    assert read_lines(write(tmp_path, lines, compression)) == lines


def test_a_last_line_without_line_feed_counts(tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson"
    path.write_bytes(b'{"a":1}\n{"b":2}')
    assert read_lines(path) == [b'{"a":1}', b'{"b":2}']
    assert facts_of(path, Stop()).lines == 2


def test_a_byte_order_mark_at_the_start_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson"
    path.write_bytes(b'\xef\xbb\xbf{"a":1}\n{"b":2}\n')
    assert read_lines(path) == [b'{"a":1}', b'{"b":2}']
    path.write_bytes(b'\xef\xbb\xbf{"a":1}')
    assert read_lines(path) == [b'{"a":1}']


def test_numbered_lines_count_blank_lines_too(tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson"
    path.write_bytes(b'\n{"a":1}\r\n  \n\n{"b":2}')
    assert numbered_lines(path) == [(2, b'{"a":1}'), (5, b'{"b":2}')]


@pytest.mark.parametrize("name", ["x.ndjson", "x.ndjson.zst"])
def test_the_form_is_told_by_magic_bytes_not_by_the_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(zstandard.compress(b'{"a":1}\n'))
    assert read_lines(path) == [b'{"a":1}']
    path.write_bytes(b'{"a":1}\n')
    assert read_lines(path) == [b'{"a":1}']


def noise(size: int) -> bytes:
    """Hex digits that do not compress well, so that there are several blocks."""
    return b'{"a":"' + hashlib.shake_256(b"seed").hexdigest(size // 2).encode() + b'"}\n'


@pytest.mark.slow
@given(cut=st.integers(min_value=5, max_value=300_000), checksum=st.booleans(), known_size=st.booleans())
def test_a_truncated_zst_is_named_whereever_it_is_cut(cut: int, checksum: bool, known_size: bool) -> None:
    compressor = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=known_size)
    stored = compressor.compress(NOISE)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "x.ndjson.zst")
        path.write_bytes(stored[: min(cut, len(stored) - 1)])
        with pytest.raises(DataError) as caught:
            read_lines(path)
    assert caught.value.reference == "zst-truncated"
    assert caught.value.context == "x.ndjson.zst"


NOISE = noise(400_000)


def test_a_damaged_zst_is_named(tmp_path: Path) -> None:
    stored = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(NOISE))
    stored[100_000] ^= 0xFF
    path = tmp_path / "x.ndjson.zst"
    path.write_bytes(stored)
    with pytest.raises(DataError) as caught:
        read_lines(path)
    assert caught.value.reference == "zst-corrupt"
    assert "x.ndjson.zst" in caught.value.render()


def test_a_file_that_is_gone_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        read_lines(tmp_path / "x.ndjson")
    assert caught.value.reference == "file-vanished"


# Writing


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_of_document_1_writes_zstd_with_a_checksum(tmp_path: Path, level: str) -> None:
    path = write(tmp_path, [NOISE.rstrip()], CompressionConfig.model_validate({"level": level}))
    parameters = zstandard.get_frame_parameters(path.read_bytes()[:64])
    assert parameters.has_checksum
    assert b"".join(read_lines(path)) == NOISE.rstrip()


@pytest.mark.slow
def test_higher_levels_are_at_least_as_small(tmp_path: Path) -> None:
    lines = [b'{"resourceType":"Patient","id":"%d","name":"%x"}' % (n, n * 7919 % 99991) for n in range(20_000)]
    sizes = [
        write(tmp_path, lines, CompressionConfig.model_validate({"level": level}), level).stat().st_size
        for level in LEVELS
    ]
    # The two fast levels may swap places on data as regular as this.
    assert sizes[3] <= sizes[2] <= min(sizes[:2])


# Names


@pytest.mark.parametrize(
    ("name", "base", "is_ndjson", "is_consent"),
    [
        ("x.ndjson", "x", True, False),
        ("x.ndjson.zst", "x", True, False),
        ("X.NDJSON.Zst", "X", True, False),
        ("a.b.ndjson", "a.b", True, False),
        ("x.ndjson.ndjson", "x.ndjson", True, False),
        ("x.json", "x.json", False, False),
        ("x.zst", "x.zst", False, False),
        ("ndjson", "ndjson", False, False),
        (".x.ndjson", ".x", False, False),
        (".ndjson", "", False, False),
        ("x.ndjson.part", "x.ndjson.part", False, False),
        ("x.ndjson.gz", "x.ndjson.gz", False, False),
        ("b_consent.ndjson", "b_consent", True, True),
        ("b_CONSENT.NDJSON.ZST", "b_CONSENT", True, True),
        ("_consent.ndjson", "_consent", True, True),
        ("Consent.ndjson", "Consent", True, False),
        ("b_consent.json", "b_consent.json", False, False),
        ("b_consent_2.ndjson", "b_consent_2", True, False),
    ],
)
def test_a_name_gives_the_base_and_the_kind_of_a_file(
    name: str, base: str, *, is_ndjson: bool, is_consent: bool
) -> None:
    assert (base_name(name), is_ndjson_name(name), is_consent_name(name)) == (base, is_ndjson, is_consent)


@pytest.mark.parametrize("core", ["core.ndjson", "core.ndjson.zst"])
def test_core_comes_first_then_names_in_order(tmp_path: Path, core: str) -> None:
    for name in ("b.ndjson", core, "a.ndjson.zst", "z.ndjson.part", ".hidden.ndjson", "notes.txt", "core2.ndjson"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "dir.ndjson").mkdir()
    assert [path.name for path in data_files(tmp_path)] == [core, "a.ndjson.zst", "b.ndjson", "core2.ndjson"]


def test_a_directory_that_is_not_there_has_no_data_files(tmp_path: Path) -> None:
    assert data_files(tmp_path / "none") == []
