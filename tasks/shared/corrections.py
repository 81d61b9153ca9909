"""Corrected files at a ``wait``: their directory, and which files in it the next step reads.

The directory ``<source>_wait/`` is empty at first. If a person puts data files there, the next step reads them instead
of the source. The job checks their names before it judges an answer; the ``wait`` step then checks their content.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Final

from tasks.shared.errors import DataError, storage_errors
from tasks.shared.files.data_directory import base_name, data_files, is_no_data, listed
from tasks.shared.units import human_count


def wait_directory(source: Path) -> Path:
    """Return the directory for corrected files of ``source``."""
    return source.with_name(f"{source.name}_wait")


def looked_at(directory: Path) -> Path:
    """Return the source whose corrected files are in ``directory``."""
    return directory.with_name(directory.name.removesuffix("_wait"))


def make_directory(directory: Path) -> None:
    """Make the directory for corrected files, unless it exists.

    Raises:
        StorageError: it cannot be made.
    """
    with storage_errors(directory):
        directory.mkdir(mode=0o700, exist_ok=True)


def corrected_files(directory: Path, *, tables: bool) -> list[Path]:
    """Return the corrected files in a wait directory. Only names are read.

    Any other file is an error: the next step would ignore it and use the old data.

    Raises:
        DataError: ``wait-foreign-files``, ``name-clash``.
        StorageError: the directory cannot be read.
    """
    data = _tables(directory) if tables else data_files(directory)
    expected = {file.name for file in data}
    with storage_errors(directory):
        names = sorted(path.name for path in directory.iterdir())
    foreign = [name for name in names if name not in expected and not is_no_data(name)]
    if foreign:
        raise DataError(
            "wait-foreign-files",
            f"the directory for corrected files contains {human_count(len(foreign), 'file')} that would not be read",
            context=listed(directory, foreign),
            hint=f"{_TABLES if tables else _NDJSON}; rename or remove the others, then continue the job",
        )
    forms: dict[str, list[str]] = defaultdict(list)
    for file in data:
        forms[base_name(file.name).casefold()].append(file.name)
    clashing = [name for names in forms.values() if len(names) > 1 for name in names]
    if clashing:
        raise DataError(
            "name-clash",
            "corrected files differ only in case or compression, and later steps would give them one name",
            context=listed(directory, clashing),
            hint="keep one of each, or rename them, then continue the job",
        )
    return data


def _tables(directory: Path) -> list[Path]:
    with storage_errors(directory):
        found = sorted(path for path in directory.iterdir() if path.suffix.lower() == ".csv" and path.is_file())
    return [path for path in found if not is_no_data(path.name)]


_NDJSON: Final = "corrected files are NDJSON, named *.ndjson or *.ndjson.zst, at the top level"
_TABLES: Final = "corrected files are tables, named *.csv, at the top level"
