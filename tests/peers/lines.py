"""The lines of data files, as the steps read them."""

from __future__ import annotations

from pathlib import Path

import zstandard

from tasks.shared.files.ndjson import lines


def read_lines(path: Path) -> list[bytes]:
    """Return the lines that are not blank."""
    return [line for _, line in lines(path, 1 << 30)]


def compressed_contents(directory: Path) -> dict[str, bytes]:
    """Return the contents by name, without ``.zst``. All that is there is a finished, compressed data file."""
    found = {}
    for path in directory.iterdir():
        assert path.name.endswith(".ndjson.zst"), path.name
        found[path.stem] = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    return found
