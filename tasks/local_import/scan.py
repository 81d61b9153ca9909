"""Which files of a directory are imported, and what is wrong with the others."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tasks.shared.errors import InputError, SluiceError
from tasks.shared.files.names import base_name, is_consent_name, is_ndjson_name

_SHOWN = 20
"""Names listed in one error; the rest is counted."""

EMPTY = "empty, nothing to import (an export that broke off looks like this)"

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
    """What a directory holds. ``problems`` stop an import; what was ``skipped`` is said and left out.

    ``empty`` files are left out too: nothing of them can be counted. One may have had content in an earlier run.
    """

    directory: Path
    files: tuple[SourceFile, ...] = ()
    empty: tuple[SourceFile, ...] = ()
    skipped_consent: tuple[str, ...] = ()
    skipped_links: tuple[str, ...] = ()
    skipped_other: tuple[str, ...] = ()
    problems: tuple[SluiceError, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files, as they are stored."""
        return sum(file.size for file in self.files)

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence per kind of file that was left out."""
        return tuple(
            f"{what}: {listed(names, shown=5, separator=', ')}"
            for what, names in (
                (EMPTY, [file.name for file in self.empty]),
                ("consent audit files are never imported", self.skipped_consent),
                ("symbolic links not followed", self.skipped_links),
                ("not regular files", self.skipped_other),
            )
            if names
        )


def open_source(path: Path) -> int:
    """A descriptor of a file to import: no symbolic link, and no waiting for the other end of a FIFO.

    Raises ``OSError``.
    """
    return os.open(path, _OPEN)


def listed(names: Iterable[str], *, shown: int = _SHOWN, separator: str = "\n  ") -> str:
    """Names for an error or a warning: the first ones, and how many more there are."""
    every = list(names)
    more = f"{separator}… and {len(every) - shown} more" if len(every) > shown else ""
    return separator.join(every[:shown]) + more


def scan(directory: Path, *, recursive: bool = False, exclude: Path | None = None) -> Scan:
    """Look at ``directory``; never raises for what it finds, see ``problems``.

    NDJSON files are ``*.ndjson`` and ``*.ndjson.zst`` in any case, hidden ones left out. Subdirectories are looked at
    only when ``recursive``, hidden ones and ``exclude`` (the jobs directory) never. Consent audit files are never
    imported (document 3 §2). Symbolic links to directories are not followed; a link to a file is, when it stays inside
    ``directory`` and its target is not imported anyway. Nothing but regular files is ever opened. Two files that
    would get the same name in the job are a problem, with or without ``.zst``, in whatever case: the job's file
    system may not tell ``A`` from ``a``.
    """
    try:
        real = directory.resolve(strict=True)
        if not real.is_dir():
            problem = InputError(
                "input-not-directory",
                "the import directory is not a directory",
                context=str(directory),
                hint="name the directory that holds the file; every NDJSON file in it is imported",
            )
            return Scan(directory, problems=(problem,))
    except PermissionError:
        problem = InputError(
            "input-unreadable",
            "the import directory cannot be reached",
            context=str(directory),
            hint="give the user who runs the pipeline permission to enter the directories above it",
        )
        return Scan(directory, problems=(problem,))
    except (OSError, RuntimeError):
        problem = InputError(
            "input-not-found",
            "the import directory does not exist",
            context=str(directory),
            hint="check services.local_import.dir or --dir; a relative path starts at the working directory",
        )
        return Scan(directory, problems=(problem,))
    walk = _Walk(real, recursive, exclude.resolve() if exclude is not None else None)
    walk.look()
    return Scan(
        directory,
        files=tuple(sorted((file for file in walk.files if file.size), key=lambda file: file.name)),
        empty=tuple(sorted((file for file in walk.files if not file.size), key=lambda file: file.name)),
        skipped_consent=tuple(sorted(walk.consent)),
        skipped_links=tuple(sorted(walk.links)),
        skipped_other=tuple(sorted(walk.other)),
        problems=tuple(_problems(directory, recursive, walk)),
    )


class _Walk:
    """The state of one walk through a directory tree."""

    def __init__(self, root: Path, recursive: bool, exclude: Path | None) -> None:
        self.root = root
        self.recursive = recursive
        self.exclude = exclude
        self.files: list[SourceFile] = []
        self.consent: list[str] = []
        self.links: list[str] = []
        self.other: list[str] = []
        self.unreadable: list[str] = []
        self.unnameable = 0
        self._followed: list[SourceFile] = []

    def look(self) -> None:
        """Walk, then decide about the links: a link to a file that is imported anyway adds nothing."""
        waiting = [self.root]
        while waiting:
            waiting.extend(self._directory(waiting.pop()))
        imported = {file.path for file in self.files}
        for file in sorted(self._followed, key=lambda file: file.name):
            if file.path in imported or is_consent_name(file.path.name):
                self.links.append(file.name)
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
            self.unreadable.append(self._name(directory))
        return below

    def _entry(self, entry: os.DirEntry[str]) -> None:
        path = Path(entry.path)
        name = self._name(path)
        if not is_ndjson_name(entry.name):
            # Worth a word only where somebody may expect that it was looked into.
            if self.recursive and entry.is_symlink() and path.is_dir() and _printable(name):
                self.links.append(name)
            return
        if not _printable(name):
            self.unnameable += 1
        elif is_consent_name(entry.name):
            self.consent.append(name)
        elif entry.is_symlink():
            self._link(path, name)
        elif not entry.is_file(follow_symlinks=False):
            self.other.append(name)
        else:
            self._file(path, name, self.files)

    def _link(self, path: Path, name: str) -> None:
        try:
            target = path.resolve(strict=True)
        except (OSError, RuntimeError):
            self.links.append(name)
            return
        inside = target.is_relative_to(self.root) and not (self.exclude and target.is_relative_to(self.exclude))
        if inside and target.is_file():
            self._file(target, name, self._followed)
        else:
            self.links.append(name)

    def _file(self, path: Path, name: str, files: list[SourceFile]) -> None:
        try:
            handle = open_source(path)
            try:
                found = os.fstat(handle)
            finally:
                os.close(handle)
        except OSError:
            self.unreadable.append(name)
            return
        if stat.S_ISREG(found.st_mode):
            files.append(SourceFile(name, base_name(Path(name).name), path, found.st_size))
        else:
            self.other.append(name)

    def _name(self, path: Path) -> str:
        return "." if path == self.root else str(path.relative_to(self.root))


def _printable(name: str) -> bool:
    """Whether a name can be shown and stored: UTF-8, no control characters."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return name.isprintable()


def _problems(directory: Path, recursive: bool, walk: _Walk) -> Iterator[SluiceError]:
    where = str(directory)
    if walk.unreadable:
        yield InputError(
            "input-unreadable",
            f"{len(walk.unreadable)} files or directories cannot be read",
            context=f"{where}\n  {listed(sorted(walk.unreadable))}",
            hint="give the user who runs the pipeline permission to read them, or move them away",
        )
    if walk.unnameable:
        yield InputError(
            "file-name",
            f"{walk.unnameable} NDJSON files have names with control characters, or that are not UTF-8",
            context=where,
            hint="rename them",
        )
    empty = sorted(file.name for file in walk.files if file.size == 0)
    if empty and len(empty) == len(walk.files):
        yield InputError(
            "empty-file",
            f"all {len(empty)} files are empty" if len(empty) > 1 else "the only file is empty",
            context=f"{where}\n  {listed(empty)}",
            hint="an export that broke off looks like this; a single empty file among others would be left out",
        )
    by_base: defaultdict[str, list[str]] = defaultdict(list)
    for file in walk.files:
        by_base[file.base.casefold()].append(file.name)
    clashes = sorted(", ".join(sorted(names)) for names in by_base.values() if len(names) > 1)
    if clashes:
        yield InputError(
            "name-clash",
            f"files would overwrite each other in the job: {len(clashes)} names occur more than once",
            context=f"{where}\n  {listed(clashes)}",
            hint="a job keeps its files in one directory: rename them, or import the directories in separate jobs",
        )
    if not walk.files and not walk.unreadable and not walk.unnameable:
        yield _nothing(where, recursive, walk)


def _nothing(where: str, recursive: bool, walk: _Walk) -> SluiceError:
    reasons = [
        text
        for count, text in (
            (len(walk.consent), "consent audit files are never imported"),
            (len(walk.links), "symbolic links that leave the directory are not followed"),
            (len(walk.other), "only regular files are read"),
        )
        if count
    ]
    if not recursive:
        reasons.append("subdirectories are looked at only with services.local_import.recursive")
    return InputError(
        "input-no-ndjson",
        "the import directory holds no file named *.ndjson or *.ndjson.zst to import",
        context=where,
        hint="; ".join(reasons) or None,
    )
