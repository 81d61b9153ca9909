"""Select the files of a directory to import, and find the problems of the others."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tasks.shared.errors import InputError, SluiceError
from tasks.shared.files.data_directory import as_shown, base_name, is_consent_name, is_ndjson_name, listed

EMPTY = "empty, nothing to import (an export that broke off looks like this)"

CONSENT = "consent audit files are never imported"
LINKS = "symbolic links not followed"
OTHER = "not regular files"

_HINTS = {
    CONSENT: CONSENT,
    LINKS: "symbolic links that leave the directory are not followed",
    OTHER: "only regular files are read",
}
"""Why a directory may hold nothing to import, by what was left out."""

_UNREADABLE = "unreadable"
_UNNAMEABLE = "unnameable"

_NO_DIRECTORY = {
    "input-not-directory": (
        "the import directory is not a directory",
        "name the directory that holds the file; every NDJSON file in it is imported",
    ),
    "input-unreadable": (
        "the import directory cannot be reached",
        "give the user who runs the pipeline permission to enter the directories above it",
    ),
    "input-not-found": (
        "the import directory does not exist",
        "check services.local_import.dir or --dir; a relative path starts at the working directory",
    ),
}

_OPEN = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@dataclass(frozen=True)
class SourceFile:
    """One file to import. ``name`` is its path below the directory, ``path`` where it really is; size in bytes."""

    name: str
    base: str
    path: Path
    size: int


@dataclass(frozen=True)
class Scan:
    """The content of a directory. ``problems`` stop an import; ``skipped`` files are left out, by reason.

    ``empty`` files are left out too: nothing of them can be counted. One may have had content in an earlier run.
    """

    directory: Path
    files: tuple[SourceFile, ...] = ()
    empty: tuple[SourceFile, ...] = ()
    skipped: Mapping[str, Sequence[str]] = field(default_factory=dict)
    problems: tuple[SluiceError, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files, as they are stored."""
        return sum(file.size for file in self.files)

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence per kind of file that was left out."""
        left_out = {EMPTY: [file.name for file in self.empty], **self.skipped}
        return tuple(f"{what}: {', '.join(as_shown(names, most=5))}" for what, names in left_out.items() if names)


def open_source(path: Path) -> int:
    """Open a file to import without following a link or waiting for a FIFO, and return the descriptor.

    Raises ``OSError``.
    """
    return os.open(path, _OPEN)


def scan(directory: Path, *, recursive: bool = False, exclude: Path | None = None) -> Scan:
    """Look at ``directory``; never raises for what it finds, see ``problems``.

    NDJSON files are ``*.ndjson`` and ``*.ndjson.zst`` in any case, hidden ones left out. Subdirectories are looked at
    only when ``recursive``, hidden ones and ``exclude`` (the jobs directory) never. Consent audit files are never
    imported (document 3 §2). Symbolic links to directories are not followed; a link to a file is, when it stays inside
    ``directory`` and its target is not imported anyway. Nothing but regular files is ever opened. Two files that
    would get the same name in the job are a problem, with or without ``.zst``, in whatever case: the job's file
    system may not tell ``A`` from ``a``.
    """
    real = _resolved(directory)
    if isinstance(real, InputError):
        return Scan(directory, problems=(real,))
    walk = _Walk(real, recursive, exclude.resolve() if exclude is not None else None)
    walk.walk()
    files = sorted(walk.files, key=lambda file: file.name)
    return Scan(
        directory,
        files=tuple(file for file in files if file.size),
        empty=tuple(file for file in files if not file.size),
        skipped={why: tuple(sorted(walk.names[why])) for why in _HINTS},
        problems=tuple(_problems(str(directory), recursive, files, walk.names)),
    )


def _resolved(directory: Path) -> Path | InputError:
    """Return the real path of a directory, or the reason why it cannot be imported."""
    try:
        real = directory.resolve(strict=True)
        if real.is_dir():
            return real
        reference = "input-not-directory"
    except PermissionError:
        reference = "input-unreadable"
    except (OSError, RuntimeError):
        reference = "input-not-found"
    message, hint = _NO_DIRECTORY[reference]
    return InputError(reference, message, context=str(directory), hint=hint)


class _Walk:
    """One walk through a directory tree: the files to import, and the ``names`` of all others by what they are."""

    def __init__(self, root: Path, recursive: bool, exclude: Path | None) -> None:
        self.root = root
        self.recursive = recursive
        self.exclude = exclude
        self.files: list[SourceFile] = []
        self.names: defaultdict[str, list[str]] = defaultdict(list)
        self._followed: list[SourceFile] = []

    def walk(self) -> None:
        """Walk, then decide about the links: a link to a file that is imported anyway adds nothing."""
        waiting = [self.root]
        while waiting:
            waiting.extend(self._directory(waiting.pop()))
        imported = {file.path for file in self.files}
        for file in sorted(self._followed, key=lambda file: file.name):
            if file.path in imported or is_consent_name(file.path.name):
                self.names[LINKS].append(file.name)
            else:
                imported.add(file.path)
                self.files.append(file)

    def _directory(self, directory: Path) -> list[Path]:
        below: list[Path] = []
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if not entry.is_symlink() and entry.is_dir():
                        path = Path(entry.path)
                        if self.recursive and path != self.exclude:
                            below.append(path)
                    else:
                        self._entry(entry)
        except OSError:
            self.names[_UNREADABLE].append(self._name(directory))
        return below

    def _entry(self, entry: os.DirEntry[str]) -> None:
        path = Path(entry.path)
        name = self._name(path)
        if not is_ndjson_name(entry.name):
            # Worth a word only where somebody may expect that it was looked into.
            if self.recursive and entry.is_symlink() and path.is_dir() and _printable(name):
                self.names[LINKS].append(name)
            return
        if not _printable(name):
            self.names[_UNNAMEABLE].append(name)
        elif is_consent_name(entry.name):
            self.names[CONSENT].append(name)
        elif entry.is_symlink():
            self._link(path, name)
        elif not entry.is_file(follow_symlinks=False):
            self.names[OTHER].append(name)
        else:
            self._file(path, name, self.files)

    def _link(self, path: Path, name: str) -> None:
        try:
            target = path.resolve(strict=True)
        except (OSError, RuntimeError):
            self.names[LINKS].append(name)
            return
        inside = target.is_relative_to(self.root) and not (self.exclude and target.is_relative_to(self.exclude))
        if inside and target.is_file():
            self._file(target, name, self._followed)
        else:
            self.names[LINKS].append(name)

    def _file(self, path: Path, name: str, files: list[SourceFile]) -> None:
        try:
            handle = open_source(path)
            try:
                found = os.fstat(handle)
            finally:
                os.close(handle)
        except OSError:
            self.names[_UNREADABLE].append(name)
            return
        if stat.S_ISREG(found.st_mode):
            files.append(SourceFile(name, base_name(Path(name).name), path, found.st_size))
        else:
            self.names[OTHER].append(name)

    def _name(self, path: Path) -> str:
        return "." if path == self.root else str(path.relative_to(self.root))


def _printable(name: str) -> bool:
    """Return whether a name can be shown and stored: UTF-8 without control characters."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return name.isprintable()


def _problems(
    where: str, recursive: bool, files: Sequence[SourceFile], names: Mapping[str, Sequence[str]]
) -> Iterator[SluiceError]:
    unreadable, unnameable = names[_UNREADABLE], names[_UNNAMEABLE]
    if unreadable:
        yield InputError(
            "input-unreadable",
            f"{len(unreadable)} files or directories cannot be read",
            context=listed(where, sorted(unreadable)),
            hint="give the user who runs the pipeline permission to read them, or move them away",
        )
    if unnameable:
        yield InputError(
            "file-name",
            f"{len(unnameable)} NDJSON files have names with control characters, or that are not UTF-8",
            context=where,
            hint="rename them",
        )
    if files and not any(file.size for file in files):
        yield InputError(
            "empty-file",
            f"all {len(files)} files are empty" if len(files) > 1 else "the only file is empty",
            context=listed(where, [file.name for file in files]),
            hint="was the export interrupted? export again; an empty file among others would be left out",
        )
    by_base: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        by_base[file.base.casefold()].append(file.name)
    clashes = sorted(", ".join(same) for same in by_base.values() if len(same) > 1)
    if clashes:
        yield InputError(
            "name-clash",
            f"files would overwrite each other in the job: {len(clashes)} names occur more than once",
            context=listed(where, clashes),
            hint="a job keeps its files in one directory: rename them, or import the directories in separate jobs",
        )
    if not files and not unreadable and not unnameable:
        reasons = [hint for why, hint in _HINTS.items() if names[why]]
        if not recursive:
            reasons.append("subdirectories are looked at only with services.local_import.recursive")
        yield InputError(
            "input-no-ndjson",
            "the import directory holds no file named *.ndjson or *.ndjson.zst to import",
            context=where,
            hint="; ".join(reasons) or None,
        )
