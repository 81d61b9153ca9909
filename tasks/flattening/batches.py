"""Batches: the requests of one group, each a Parameters resource (document 3 §5).

``batch_size_mb`` (MiB) is the memory for all groups together; each has an equal share. A batch is full when the next
resource would exceed the share, and a resource that is larger travels alone. So what is in a batch depends on the
resources and the share only: an interrupted step makes the same ones again, and leaves out those that are done.
For that plan's sake a 413 is no reason to halve one.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

MIB: Final = 1 << 20
TAIL: Final = b"]}"

_BEFORE: Final = b',{"name":"resources","resource":'
_AROUND: Final = len(_BEFORE) + len(b"}")


@dataclass(frozen=True, slots=True)
class RequestBatch:
    """The ``ordinal``-th request (from 0) of the group at ``place``."""

    place: int
    ordinal: int
    ids: Sequence[str] = field(repr=False)
    """Those of its resources, for what must agree with them."""
    body: bytes = field(repr=False)

    @property
    def resources(self) -> int:
        """The number of resources."""
        return len(self.ids)


def share(budget: int, groups: int) -> int:
    """Return the bytes for one group, of a budget in bytes for all of them."""
    return max(1, budget // max(1, groups))


def head(definition: Mapping[str, Any]) -> bytes:
    """Return the beginning of every request with this view, with ``resourceType`` as its first key."""
    return b'{"resourceType":"Parameters","parameter":[{"name":"viewDefinition","resource":%b}' % msgspec.json.encode(
        definition
    )


class Packer:
    """Packs the resources of the group at ``place``; the first ``skip`` batches are counted, not made.

    The resources go in with the bytes they came in. ``size`` is what is held, in bytes.
    """

    def __init__(self, place: int, definition: Mapping[str, Any], limit: int, *, skip: int = 0) -> None:
        self.size = 0
        self.resources = 0
        """Resources so far, of all batches."""
        self._place = place
        self._head = head(definition)
        self._limit = limit
        self._skip = skip
        self._ordinal = 0
        self._begin()

    @property
    def makes(self) -> bool:
        """Return whether the current batch is built; a batch of an earlier run is only counted."""
        return self._text is not None

    def add(self, identifier: str, raw: bytes | msgspec.Raw) -> list[RequestBatch]:
        """Take a resource in, with its id; the batches that are full now: the one before it, and its own if nothing
        fits beside."""
        full: list[RequestBatch] = []
        size = len(raw) + _AROUND
        if self._count and self._length + size > self._limit:
            full += self.end()
        self._count += 1
        self.resources += 1
        self._length += size
        if self._text is not None:
            self._ids.append(identifier)
            self._text.writelines((_BEFORE, raw, b"}"))
            self.size = self._length
        if self._length >= self._limit:
            full += self.end()
        return full

    def end(self) -> list[RequestBatch]:
        """Return the resources collected since the last batch, if any, as a batch."""
        if not self._count:
            return []
        made: list[RequestBatch] = []
        if self._text is not None:
            self._text.write(TAIL)
            # getvalue() hands over the memory itself: a batch is there once, not twice.
            made.append(RequestBatch(self._place, self._ordinal, self._ids, self._text.getvalue()))
        self._ordinal += 1
        self._begin()
        return made

    def _begin(self) -> None:
        self._count = 0
        self._ids: list[str] = []
        self._length = len(self._head) + len(TAIL)
        self._text = io.BytesIO() if self._ordinal >= self._skip else None
        if self._text is not None:
            self._text.write(self._head)
        self.size = 0
