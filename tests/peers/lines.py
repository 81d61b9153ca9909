"""The lines of data files, plain or compressed."""

from __future__ import annotations

from pathlib import Path

import zstandard


def contents(path: Path) -> bytes:
    """Return the contents of a data file."""
    stored = path.read_bytes()
    return zstandard.ZstdDecompressor().decompressobj().decompress(stored) if path.suffix == ".zst" else stored


def read_lines(path: Path) -> list[bytes]:
    """Return the lines that are not blank."""
    return [line for line in contents(path).split(b"\n") if line.strip()]


def all_lines(directory: Path) -> list[bytes]:
    """Return the lines of all data files of a directory in the order of the steps: the core file, then by name."""
    paths = sorted(directory.glob("*.ndjson*"), key=lambda path: (not path.name.lower().startswith("core."), path.name))
    return [line for path in paths for line in read_lines(path)]


def compressed_contents(directory: Path) -> dict[str, bytes]:
    """Return the contents by name, without ``.zst``. All that is there is a finished, compressed data file."""
    assert all(path.name.endswith(".ndjson.zst") for path in directory.iterdir())
    return {path.stem: contents(path) for path in directory.iterdir()}
