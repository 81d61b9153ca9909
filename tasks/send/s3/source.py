"""The files to upload: which ones, what they hold, and parts of them on their way out. They are only read."""

from __future__ import annotations

import base64
import hashlib
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from tasks.shared.errors import DataError, storage_errors
from tasks.shared.files.data_directory import finished_files
from tasks.shared.files.names import CORE, base_name

_BUFFER: Final = 256 * 1024

Check = Callable[[], None]
"""Raises when the work is to end; called for every buffer."""


@dataclass(frozen=True)
class Source:
    """One file: ``name`` is its path below the input directory, with ``/``; ``size`` in bytes.

    ``state`` changes when somebody writes to the file.
    """

    path: Path
    name: str
    size: int
    state: tuple[int, ...] = field(repr=False)


def sources(directory: Path) -> list[Source]:
    """Every finished file below ``directory`` (``finished_files``): ``core`` first, then by name.

    Raises ``StorageError``.
    """
    found = [_source(path, path.relative_to(directory).as_posix()) for path in finished_files(directory)]
    return sorted(found, key=lambda source: (base_name(source.name).lower() != CORE, source.name))


def _source(path: Path, name: str) -> Source:
    with storage_errors(path):
        state = path.stat()
    return Source(path, name, state.st_size, _state(state))


def _state(result: os.stat_result) -> tuple[int, ...]:
    return (result.st_dev, result.st_ino, result.st_size, result.st_mtime_ns)


@dataclass(frozen=True)
class Digests:
    """SHA-256 as hex, for the metadata; MD5 as Base64, for ``Content-MD5`` (RFC 1864), where that is wanted."""

    sha256: str
    md5: str | None


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode("ascii")


class OpenSource:
    """A source, open for reading by several threads. As a context manager it closes the file.

    Raises ``StorageError``, and ``DataError`` (``send-input-changed``) when the file is not the one that was found.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        with storage_errors(source.path):
            self._handle = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def read(self, count: int, offset: int) -> bytes:
        """Up to ``count`` bytes from ``offset``."""
        with storage_errors(self.source.path):
            return os.pread(self._handle, count, offset)

    def md5(self, start: int, size: int, check: Check) -> str:
        """MD5 (Base64) of ``size`` bytes from ``start``."""
        part = hashlib.md5(usedforsecurity=False)
        for data in self._buffers(start, size, check):
            part.update(data)
        return _base64(part.digest())

    def digests(self, check: Check, *, md5: bool) -> Digests:
        """SHA-256, and on request MD5, of the whole file, which is read once."""
        whole = hashlib.sha256()
        part = hashlib.md5(usedforsecurity=False) if md5 else None
        for data in self._buffers(0, self.source.size, check):
            whole.update(data)
            if part is not None:
                part.update(data)
        return Digests(whole.hexdigest(), _base64(part.digest()) if part is not None else None)

    def section(self, start: int, size: int, check: Check) -> Section:
        """These bytes as a file object."""
        return Section(self, start, size, check)

    def verify(self) -> None:
        """Nobody has written to the file since it was found. Raises ``DataError``."""
        with storage_errors(self.source.path):
            same = _state(os.fstat(self._handle)) == self.source.state
            same = same and _state(self.source.path.stat()) == self.source.state
        if not same:
            raise self.changed()

    def changed(self) -> DataError:
        """The error that says that somebody writes to the file."""
        return DataError(
            "send-input-changed",
            "send: a file changed while it was uploaded",
            context=str(self.source.path),
            hint="find out who writes there; then continue the job: the file is uploaded again",
        )

    def _buffers(self, start: int, size: int, check: Check) -> Iterator[bytes]:
        at, end = start, start + size
        while at < end:
            check()
            data = self.read(min(_BUFFER, end - at), at)
            if not data:
                raise self.changed()
            yield data
            at += len(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._handle)


class Section:
    """Some bytes of an open source as the file object that botocore reads, measures and rewinds.

    It is as long as it was said to be: a file that has shrunk is an error, not a short body.
    """

    def __init__(self, file: OpenSource, start: int, size: int, check: Check) -> None:
        self._file = file
        self._start = start
        self._size = size
        self._check = check
        self._at = 0

    def __len__(self) -> int:
        return self._size

    def __bool__(self) -> bool:
        return True

    def tell(self) -> int:
        """Where the next ``read`` begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As for any file object."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, count: int | None = None) -> bytes:
        """Up to ``count`` bytes, all that are left without one; ``b""`` at the end."""
        left = max(0, self._size - self._at)
        wanted = left if count is None or count < 0 else min(count, left)
        if not wanted:
            return b""
        self._check()
        data = self._file.read(wanted, self._start + self._at)
        if not data:
            raise self._file.changed()
        self._at += len(data)
        return data
