"""The lines of data files, as the steps read them."""

from __future__ import annotations

from pathlib import Path

import zstandard

from tasks.shared.fhir.long_line import lines_with_long

_NONE_IS_LONG = 1 << 40


def numbered_lines(path: Path) -> list[tuple[int, bytes]]:
    """Return the lines that are not blank, with their numbers, from 1."""
    found = lines_with_long(path, limit=_NONE_IS_LONG, spool=path.parent, largest=_NONE_IS_LONG)
    return [(number, line) for number, line in found if isinstance(line, bytes)]


def read_lines(path: Path) -> list[bytes]:
    """Return the lines that are not blank."""
    return [line for _, line in numbered_lines(path)]


def compressed_contents(directory: Path) -> dict[str, bytes]:
    """Return the contents by name, without ``.zst``. All that is there is a finished, compressed data file."""
    found = {}
    for path in directory.iterdir():
        assert path.name.endswith(".ndjson.zst"), path.name
        found[path.stem] = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    return found
