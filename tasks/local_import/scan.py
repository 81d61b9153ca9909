"""Find the files of a directory to import, and list those that are left out, for warnings (docs/steps.md)."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from config import PipelineConfig
from tasks.shared.errors import InputError, SluiceError
from tasks.shared.files.data_directory import as_shown, base_name, is_consent_name, is_ndjson_name, is_no_data, listed


@dataclass(frozen=True)
class SourceFile:
    """One file to import: its path, its path below the directory, the base name it gets, its size in bytes."""

    path: Path
    name: str
    base: str
    size: int


@dataclass
class Scan:
    """The content of a directory. ``problems`` stop an import; ``left_out`` is reason → names of files."""

    directory: Path
    files: list[SourceFile] = field(default_factory=list)
    left_out: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    problems: list[SluiceError] = field(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        """Return a warning for each reason to leave files out, with the number of files by ending."""
        return [self._warning(why, sorted(names)) for why, names in self.left_out.items()]

    def _warning(self, why: str, names: list[str]) -> str:
        endings = Counter(map(_ending, names)).most_common()
        count = ", ".join(f"{number} {ending or 'other'}" for ending, number in endings)
        return f"not imported, {why}: {', '.join(as_shown(names, most=5))} ({count})"


CONSENT: Final = "consent audit files"
LINKS: Final = "symbolic links"
NO_FILES: Final = "no regular files"
OTHER: Final = "no NDJSON by their name"
BELOW: Final = "in subdirectories (services.local_import.recursive is false)"
_LOOKS_LIKE_DATA: Final = frozenset(
    ".ndjson .jsonl .json .xml .csv .tsv .parquet .gz .tgz .zip .7z .bz2 .xz .zst".split()  # noqa: SIM905
)


def _ending(name: str) -> str:
    """Return the endings from the first one of a data format on (``.ndjson.gz``); empty without one."""
    suffixes = Path(name.lower()).suffixes
    begin = next((number for number, suffix in enumerate(suffixes) if suffix in _LOOKS_LIKE_DATA), len(suffixes))
    return "".join(suffixes[begin:])


def scan_source(config: PipelineConfig, given: str | None) -> Scan:
    """Return the content of the directory of the command line or the configuration, without reading the files.

    Its problems: ``input-missing``, ``input-not-found``, ``input-not-directory``, ``input-unreadable``,
    ``input-no-ndjson``, ``empty-file``, ``name-clash``.
    """
    named = given or config.services.local_import.dir
    if not named:
        hint = "set it, or give --dir DIR"
        problem = InputError(
            "input-missing", "local_import has no directory", context="services.local_import.dir", hint=hint
        )
        return Scan(Path(), problems=[problem])
    scan = Scan(Path(named).absolute())
    try:
        is_directory, there = scan.directory.is_dir(), scan.directory.exists()
    except OSError as error:
        _unreadable(scan, error)
        return scan
    if not is_directory:
        hint = "check services.local_import.dir or --dir; a relative path starts at the working directory"
        what = "the import directory is not a directory" if there else "the import directory does not exist"
        reference = "input-not-directory" if there else "input-not-found"
        scan.problems.append(InputError(reference, what, context=str(scan.directory), hint=hint))
        return scan
    _walk(scan, config.services.local_import.recursive, config.jobs_dir.absolute())
    scan.files.sort(key=lambda file: file.name)
    scan.problems += _problems(scan)
    return scan


def _walk(scan: Scan, recursive: bool, jobs_dir: Path) -> None:
    for root, directories, names in os.walk(scan.directory, onerror=lambda error: _unreadable(scan, error)):
        here = Path(root)
        directories[:] = sorted(name for name in directories if not name.startswith(".") and here / name != jobs_dir)
        for name in [name for name in directories if (here / name).is_symlink()]:
            scan.left_out[LINKS].append(_below(scan, here / name))
        for name in sorted(names):
            _take(scan, here / name, inside=recursive or here == scan.directory)


def _take(scan: Scan, path: Path, *, inside: bool) -> None:
    """Add a file to the ones to import, or to those that are left out."""
    name = _below(scan, path)
    if not is_ndjson_name(path.name):
        if inside and not is_no_data(path.name) and _ending(path.name):
            scan.left_out[OTHER].append(name)
        return
    if not inside:
        scan.left_out[BELOW].append(name)
    elif is_consent_name(path.name):
        scan.left_out[CONSENT].append(name)
    elif path.is_symlink() or not path.is_file():
        scan.left_out[LINKS if path.is_symlink() else NO_FILES].append(name)
    elif not os.access(path, os.R_OK, effective_ids=True):
        _unreadable(scan, PermissionError(0, "", str(path)))
    else:
        scan.files.append(SourceFile(path, name, base_name(path.name), path.stat().st_size))


def _unreadable(scan: Scan, error: OSError) -> None:
    hint = "give the user who runs the pipeline permission to read it, or move it away"
    what = "a file or directory of the import directory cannot be read"
    scan.problems.append(InputError("input-unreadable", what, context=str(error.filename), hint=hint))


def _below(scan: Scan, path: Path) -> str:
    return path.relative_to(scan.directory).as_posix()


def _problems(scan: Scan) -> Iterator[SluiceError]:
    counts = Counter(file.base.casefold() for file in scan.files)
    clashes = [file.name for file in scan.files if counts[file.base.casefold()] > 1]
    if clashes:
        yield InputError(
            "name-clash",
            f"{len(clashes)} files would overwrite each other in the job",
            context=listed(scan.directory, clashes),
            hint="a job keeps its files in one directory: rename them, or import the directories in separate jobs",
        )
    if empty := [file.name for file in scan.files if not file.size]:
        hint = "this can be the result of an interrupted export; leave a file out if it is meant to be empty"
        yield InputError(
            "empty-file",
            f"{len(empty)} files are empty" if len(empty) > 1 else "a file is empty",
            context=listed(scan.directory, empty),
            hint=hint,
        )
    if not scan.files and not scan.problems:
        hints = scan.warnings
        if any(name.lower().endswith(".json") for name in scan.left_out.get(OTHER, ())):
            hints.append("NDJSON has one resource or Bundle per line: `jq -c . *.json > data.ndjson` makes it of files")
        yield InputError(
            "input-no-ndjson",
            "the import directory holds no file named *.ndjson or *.ndjson.zst to import",
            context=str(scan.directory),
            hint="; ".join(hints) or None,
        )
