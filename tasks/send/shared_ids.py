"""Ids that occur in the files of several shards of a load: their resources are sent last, by the job's own process.

A patient whose data are in the files of two shards is never sent by two child runs at once, and of several resources
with the same ``Type/id`` the last one in the order of the files wins. ``find_shared_ids`` reads the input once; it
sorts hashes on disk, because a large load has too many ids for memory. Two ids may have the same hash: then they count
as shared, and are sent last, too.
"""

from __future__ import annotations

import hashlib
import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tasks.send import STATE
from tasks.send.batches import cut_file
from tasks.shared.errors import storage_errors
from tasks.shared.fhir.bundle import CutLine, Resource
from tasks.shared.files.out_file import Spool, write_file
from tasks.shared.files.private_file import open_private
from tasks.shared.shards import division_path, load_division
from tasks.shared.step import StepContext

_HELD: Final = 1 << 19
"""Ids that are sorted in memory at once."""
_READ: Final = 1 << 13
"""Sorted ids that are read at once, of each part on disk."""
_NONE: Final[frozenset[str]] = frozenset()
_OWNER: Final = 16
"""Bits of a row that say whose the id is; the other 48 are its hash."""


class SharedIds:
    """The hashes of the shared ids, sorted, in the file at ``path``. Raises ``StorageError``."""

    def __init__(self, path: Path) -> None:
        with storage_errors(path), open_private(path) as file:
            self._hashes = array("Q", file.readall())

    def __contains__(self, key: str) -> bool:
        wanted = _hash_of(key)
        at = bisect_left(self._hashes, wanted)
        return at < len(self._hashes) and self._hashes[at] == wanted

    def among(self, resources: Iterable[Resource]) -> frozenset[str]:
        """Return the ``Type/id`` of the resources whose id is shared: those with the same one are sent in sequence."""
        return frozenset(resource.key for resource in resources if resource.key in self) if self._hashes else _NONE

    def without(self, line: CutLine, resources: Sequence[Resource]) -> Sequence[Resource]:
        """Return which ``resources`` of a line a child run may send.

        None of a line that is no Bundle with a Patient, or whose patient is in the files of another shard, too.
        """
        if not line.patients:
            return ()
        if not self._hashes:
            return resources
        if any(f"Patient/{patient}" in self for patient in line.patients):
            return ()
        return [resource for resource in resources if resource.key not in self]


class _SortedRows:
    """Rows of 64 bits, sorted in parts, in a nameless file."""

    def __init__(self, directory: Path) -> None:
        self._held: list[int] = []
        self._spool = Spool(directory)
        self._parts: list[tuple[int, int]] = []

    def add(self, rows: Iterable[int]) -> None:
        self._held += rows
        if len(self._held) >= _HELD:
            start = self._spool.size
            self._spool.write(memoryview(array("Q", sorted(self._held))).cast("B"))
            self._parts.append((start, self._spool.size))
            self._held.clear()

    def __iter__(self) -> Iterator[int]:
        return heapq.merge(sorted(self._held), *(self._part(start, end) for start, end in self._parts))

    def _part(self, start: int, end: int) -> Iterator[int]:
        for at in range(start, end, 8 * _READ):
            yield from array("Q", self._spool.read(at, min(end, at + 8 * _READ)))

    def close(self) -> None:
        self._spool.close()


def shared_ids_path(context: StepContext) -> Path:
    """Return the path of the list of shared ids."""
    return division_path(context.job_dir, context.position).with_name("shared-ids.bin")


def find_shared_ids(context: StepContext, files: Sequence[Path]) -> None:
    """Read the files of a divided load, and list the ids that no child run may send.

    These are in the files of several shards, or in one of them and in a line that no child run sends.

    Raises:
        StorageError: a file cannot be read, or the list cannot be written.
        DataError: a compressed file is damaged.
    """
    division = load_division(context.job_dir, context.position)
    shards = {file.name: shard.index for shard in (division.shards if division else ()) for file in shard.files}
    meter = context.meter
    meter.begin("looking for ids in several files")
    meter.work_on(files)
    largest, spool = context.config.limits.largest_resource, context.state(STATE)
    rows = _SortedRows(spool)
    try:
        for path in files:
            content = 0
            for line, size, _ in cut_file(path, spool=spool, largest=largest, check=context.stop.check):
                owner = shards.get(path.name, -1) + 1 if line.patients else 0
                rows.add([_hash_of(resource.key) << _OWNER | owner for resource in line.resources])
                content += size + 1
                meter.within(path, content)
            meter.within(path, content, whole=True)
        write_file(shared_ids_path(context), _shared(rows).tobytes())
    finally:
        rows.close()


def _shared(rows: Iterable[int]) -> array[int]:
    """Return the hashes of which there are rows with several owners; ``rows`` are sorted."""
    shared = array("Q")
    before = -1
    for row in rows:
        found = row >> _OWNER
        if row != before and found == before >> _OWNER and not (shared and shared[-1] == found):
            shared.append(found)
        before = row
    return shared


def _hash_of(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=6).digest(), "little")
