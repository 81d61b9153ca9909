"""An inventory: the data files below some directories, each with size and SHA-256 of its stored bytes, and one digest.

The files that a step wrote, a reviewer saw at a ``wait`` and ``send`` is about to read are compared as inventories
(docs/decisions/11-one-judge.md). The digest is the SHA-256 over one line a file, sorted by name,
``{"name":…,"size":…,"sha256":…}``. An inventory is kept as such lines, with the time of the file's last change: while
this and the size are unchanged, the file is read again only for the comparison before a send.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec

from tasks.shared.errors import storage_errors
from tasks.shared.file_work import records_of
from tasks.shared.files.data_directory import as_shown, finished_files
from tasks.shared.files.part_file import write_whole
from tasks.shared.stop import Stop

_PIECE: Final = 1 << 20


@dataclass(frozen=True)
class InventoryEntry:
    """One file: its path below the base, with ``/``, the bytes as stored, their SHA-256 (hex); ``changed`` is the time
    of its last change in nanoseconds."""

    name: str
    size: int
    sha256: str
    changed: int = field(default=0, compare=False)

    def line(self, *more: str) -> bytes:
        """Return the canonical line, with ``more`` members. JSON escapes keep names that are not UTF-8."""
        members = {name: getattr(self, name) for name in ("name", "size", "sha256", *more)}
        return json.dumps(members, separators=(",", ":")).encode() + b"\n"


@dataclass(frozen=True)
class Inventory:
    """Files, sorted by name."""

    entries: tuple[InventoryEntry, ...]

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 (hex) of the inventory: equal if names, sizes and contents are."""
        return hashlib.sha256(b"".join(entry.line() for entry in self.entries)).hexdigest()

    @cached_property
    def by_name(self) -> dict[str, InventoryEntry]:
        """Return the files by their names."""
        return {entry.name: entry for entry in self.entries}

    def save(self, path: Path) -> None:
        """Save it, in a file that appears by rename. Raises ``StorageError``."""
        write_whole(path, b"".join(entry.line("changed") for entry in self.entries))

    def hash_of(self, name: str, size: int, changed: int) -> str | None:
        """Return the hash of a file that has not changed since."""
        entry = self.by_name.get(name)
        return entry.sha256 if entry is not None and (entry.size, entry.changed) == (size, changed) else None


Known = Callable[[str, int, int], str | None]
"""Returns the hash of a file with this name, size and time of change, if it is known."""


def take_inventory(
    base: Path,
    folders: Iterable[Path],
    *,
    stop: Stop,
    known: Known | None = None,
    read: Callable[[int], None] = lambda _: None,
) -> Inventory:
    """Return the inventory of the files below ``folders``, named relative to ``base``; ``read`` gets the bytes read.

    A file of which the hash is ``known`` is not read. Raises ``StorageError`` and ``Stopped``.
    """
    entries = []
    for path in (path for folder in dict.fromkeys(folders) for path in finished_files(folder)):
        name = path.relative_to(base).as_posix()
        with storage_errors(path):
            facts = path.stat()
            sha256 = known(name, facts.st_size, facts.st_mtime_ns) if known is not None else None
            entries.append(InventoryEntry(name, facts.st_size, sha256 or _hash(path, stop, read), facts.st_mtime_ns))
    return Inventory(tuple(sorted(entries, key=lambda entry: entry.name)))


def _hash(path: Path, stop: Stop, read: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            stop.check()
            digest.update(piece)
            read(len(piece))
    return digest.hexdigest()


def load(path: Path, digest: str) -> Inventory | None:
    """Return a stored inventory; ``None`` if it no longer has this digest."""
    try:
        lines = path.read_bytes().splitlines()
        # json reads names that are not UTF-8, msgspec does not.
        found = Inventory(tuple(msgspec.convert(json.loads(line), InventoryEntry) for line in lines))
    except (OSError, ValueError, RecursionError):
        return None
    return found if found.digest == digest else None


@dataclass(frozen=True)
class Recorded:
    """Inventory of the files that a step wrote: the ``digest`` in the record, and the file with this digest."""

    step: str
    position: int
    path: Path
    digest: str

    def load(self) -> Inventory | None:
        """Return the inventory; ``None`` if its file is missing or has changed."""
        return load(self.path, self.digest)


def kept_at(job_dir: Path, position: int) -> Path:
    """Return the path of the inventory of the step at ``position``."""
    return records_of(job_dir, position) / "inventory.ndjson"


def differences(before: Inventory, now: Inventory) -> list[str]:
    """Return the first twenty differences, a line each for a person: removed, added, changed."""
    old, new = before.by_name, now.by_name
    told = [f"removed: {name}" for name in old.keys() - new.keys()]
    told += [f"added: {name}" for name in new.keys() - old.keys()]
    told += [f"changed: {name}" for name in old.keys() & new.keys() if old[name] != new[name]]
    return as_shown(sorted(told))
