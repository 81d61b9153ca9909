"""The zip of a transfer: every file of the input directory, zstd files decompressed (docs/services.md).

The same contents give the same bytes: fixed order, times and modes, deflate at zlib's default level, ``manifest.json``
last, ZIP64 for every member. Its length and hash must be known before the first byte leaves.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from tasks.send.checks import SentFile
from tasks.shared.errors import DataError, storage_errors
from tasks.shared.files.data_directory import ZST
from tasks.shared.files.ndjson import is_blank, pieces
from tasks.shared.files.part_file import part_of, publish

MANIFEST: Final = "manifest.json"
_EARLIEST: Final = (1980, 1, 1, 0, 0, 0)  # zip knows no earlier time
_UNIX: Final = 3


class Member(msgspec.Struct, frozen=True):
    """One file as the receiver sees it: its name in the zip, bytes, SHA-256 (hex), and lines that are not blank."""

    name: str
    size: int
    sha256: str
    lines: int


class Manifest(msgspec.Struct, frozen=True):
    """The members of a zip, as ``manifest.json`` lists them."""

    files: tuple[Member, ...]


def plain_names(files: Iterable[SentFile]) -> dict[str, Path]:
    """Return files by their names in the zip, in its order. Raises ``DataError`` (``name-clash``)."""
    found: dict[str, Path] = {}
    for file in files:
        name = file.name[: -len(ZST)] if file.name.lower().endswith(ZST) else file.name
        if found.setdefault(name, file.path) is not file.path or name == MANIFEST:
            what = f"send: two files would be {name} in the zip"
            raise DataError("name-clash", what, context=name, hint="remove or rename one of them")
    return dict(sorted(found.items(), key=lambda pair: pair[0].encode()))


def write_zip(files: Mapping[str, Path], final: Path, *, packed: Callable[[int], None] = lambda _: None) -> None:
    """Write the zip of ``files`` to ``final``, by rename. ``packed`` gets the bytes of each piece of content, and
    may raise. Raises ``DataError`` (``zst-truncated``, ``zst-corrupt``) and ``StorageError``."""
    part = part_of(final)
    with storage_errors(final):
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        try:
            with zipfile.ZipFile(part, "w") as zipped:
                members = [_write(zipped, name, path, packed) for name, path in files.items()]
                text = msgspec.json.format(msgspec.json.encode(Manifest(tuple(members))), indent=2) + b"\n"
                zipped.writestr(_info(MANIFEST), text)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    publish(final)


def _write(zipped: zipfile.ZipFile, name: str, path: Path, packed: Callable[[int], None]) -> Member:
    # zipfile seeks back to write the sizes into the header: some readers do not know sizes behind the data.
    digest, lines, size, filled = hashlib.sha256(), 0, 0, False
    with zipped.open(_info(name), "w", force_zip64=True) as inside:
        for piece in pieces(path):
            digest.update(piece)
            size += len(piece)
            inside.write(piece)
            *ended, rest = piece.split(b"\n")
            for line in ended:
                lines += filled or not is_blank(line)
                filled = False
            filled = filled or not is_blank(rest)
            packed(len(piece))
    return Member(name, size, digest.hexdigest(), lines + filled)


def _info(name: str) -> Any:
    info = zipfile.ZipInfo(name, _EARLIEST)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = _UNIX
    info.external_attr = 0o100600 << 16
    return info
