"""A file that the configuration or the command line names: there, a regular one, readable, not empty."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tasks.shared.errors import InputError, SluiceError


def is_special(path: Path) -> bool:
    """Whether something is there that is no regular file: reading a pipe might never end."""
    # os.path, not Path: a directory above that may not be entered is an answer here, no exception.
    return os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113


def not_a_file(named_by: str, path: Path) -> InputError:
    """A directory, a pipe: a pipe would keep the preflight waiting, and ``continue`` would find it empty."""
    return InputError(
        "file-unreadable", "not a regular file", context=f"{named_by}: {path}", hint="name the file itself"
    )


def check_target(named_by: str, path: Path) -> None:
    """What is written takes the place of what is there: of a file, and of nothing else. Raises ``InputError``."""
    if path.is_symlink() or is_special(path):
        raise not_a_file(named_by, path)
    if not path.parent.is_dir():
        raise InputError(
            "file-not-found", "there is no such directory", context=f"{named_by}: {path.parent}",
            hint="check the path; a relative one starts at the working directory",
        )  # fmt: skip


def file_findings(named_by: str, path: Path) -> Iterator[SluiceError]:
    """Whether a file that the configuration or the command line names can be read and holds anything."""
    context = f"{named_by}: {path}"
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            yield not_a_file(named_by, path)
            return
        with path.open("rb") as file:
            if not file.read(1):
                yield InputError("file-empty", "the file is empty", context=context)
    except (FileNotFoundError, NotADirectoryError):
        yield InputError(
            "file-not-found", "there is no such file", context=context,
            hint="check the path; a relative one starts at the working directory",
        )  # fmt: skip
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        yield InputError("file-unreadable", f"the file cannot be read: {reason}", context=context)
