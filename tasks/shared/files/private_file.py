"""Opening files below ``jobs_dir``: no symbolic link is followed there (``4-product.md`` §4).

Files that decide something (``.results/``) are read only from the owner of their directory: no pipe is waited
for, and no file of another owner is used. Data files are written by ``out_file.py``.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from tasks.shared.errors import storage_error, storage_errors

T = TypeVar("T")

_FLAGS: Final = {"rb": os.O_RDONLY, "r+b": os.O_RDWR | os.O_CREAT, "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND}
_EDITING: Final = ".#"
"""Prefix of the link that Emacs makes next to a file while it is edited."""


def open_private(path: Path, mode: Literal["rb", "r+b", "ab"] = "rb") -> io.FileIO:
    """Open a file below ``jobs_dir``, unbuffered; for writing, it is made if it is missing (0600).

    Raises ``OSError``, with ``ELOOP`` for a symbolic link; a pipe is refused, not waited for.
    """
    handle = os.open(path, _FLAGS[mode] | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    file = os.fdopen(handle, mode, buffering=0)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "Not a regular file")
    return file


def read_file(path: Path) -> bytes:
    """Return the whole content of a small file below ``jobs_dir``. Raises as ``open_private``."""
    with open_private(path) as file:
        return file.readall()


def read_state(path: Path, kind: type[T]) -> T | None:
    """Return the content of a small JSON file of ours; ``None`` if it is missing or not valid.

    Raises ``StorageError``.
    """
    with storage_errors(path):
        try:
            return msgspec.json.decode(read_file(path), type=kind)
        except (FileNotFoundError, msgspec.DecodeError):
            return None


def refuse_link(path: Path) -> None:
    """Raise ``StorageError`` (``link-not-followed``) where a symbolic link has this name."""
    if path.is_symlink():
        raise storage_error(OSError(errno.ELOOP, os.strerror(errno.ELOOP)), path)


def refuse_links(directory: Path) -> None:
    """Raise ``StorageError`` (``link-not-followed``) for a symbolic link at a directory of ours, or anywhere in it."""
    refuse_link(directory)
    with storage_errors(directory), suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                refuse_links(Path(entry.path))
            elif not entry.name.startswith(_EDITING):
                refuse_link(Path(entry.path))


class NotPrivateError(ValueError):
    """The path is not a file of ours. The text of the error has the reason and quotes no content."""


def read_private(path: Path, *, most: int | None = None, below: Path | None = None) -> bytes | None:
    """Return all bytes of a regular file with the same owner as its directory; ``None`` without a file.

    With ``below``, a directory above it, that one's owner counts, and no symbolic link below it is followed.

    Raises:
        NotPrivateError: it is something else, others may write it, or it has more than ``most`` bytes.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    top = below or path.parent
    with ExitStack() as opened:

        def open_directory(name: str | Path, inside: int | None) -> int:
            handle = os.open(name, flags | os.O_DIRECTORY, dir_fd=inside)
            opened.callback(os.close, handle)
            return handle

        try:
            directory = open_directory(top, None)
            home = os.fstat(directory)
            for name in path.relative_to(top).parts[:-1]:
                directory = open_directory(name, directory)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NotPrivateError(f"its directory cannot be opened ({error.strerror})") from None
        try:
            with os.fdopen(os.open(path.name, flags | os.O_NONBLOCK, dir_fd=directory), "rb") as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode):
                    raise NotPrivateError("it is no regular file")
                if found.st_uid != home.st_uid or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    raise NotPrivateError("others may have written it")
                if most is not None and found.st_size > most:
                    raise NotPrivateError(f"it has more than {most:,} bytes")
                return file.read() if most is None else file.read(most + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NotPrivateError(f"it cannot be read ({error.strerror})") from None
