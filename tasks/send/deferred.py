"""Resources that wait for the targets of their references: on the disk, with a small index in memory.

They lie in a nameless file of one run: a resumed run finds the same resources in its input. In memory stays about a
third of a kilobyte for each waiting resource.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from tasks.shared.fhir.bundle import REFERENCE, Resource
from tasks.shared.files.out_file import Spool


class _Slot(msgspec.Struct, frozen=True, gc=False):
    """The position of a waiting resource in the input, and of its bytes in the spool."""

    file: str
    line: int
    entry: int | None
    ordinal: int
    offset: int
    size: int


class DeferredResources:
    """The waiting resources, by ``Type/id``, in the order they came. For one thread.

    They lie in ``directory`` until the context is left. Raises ``StorageError``.
    """

    def __init__(self, directory: Path) -> None:
        self._slots: dict[str, _Slot] = {}
        self._files: dict[str, str] = {}
        self._spool = Spool(directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._spool.close()

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: object) -> bool:
        return key in self._slots

    def keys(self) -> list[str]:
        """``Type/id`` of all, in the order they came."""
        return list(self._slots)

    def holds(self, resource: Resource) -> bool:
        """Return whether exactly this resource waits, rather than another one with the same ``Type/id``."""
        slot = self._slots.get(resource.key)
        return slot is not None and (slot.file, slot.ordinal) == (resource.file, resource.ordinal)

    def put(self, resource: Resource) -> None:
        """Let a resource wait. One with the same ``Type/id`` must have been taken out before."""
        offset = self._spool.size
        self._spool.write(bytes(resource.raw))
        file = self._files.setdefault(resource.file, resource.file)
        where = (file, resource.line, resource.entry, resource.ordinal)
        self._slots[resource.key] = _Slot(*where, offset, len(resource.raw))

    def take_out(self, key: str) -> tuple[str, int] | None:
        """Drop what waits under this key; its file and ordinal, ``None`` when nothing did."""
        slot = self._slots.pop(key, None)
        return (slot.file, slot.ordinal) if slot else None

    def read(self, key: str) -> Resource | None:
        """Return the waiting resource without removing it; ``None`` if it no longer waits."""
        slot = self._slots.get(key)
        if slot is None:
            return None
        kind, _, identifier = key.partition("/")
        raw = self._spool.read(slot.offset, slot.offset + slot.size)
        return Resource(kind, identifier, key, raw, slot.file, slot.line, slot.entry, slot.ordinal)

    def targets(self, key: str, base: bytes) -> Iterator[str]:
        """``Type/id`` of the waiting resources that this one refers to; ``base`` is the server's own URL."""
        resource = self.read(key)
        if resource is None:
            return
        for match in REFERENCE.finditer(resource.raw):
            text = match[2].removeprefix(base).partition(b"#")[0].partition(b"/_history/")[0]
            target = text.decode("utf-8", "replace")
            if target != key and target in self._slots:
                yield target
