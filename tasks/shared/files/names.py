"""The names of data files, and their order (``4-product.md`` §4, document 2 "Result files")."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tasks.shared.errors import storage_error

NDJSON = ".ndjson"
ZST = ".zst"
CORE = "core"
"""Base name of the file that every step processes before all others (document 2, "Result files" rule 2)."""

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
    """Return whether this is a consent audit file, ``*_consent.ndjson[.zst]`` in any case (document 3 §2)."""
    return _DATA_NAME.fullmatch(name) is not None and _CONSENT_NAME.fullmatch(base_name(name)) is not None


def data_file_name(base: str, *, compressed: bool) -> str:
    """Return the name of a data file: ``<base>.ndjson``, or ``<base>.ndjson.zst``."""
    return f"{base}{NDJSON}{ZST if compressed else ''}"


def existing_file(directory: Path, base: str) -> Path | None:
    """Return the complete data file of that base name in either form, if it exists."""
    for compressed in (True, False):
        path = directory / data_file_name(base, compressed=compressed)
        if path.is_file():
            return path
    return None


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
