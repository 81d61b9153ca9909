"""An inventory: the data files below some directories, each with size and SHA-256 of its stored bytes, and one digest.

Inventories show whether a reviewer saw the files that a step wrote, and ``send`` reads the files that a reviewer saw
(docs/decisions/11-one-judge.md). The digest is the SHA-256 over one line per file, ``{"name":…,"size":…,"sha256":…}``,
sorted by name. An inventory is stored as these lines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
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
    """One file: its path below the base, with ``/``, the bytes as stored, their SHA-256 (hex)."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Inventory:
    """Files, sorted by name."""

    entries: tuple[InventoryEntry, ...]

    @cached_property
    def lines(self) -> bytes:
        """Return one line per file. JSON escapes keep names that are not UTF-8."""
        return b"".join(json.dumps(asdict(one), separators=(",", ":")).encode() + b"\n" for one in self.entries)

    @property
    def digest(self) -> str:
        """Return the SHA-256 (hex) of the inventory: equal if names, sizes and contents are."""
        return hashlib.sha256(self.lines).hexdigest()

    def save(self, path: Path) -> None:
        """Write the lines to a file. Raises ``StorageError``."""
        write_whole(path, self.lines)


def take_inventory(
    base: Path,
    folders: Iterable[Path],
    *,
    stop: Stop,
    known: Mapping[str, str] = MappingProxyType({}),
    read: Callable[[int], None] = lambda _: None,
) -> Inventory:
    """Return the inventory of the files below ``folders``, named relative to ``base``.

    A file whose hash is ``known`` (name → SHA-256) is not read. ``read`` gets the number of bytes of each read. Raises
    ``StorageError`` and ``Stopped``.
    """
    entries = []
    for path in (path for folder in dict.fromkeys(folders) for path in finished_files(folder)):
        name = path.relative_to(base).as_posix()
        with storage_errors(path):
            entries.append(InventoryEntry(name, path.stat().st_size, known.get(name) or _hash(path, stop, read)))
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
    """Return a stored inventory; ``None`` if its file is missing, damaged, or has another digest."""
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
    """Return a line for each of the first twenty differences: removed, added, changed."""
    old, new = ({one.name: one for one in files.entries} for files in (before, now))
    told = [f"removed: {name}" for name in old.keys() - new.keys()]
    told += [f"added: {name}" for name in new.keys() - old.keys()]
    told += [f"changed: {name}" for name in old.keys() & new.keys() if old[name] != new[name]]
    return as_shown(sorted(told))
