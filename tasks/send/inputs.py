"""Which files of the input directory are sent as files (document 3 §7, ``transfer_load``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tasks.shared.ndjson.files import PART, storage_error

_UNFINISHED: Final = (PART, ".partial", ".tmp")
_LITTER: Final = frozenset({"thumbs.db", "desktop.ini"})  # of file managers, beside hidden files


def finished_files(directory: Path) -> Iterator[Path]:
    """Every finished file below ``directory``, each directory in the order of names; none when it does not exist.

    Hidden files and directories, unfinished files, what file managers leave, and links to directories are left out.
    Raises ``StorageError``.
    """
    try:
        with os.scandir(directory) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            if entry.name.startswith(".") or entry.name.lower() in _LITTER:
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from finished_files(Path(entry.path))
            elif entry.is_file() and not entry.name.lower().endswith(_UNFINISHED):
                yield Path(entry.path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error(error, directory) from None
