"""The zip: every file of the input directory, as it reads without compression (document 3 §7).

The survey reads all of it once before the zip is made. That costs a tenth of what deflating costs, and everything else
follows from it: the manifest can stand first in the zip, the sizes say where ZIP64 is needed, the same contents are
recognised after a crash, and NDJSON that is broken is found before anything is sent.

The same contents give the same bytes: fixed order, times and modes, deflate at zlib's default level, ``manifest.json``
first, ZIP64 records for members of about 2 GiB and more and for zips beyond the old limits. The zip is written into the
job directory and not sent while it is made: its length and hashes must be known before the first byte leaves, and a
repeated request must not deflate again. It takes about a tenth of what its contents do; the step removes it when it is
done.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

import msgspec

from tasks.shared.errors import DataError, storage_errors
from tasks.shared.fhir.reading import LARGEST_RESOURCE
from tasks.shared.files.check import LineCheck
from tasks.shared.files.data_directory import ZST, finished_files, is_ndjson_name
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
class ArchiveContents:
    """The members in their order, where each is read from, and the resources in them.

    ``resources`` and ``lines`` are ``None`` when there is any other file than NDJSON: its lines are no resources.
    """

    members: tuple[Member, ...]
    paths: tuple[Path, ...]
    resources: int | None = None

    @cached_property
    def manifest(self) -> bytes:
        """``manifest.json``: a function of names and contents, whether they are stored compressed or not."""
        return msgspec.json.format(msgspec.json.encode(_Manifest(self.members)), indent=2) + b"\n"

    @property
    def identity(self) -> str:
        """SHA-256 (hex) of the manifest: the same for the same names and contents."""
        return hashlib.sha256(self.manifest).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all members."""
        return sum(member.size for member in self.members)

    @property
    def lines(self) -> int | None:
        """Lines of NDJSON."""
        return None if self.resources is None else sum(member.lines for member in self.members)


def survey(
    directory: Path, *, read: Callable[[int], None] = lambda _: None, largest: int = LARGEST_RESOURCE
) -> ArchiveContents:
    """Read every file below ``directory``; ``read`` is told of every piece, in bytes, and may raise.

    Which files these are says ``finished_files``. Raises ``DataError``: ``send-no-input``, ``name-clash`` when two
    files have one name in the zip, ``transfer-name`` for a name that no zip can hold, ``not-json``, ``not-object``,
    ``not-utf8``, ``resource-too-large`` (above ``largest`` bytes), ``zst-truncated``, ``zst-corrupt``; and
    ``StorageError``.
    """
    named = dict(sorted(_named(directory).items(), key=lambda pair: pair[0].encode()))
    if not named:
        raise DataError("send-no-input", "send: there is nothing to send", context=str(directory))
    found = [_member(name, path, read, largest) for name, path in named.items()]
    counts = [resources for _, resources in found]
    resources = None if None in counts else sum(count or 0 for count in counts)
    return ArchiveContents(tuple(member for member, _ in found), tuple(named.values()), resources)


def pieces(path: Path) -> Iterator[memoryview]:
    """Yield the decompressed content of a file in pieces, each valid until the next one."""
    buffer = bytearray(_PIECE)
    view = memoryview(buffer)
    with open_content(path) as content:
        while count := content.readinto(buffer):
            yield view[:count]


def _named(directory: Path) -> dict[str, Path]:
    """Return the files by their names in the zip."""
    found: dict[str, Path] = {}
    for path in finished_files(directory):
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
    return found


def _member(name: str, path: Path, read: Callable[[int], None], largest: int) -> tuple[Member, int | None]:
    """Return the member for a file, and its number of resources."""
    digest = hashlib.sha256()
    size = 0
    ndjson = is_ndjson_name(PurePosixPath(name).name)
    count: LineCheck | _LineFeeds = LineCheck(path.name, largest=largest) if ndjson else _LineFeeds()
    for piece in pieces(path):
        digest.update(piece)
        count.feed(bytes(piece))
        size += len(piece)
        read(len(piece))
    count.finish()
    resources = count.resources if isinstance(count, LineCheck) else None
    return Member(name, size, digest.hexdigest(), count.lines), resources


class _LineFeeds:
    """Counts the lines of a file that is no NDJSON."""

    def __init__(self) -> None:
        self.lines = 0
        self._open = False

    def feed(self, data: bytes) -> None:
        """Count the next piece."""
        self.lines += data.count(b"\n")
        self._open = not data.endswith(b"\n")

    def finish(self) -> None:
        """Count the last line, if it has no line feed."""
        self.lines += self._open


class Archive(msgspec.Struct, frozen=True):
    """A finished zip: bytes, and its hashes in hex."""

    size: int
    sha256: str
    sha1: str


def write_archive(contents: ArchiveContents, final: Path, *, packed: Callable[[int], None] = lambda _: None) -> Archive:
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


def _write(contents: ArchiveContents, file: BinaryIO, packed: Callable[[int], None]) -> None:
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
