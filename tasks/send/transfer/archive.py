"""The zip: the same contents give the same bytes (document 3 §7).

Fixed order, times and modes, deflate at zlib's default level, ``manifest.json`` first, ZIP64 records for members of
about 2 GiB and more and for zips beyond the old limits. It is written into the job directory and not sent while it is
made: its length and hashes must be known before the first byte leaves, and a repeated request must not deflate again.
It takes about a tenth of what its contents do; the step removes it when it is done.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from tasks.send.transfer.contents import MANIFEST, Contents, Member, pieces
from tasks.shared.errors import DataError, storage_errors
from tasks.shared.files.out_file import PartFile

_EARLIEST: Final = (1980, 1, 1, 0, 0, 0)  # zip knows no earlier time
_UNIX: Final = 3
_READ: Final = 1 << 20


class Archive(msgspec.Struct, frozen=True):
    """A finished zip: bytes, and its hashes in hex."""

    size: int
    sha256: str
    sha1: str


def write_archive(contents: Contents, final: Path, *, packed: Callable[[int], None] = lambda _: None) -> Archive:
    """Write the zip to ``final``, by way of ``.part``. ``packed`` is told of every piece, in bytes, and may raise.

    Raises ``DataError`` ``transfer-input-changed`` when a file is not what the survey found, and ``StorageError``.
    """
    with storage_errors(final), PartFile(final) as part:
        with part.opened() as file:
            _write(contents, file, packed)
            file.flush()
            archive = _measured(file, packed)
        part.commit()
    return archive


def _write(contents: Contents, file: BinaryIO, packed: Callable[[int], None]) -> None:
    # zipfile seeks back to complete a member's header: some readers know no sizes behind the data.
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr(_info(MANIFEST, len(contents.manifest)), contents.manifest)
        for member, path in zip(contents.members, contents.paths, strict=True):
            digest = hashlib.sha256()
            size = 0
            with zipped.open(_info(member.name, member.size), "w") as inside:
                for piece in pieces(path):
                    size += len(piece)
                    if size > member.size:
                        raise _changed(member)
                    digest.update(piece)
                    inside.write(piece)
                    packed(len(piece))
            if digest.hexdigest() != member.sha256:
                raise _changed(member)


def _info(name: str, size: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EARLIEST)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = _UNIX
    info.external_attr = 0o100600 << 16
    info.file_size = size  # so zipfile knows whether this member needs ZIP64
    return info


def _measured(file: BinaryIO, packed: Callable[[int], None]) -> Archive:
    sha256, sha1 = hashlib.sha256(), hashlib.sha1(usedforsecurity=False)
    size = 0
    file.seek(0)
    while piece := file.read(_READ):
        sha256.update(piece)
        sha1.update(piece)
        size += len(piece)
        packed(0)
    return Archive(size, sha256.hexdigest(), sha1.hexdigest())


def _changed(member: Member) -> DataError:
    return DataError(
        "transfer-input-changed",
        "send: a file changed while the zip was made",
        context=member.name,
        hint="nothing else may write into the job directory; continue the job",
    )
