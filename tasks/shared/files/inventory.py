"""An inventory: the data files below some directories, each with size and SHA-256 of its stored bytes, and one digest.

The files that a step wrote, a reviewer saw at a ``wait`` and ``send`` is about to read are compared as inventories
(document 3 §7, first paragraph; ``4-product.md`` §2, "An approval is for what was seen"). The files are those of
``finished_files``. Memory grows with their number, a few hundred bytes each, not with their size.

The digest is the SHA-256 over one line a file, sorted by name, ``{"name":…,"size":…,"sha256":…}``. An inventory is kept
as NDJSON of such lines (0600) in ``.results/``, and its digest in the record, so that the file can be
checked. A kept line also has the ``state`` of the file: while this is unchanged, the file is read again only for the
comparison before a send.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from tasks.shared.errors import storage_errors
from tasks.shared.files.data_directory import as_shown, finished_files
from tasks.shared.files.part_file import PartFile, publish
from tasks.shared.stop import Stop
from tasks.shared.work import for_each

THREADS: Final = 2
"""One SHA-256 is slower than a disk, two are not."""

_PIECE: Final = 1 << 20
_LEAST: Final = 1 << 12
_SETTLED: Final = 2_000_000_000
"""Nanoseconds. A file younger than this may be written to again without another time stamp."""

State = tuple[int, int, int, int, int]
"""Device, inode, size in bytes, times of the last change of content and of the inode in nanoseconds."""


def state_of(found: os.stat_result) -> State:
    """Return the facts that change when a file is written to or replaced."""
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@dataclass(frozen=True)
class InventoryEntry:
    """One file: its path below the base, with ``/``, the bytes as stored, their SHA-256 (hex)."""

    name: str
    size: int
    sha256: str
    state: State | None = field(default=None, compare=False)

    @property
    def line(self) -> bytes:
        """Return the canonical line. JSON escapes keep names that are not UTF-8."""
        return _json({"name": self.name, "size": self.size, "sha256": self.sha256})


@dataclass(frozen=True)
class Inventory:
    """Files, sorted by name; ``taken`` is when the first was looked at, in nanoseconds since 1970."""

    entries: tuple[InventoryEntry, ...]
    taken: int = field(default=0, compare=False)

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 (hex) of the inventory: equal if names, sizes and contents are."""
        digest = hashlib.sha256()
        for entry in self.entries:
            digest.update(entry.line)
        return digest.hexdigest()

    @cached_property
    def by_name(self) -> dict[str, InventoryEntry]:
        """Return the files by their names."""
        return {entry.name: entry for entry in self.entries}

    def below(self, folder: str) -> Inventory:
        """Return the files of one of the directories."""
        return Inventory(tuple(entry for entry in self.entries if entry.name.startswith(f"{folder}/")), self.taken)

    def save(self, path: Path) -> None:
        """Save it, in a file that appears by rename. Raises ``StorageError``."""
        with PartFile(path) as file:
            for entry in self.entries:
                state = entry.state
                settled = state is not None and max(state[3:]) < self.taken - _SETTLED
                file.write(entry.line if not settled else entry.line[:-2] + b',"state":' + _json(state)[:-1] + b"}\n")
            file.sync()
            publish(path)

    def hash_of(self, name: str, state: State) -> str | None:
        """Return the hash of a file whose state has not changed since."""
        entry = self.by_name.get(name)
        return entry.sha256 if entry is not None and entry.state == state else None


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


Known = Callable[[str, State], str | None]
"""Returns the hash of a file with this name and state, if it is known."""


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
    taken = time.time_ns()
    paths = [path for folder in dict.fromkeys(folders) for path in finished_files(folder)]
    entries: list[InventoryEntry] = []

    def one(path: Path, stop: Stop) -> None:
        entries.append(_entry(path, path.relative_to(base).as_posix(), known, stop, read))

    for_each(paths, one, threads=THREADS, stop=stop)
    return Inventory(tuple(sorted(entries, key=lambda entry: entry.name)), taken)


def _entry(path: Path, name: str, known: Known | None, stop: Stop, read: Callable[[int], None]) -> InventoryEntry:
    with storage_errors(path), path.open("rb", buffering=0) as file:
        state = state_of(os.fstat(file.fileno()))
        sha256 = known(name, state) if known is not None else None
        if sha256 is not None:
            return InventoryEntry(name, state[2], sha256, state)
        digest = hashlib.sha256()
        buffer = bytearray(min(_PIECE, max(state[2], _LEAST)))
        view = memoryview(buffer)
        size = 0
        while count := file.readinto(buffer):
            stop.check()
            digest.update(view[:count])
            size += count
            read(count)
        return InventoryEntry(name, size, digest.hexdigest(), state)


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
    return job_dir / ".results" / f"{position}-inventory.ndjson"


def differences(before: Inventory, now: Inventory) -> list[str]:
    """Return the first twenty differences, a line each for a person: removed, added, changed, renamed."""
    new = {entry.name: entry for entry in now.entries if entry.name not in before.by_name}
    by_content = {(entry.size, entry.sha256): name for name, entry in new.items()}
    told = [f"changed: {entry.name}" for entry in now.entries if before.by_name.get(entry.name, entry) != entry]
    for entry in before.entries:
        if entry.name not in now.by_name:
            name = by_content.pop((entry.size, entry.sha256), None)
            told.append(f"removed: {entry.name}" if name is None else f"renamed: {entry.name} to {name}")
            new.pop(name or "", None)
    told += [f"added: {name}" for name in new]
    return as_shown(sorted(told))
