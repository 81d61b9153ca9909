"""The data files of a directory: which files these are, and their order."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tasks.shared.errors import storage_error, storage_errors
from tasks.shared.files.part_file import PART

NDJSON = ".ndjson"
ZST = ".zst"
CORE = "core"
"""Base name of the file that every step processes before all others."""

_DATA_NAME = re.compile(r"(?P<base>.*)\.ndjson(\.zst)?", re.IGNORECASE | re.DOTALL)
_CONSENT_NAME = re.compile(r".*_consent", re.IGNORECASE | re.DOTALL)


def is_ndjson_name(name: str) -> bool:
    """Return whether a name is that of an NDJSON file: ``*.ndjson`` or ``*.ndjson.zst`` in any case, neither hidden nor
    unfinished."""
    return not name.startswith(".") and _DATA_NAME.fullmatch(name) is not None


def base_name(name: str) -> str:
    """Return the name without ``.ndjson`` or ``.ndjson.zst`` (any case); a name without either stays as it is."""
    match = _DATA_NAME.fullmatch(name)
    return match["base"] if match else name


def is_consent_name(name: str) -> bool:
    """Return whether this is a consent audit file, ``*_consent.ndjson[.zst]`` in any case."""
    return _DATA_NAME.fullmatch(name) is not None and _CONSENT_NAME.fullmatch(base_name(name)) is not None


def data_file_name(base: str, *, compressed: bool) -> str:
    """Return the name of a data file: ``<base>.ndjson``, or ``<base>.ndjson.zst``."""
    return f"{base}{NDJSON}{ZST if compressed else ''}"


def data_files(directory: Path) -> list[Path]:
    """Return the NDJSON data files of a step's directory: ``core.ndjson[.zst]`` first, the others sorted by name.

    Hidden files, unfinished ``.part`` files and anything but regular files are left out. A directory that
    does not exist has no files.
    """
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if is_ndjson_name(entry.name) and entry.is_file()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise storage_error(error, directory) from None
    return [directory / name for name in sorted(names, key=lambda name: (base_name(name).lower() != CORE, name))]


_UNFINISHED: Final = (PART, ".partial", ".tmp")
_SHOWN: Final = 20


def is_no_data(name: str) -> bool:
    """Return whether a name is that of a hidden file, or of a temporary file of an editor or office program."""
    return name.startswith((".", "~", "#")) or name.endswith("~")


def finished_files(directory: Path) -> Iterator[Path]:
    """Yield every finished file below ``directory``, each directory in the order of names; none if it is missing.

    Hidden and unfinished files, hidden directories and links to directories are left out.
    Raises ``StorageError``.
    """
    try:
        with os.scandir(directory) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from finished_files(Path(entry.path))
            elif not is_no_data(entry.name) and entry.is_file() and not entry.name.lower().endswith(_UNFINISHED):
                yield Path(entry.path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error(error, directory) from None


def stored_bytes(paths: Iterable[Path]) -> int:
    """Return the bytes of these files on disk, compressed if they are. Raises ``StorageError``."""
    total = 0
    for path in paths:
        with storage_errors(path):
            total += path.stat().st_size
    return total


def as_shown(names: Iterable[str], *, most: int = _SHOWN) -> list[str]:
    """Return the first ``most`` names and the number of others; names with control characters in ASCII form."""
    every = [name if name.isprintable() else ascii(name) for name in names]
    more = [f"… and {len(every) - most} more"] if len(every) > most else []
    return [*every[:most], *more]


def listed(directory: Path | str, names: Iterable[str]) -> str:
    """Return the directory and the first of ``names``, one per line."""
    return "\n  ".join([str(directory), *as_shown(names)])
