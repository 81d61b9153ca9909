"""The zip: every file of the input directory, as it reads without compression (document 3 §7).

The same contents give the same bytes: fixed order, times and modes, deflate at zlib's default level, ``manifest.json``
last, ZIP64 for every member. The zip is written into the job directory and not sent while it is made: its length and
hash must be known before the first byte leaves, and a repeated request must not deflate again. It takes about a tenth
of what its contents do; the step removes it when it is done.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

import msgspec

from tasks.shared.errors import DataError, storage_errors
from tasks.shared.files.data_directory import ZST, is_ndjson_name
from tasks.shared.files.lines import open_content
from tasks.shared.files.out_file import PartFile

MANIFEST: Final = "manifest.json"
_PIECE: Final = 1 << 18
_READ: Final = 1 << 20
_EARLIEST: Final = (1980, 1, 1, 0, 0, 0)  # zip knows no earlier time
_UNIX: Final = 3


class Member(msgspec.Struct, frozen=True):
    """One file as the receiver sees it: its name in the zip, bytes, SHA-256 (hex), and lines that are not blank."""

    name: str
    size: int
    sha256: str
    lines: int


class _Manifest(msgspec.Struct, frozen=True):
    files: tuple[Member, ...]


@dataclass(frozen=True)
class Archive:
    """A finished zip: its bytes, their SHA-1 (hex), and its members without the manifest."""

    size: int
    sha1: str
    members: tuple[Member, ...]

    @property
    def content(self) -> int:
        """Bytes of all members."""
        return sum(member.size for member in self.members)

    @property
    def lines(self) -> int | None:
        """Lines of NDJSON; ``None`` when there is any other file: its lines are no resources."""
        if not all(is_ndjson_name(PurePosixPath(member.name).name) for member in self.members):
            return None
        return sum(member.lines for member in self.members)


def plain_names(directory: Path, paths: list[Path]) -> dict[str, Path]:
    """Return the files below ``directory`` by their names in the zip, in its order.

    Raises ``DataError``: ``name-clash`` when two files have one name, ``transfer-name`` for a name that no zip can
    hold.
    """
    found: dict[str, Path] = {}
    for path in paths:
        plain = path.with_suffix("") if path.suffix.lower() == ZST else path
        name = plain.relative_to(directory).as_posix()
        try:
            name.encode()
        except UnicodeEncodeError:
            what = "send: the name of a file is not UTF-8, so no zip can hold it"
            raise DataError("transfer-name", what, context=ascii(name), hint="rename the file") from None
        other = found.setdefault(name, path)
        if other is not path or name == MANIFEST:
            what = f"the manifest is {MANIFEST} too" if name == MANIFEST else f"{other.name} and {path.name} clash"
            hint = "remove or rename one of them"
            raise DataError(
                "name-clash", f"send: two files would be {name} in the zip: {what}", context=name, hint=hint
            )
    return dict(sorted(found.items(), key=lambda pair: pair[0].encode()))


def write_archive(files: Mapping[str, Path], final: Path, *, packed: Callable[[int], None] = lambda _: None) -> None:
    """Write the zip of ``files`` to ``final``, by way of ``.part``. ``packed`` is told of every piece of content, in
    bytes, and may raise.

    Raises ``DataError`` (``zst-truncated``, ``zst-corrupt``) and ``StorageError``.
    """
    with storage_errors(final), PartFile(final) as part:
        with part.opened() as file:
            _write(files, file, packed)
            file.flush()
        part.commit()


def read_archive(path: Path, *, read: Callable[[int], None] = lambda _: None) -> Archive:
    """Return the facts of a finished zip; ``read`` is called for every piece, and may raise.

    Raises ``StorageError``.
    """
    sha1 = hashlib.sha1(usedforsecurity=False)
    size = 0
    with storage_errors(path):
        with path.open("rb") as file:
            while piece := file.read(_READ):
                sha1.update(piece)
                size += len(piece)
                read(0)
        with zipfile.ZipFile(path) as zipped:
            manifest = msgspec.json.decode(zipped.read(MANIFEST), type=_Manifest)
    return Archive(size, sha1.hexdigest(), manifest.files)


def _write(files: Mapping[str, Path], file: BinaryIO, packed: Callable[[int], None]) -> None:
    # zipfile seeks back to complete a member's header: some readers know no sizes behind the data.
    members: list[Member] = []
    with zipfile.ZipFile(file, "w") as zipped:
        for name, path in files.items():
            digest, lines, size = hashlib.sha256(), _FilledLines(), 0
            with zipped.open(_info(name), "w", force_zip64=True) as inside:
                for piece in _pieces(path):
                    digest.update(piece)
                    lines.feed(bytes(piece))
                    size += len(piece)
                    inside.write(piece)
                    packed(len(piece))
            members.append(Member(name, size, digest.hexdigest(), lines.total))
        text = msgspec.json.format(msgspec.json.encode(_Manifest(tuple(members))), indent=2) + b"\n"
        zipped.writestr(_info(MANIFEST), text)


def _pieces(path: Path) -> Iterator[memoryview]:
    """Yield the decompressed content of a file in pieces, each valid until the next one."""
    buffer = bytearray(_PIECE)
    view = memoryview(buffer)
    with open_content(path) as content:
        while count := content.readinto(buffer):
            yield view[:count]


class _FilledLines:
    """Counts lines that are not blank, in pieces of any size."""

    def __init__(self) -> None:
        self._ended = 0
        self._filled = False

    @property
    def total(self) -> int:
        """Return the lines so far, the last one included."""
        return self._ended + self._filled

    def feed(self, piece: bytes) -> None:
        """Count the next piece."""
        first, *others = piece.split(b"\n")
        self._filled |= not _is_blank(first)
        for part in others:
            self._ended += self._filled
            self._filled = not _is_blank(part)


def _is_blank(text: bytes) -> bool:
    return not text or text.isspace()


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EARLIEST)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = _UNIX
    info.external_attr = 0o100600 << 16
    return info
