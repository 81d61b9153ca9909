"""A data file is continued where a killed process stopped, byte for byte (4-product.md §4 "Continue")."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config import CompressionConfig
from tasks.shared.errors import StorageError
from tasks.shared.files.resumable import BEGIN, Position, ResumableWriter
from tests.peers.lines import read_lines

FORMS = [
    CompressionConfig(enabled=False),
    CompressionConfig(),
    CompressionConfig(level="fastest"),
    CompressionConfig(level="better"),
]


def write(writer: ResumableWriter, lines: list[bytes], pieces: int = 1) -> list[Position]:
    """Write lines, each in so many pieces; the positions that were handed out."""
    cuts = []
    for line in lines:
        size = max(1, -(-len(line) // pieces))
        for start in range(0, len(line), size):
            writer.write(line[start : start + size])
        cut = writer.end_line()
        if cut is not None:
            cuts.append(cut)
    return cuts


def undisturbed(directory: Path, lines: list[bytes], form: CompressionConfig, every: int) -> bytes:
    with ResumableWriter(directory, "whole", form, every=every) as writer:
        write(writer, lines)
        writer.finish()
        return writer.publish().read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.level if form.enabled else "plain")
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_after_any_number_of_kills_the_file_has_the_bytes_of_an_undisturbed_run(
    tmp_path_factory: pytest.TempPathFactory, form: CompressionConfig, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("job")
    lines = data.draw(st.lists(st.binary(max_size=60).map(lambda line: line.hex().encode()), max_size=40))
    every = data.draw(st.integers(1, 400))
    expected = undisturbed(directory, lines, form, every)
    known = BEGIN
    for _ in range(data.draw(st.integers(0, 4))):
        # A kill: everything up to some line is written, some positions were remembered, the part has any end.
        with ResumableWriter(directory, "a", form, resume=known, every=every) as writer:
            assert writer.resumed == known
            until = data.draw(st.integers(known.lines, len(lines)))
            cuts = write(writer, lines[known.lines : until], pieces=data.draw(st.integers(1, 3)))
            writer.write(b"torn")
        part = writer.path.with_name(writer.path.name + ".part")
        known = data.draw(st.sampled_from([known, *cuts]))
        with part.open("r+b") as file:
            file.truncate(data.draw(st.integers(known.stored, part.stat().st_size)))
    with ResumableWriter(directory, "a", form, resume=known, every=every) as writer:
        write(writer, lines[known.lines :])
        end = writer.finish()
        path = writer.publish()
    assert path.read_bytes() == expected
    assert end == Position(len(lines), sum(len(line) + 1 for line in lines), len(expected))
    assert read_lines(path) == [line for line in lines if line]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.level if form.enabled else "plain")
def test_cuts_in_large_content_do_not_depend_on_how_the_lines_were_written(
    tmp_path: Path, form: CompressionConfig
) -> None:
    lines = [bytes(f"{n:06}", "ascii") * (1 + n % 7) * 9000 for n in range(40)]  # 8 MB: several jobs of the compressor
    expected = undisturbed(tmp_path, lines, form, 3_000_000)
    for pieces in (1, 2, 57):
        with ResumableWriter(tmp_path, "a", form, every=3_000_000) as writer:
            cuts = write(writer, lines, pieces)
            writer.finish()
            assert writer.publish().read_bytes() == expected
        assert [cut.lines for cut in cuts] == [14, 28]
        with ResumableWriter(tmp_path, "b", form, every=3_000_000) as writer:
            write(writer, lines[:35])
        with ResumableWriter(tmp_path, "b", form, every=3_000_000, resume=cuts[1]) as writer:
            assert writer.resumed == cuts[1]
            write(writer, lines[cuts[1].lines :], pieces)
            writer.finish()
            assert writer.publish().read_bytes() == expected


@pytest.mark.parametrize("form", FORMS[:2], ids=["plain", "zst"])
def test_a_suspended_writer_says_up_to_where_the_part_is_good(tmp_path: Path, form: CompressionConfig) -> None:
    lines = [b"x" * 30] * 7
    expected = undisturbed(tmp_path, lines, form, 100)
    with ResumableWriter(tmp_path, "a", form, every=100) as writer:
        write(writer, lines[:6])
        place = writer.suspend()
    assert place.lines == (4 if form.enabled else 6)
    with ResumableWriter(tmp_path, "a", form, every=100, resume=place) as writer:
        write(writer, lines[place.lines :])
        writer.finish()
        assert writer.publish().read_bytes() == expected


@pytest.mark.parametrize("form", FORMS[:2], ids=["plain", "zst"])
def test_a_part_that_is_gone_or_too_short_is_begun_anew(tmp_path: Path, form: CompressionConfig) -> None:
    for content in (None, b"short"):
        name = f"a.ndjson{'.zst' if form.enabled else ''}.part"
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with ResumableWriter(tmp_path, "a", form, resume=Position(3, 300, 200)) as writer:
            assert writer.resumed == BEGIN
        (tmp_path / name).unlink()


def test_nothing_has_the_final_name_before_it_is_published_and_all_is_private(tmp_path: Path) -> None:
    directory = tmp_path / "new"
    with ResumableWriter(directory, "a", FORMS[1]) as writer:
        write(writer, [b"{}"])
        writer.finish()
        assert [path.name for path in directory.iterdir()] == ["a.ndjson.zst.part"]
        writer.publish()
    assert [path.name for path in directory.iterdir()] == ["a.ndjson.zst"]
    assert stat.S_IMODE((directory / "a.ndjson.zst").stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("form", FORMS[:2], ids=["plain", "zst"])
def test_a_full_disk_is_a_storage_error(tmp_path: Path, form: CompressionConfig) -> None:
    with ResumableWriter(tmp_path, "a", form) as writer:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, writer._file._handle)
        os.close(full)

        def finish() -> None:
            writer.write(b"x")
            writer.finish()  # what is compressed is written at the end

        with pytest.raises(StorageError) as caught:
            finish()
    assert caught.value.reference == "disk-full"
