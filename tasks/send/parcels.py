"""Resources packed into transactions: as full as the limits allow, and what belongs together in one.

The rules of document 3 §7: at most ``batch_size`` resources, also when one line holds thousands, and at most
5 MiB unless a single resource is larger. The same ``Type/id`` twice in one transaction: the last wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from tasks.send.transaction import Limits
from tasks.shared.bundle import Resource


class Resolve(Enum):
    """What to do with a transaction that is refused because the target of a reference is not there."""

    LATER = auto()
    """All of it waits until everything else is sent."""
    ISOLATE = auto()
    """It is halved: the resources whose targets are there get in, the others wait."""
    NEVER = auto()
    """Nothing more will come: the refusal is final."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Resources that stay in one transaction when they fit into one: a line, or a circle of references.

    ``lanes`` name what must be sent in sequence: parcels with a lane in common are never under way together.
    """

    resources: Sequence[Resource]
    lanes: frozenset[str]


@dataclass(slots=True, eq=False)
class Parcel:
    """The content of one transaction. ``replaced`` maps an ordinal to the ordinals of resources it stands
    for."""

    groups: list[Sequence[Resource]] = field(default_factory=list)
    lanes: frozenset[str] = frozenset()
    collapsed: list[Resource] = field(default_factory=list)
    resolve: Resolve = Resolve.LATER


class _Open:
    """The transaction that is being filled."""

    def __init__(self, limits: Limits, envelope: int) -> None:
        self._limits = limits
        self._content: dict[str, tuple[Resource, int]] = {}
        self._lanes: set[str] = set()
        self._collapsed: list[Resource] = []
        self._bytes = self._envelope = envelope

    def __len__(self) -> int:
        return len(self._content)

    def fits(self, count: int, size: int) -> bool:
        return len(self._content) + count <= self._limits.batch_size and self._bytes + size <= self._limits.max_bytes

    def put(self, resource: Resource, size: int) -> None:
        key = resource.key
        earlier = self._content.pop(key, None)
        if earlier is not None:
            self._collapsed.append(earlier[0])
            self._bytes -= earlier[1]
        self._content[key] = resource, size
        self._bytes += size

    def join(self, lanes: frozenset[str]) -> None:
        self._lanes |= lanes

    def close(self, resolve: Resolve) -> Parcel:
        parcel = Parcel(
            [(resource,) for resource, _ in self._content.values()],
            frozenset(self._lanes),
            self._collapsed,
            resolve,
        )
        self._content, self._lanes, self._collapsed = {}, set(), []
        self._bytes = self._envelope
        return parcel


def pack(
    units: Iterable[Unit],
    limits: Limits,
    *,
    size: Callable[[Resource], int],
    envelope: int,
    resolve: Resolve = Resolve.LATER,
) -> Iterator[Parcel]:
    """Pack units into parcels, in order. ``size`` gives the bytes a resource adds, ``envelope`` those around
    all.

    A unit that fits into one transaction is not divided; one that does not begins a new transaction.
    """
    opened = _Open(limits, envelope)
    for unit in units:
        sizes = [size(resource) for resource in unit.resources]
        if len(opened) and not opened.fits(len(sizes), sum(sizes)):
            yield opened.close(resolve)
        for resource, bytes_ in zip(unit.resources, sizes, strict=True):
            if len(opened) and not opened.fits(1, bytes_):
                yield opened.close(resolve)
            opened.join(unit.lanes)
            opened.put(resource, bytes_)
    if len(opened):
        yield opened.close(resolve)


def pack_groups(
    units: Iterable[Unit],
    limits: Limits,
    *,
    size: Callable[[Resource], int],
    envelope: int,
    resolve: Resolve,
) -> Iterator[Parcel]:
    """Like ``pack``, but every unit stays a group, which the halving of a refused transaction respects.

    ``Type/id`` must be unique. A unit larger than the limits travels alone.
    """
    groups: list[Sequence[Resource]] = []
    lanes: set[str] = set()
    count, bytes_ = 0, envelope
    for unit in units:
        added = sum(map(size, unit.resources))
        full = count + len(unit.resources) > limits.batch_size or bytes_ + added > limits.max_bytes
        if groups and full:
            yield Parcel(groups, frozenset(lanes), resolve=resolve)
            groups, lanes, count, bytes_ = [], set(), 0, envelope
        groups.append(unit.resources)
        lanes |= unit.lanes
        count += len(unit.resources)
        bytes_ += added
    if groups:
        yield Parcel(groups, frozenset(lanes), resolve=resolve)
