"""What the step reads of a resource: its type, its id, and of a Bundle the addresses of its entries.

``tasks/shared/fhir/entries.py`` reads the Bundle. One that it can read in one pass, members included, also gives the
members of its resources, and no key stands twice in it. Of any other Bundle the members are read part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Raw

from tasks.shared.fhir.entries import BundleEntry, BundleText, MemberEntry, member_entries, read_bundle, resource_texts
from tasks.shared.fhir.reading import (
    UNREADABLE,
    RepeatedKeyError,
    UnusableError,
    check_utf8,
    unique_members,
    unique_objects,
)

Members = Mapping[str, Raw]
"""The top level of a resource, each value as it is spelled."""
Needed = Callable[[Sequence[str | None], Sequence[Members]], Mapping[int, Members]]
"""Picks some of the resources with these types and members, by index."""


REPEATED: Final = "has a key twice, so what it holds is ambiguous"


class OutlineError(Exception):
    """The text is no JSON, no FHIR resource, or ambiguous. The message quotes nothing of it.

    ``reference`` is that of the error for a line of ours: ``not-a-resource`` or ``repeated-key``.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.reference = "repeated-key" if message == REPEATED else "not-a-resource"


class _Resource(msgspec.Struct, rename="camel", gc=False):
    resource_type: str | None = None
    id: str | None = None


class _Head(msgspec.Struct, rename="camel"):
    resource_type: str
    id: str | None = None


_head: Final = msgspec.json.Decoder(_Head)
_resource: Final = msgspec.json.Decoder(_Resource)
_names: Final = msgspec.json.Decoder(list[str | None])
_encode: Final = msgspec.json.Encoder().encode

_AT_ONCE: Final = 256
"""Resources of a Bundle whose members are in memory at once when it is read part by part."""
_LARGEST: Final = 1 << 20
"""Bytes of a text whose members may all be in memory: they take as much again."""
_NOTHING: Final = Raw(b"null")
_NO_BUNDLE: Final = "is no FHIR Bundle: its entries do not have the shape they must have"
_WHY: Final = {
    "not-json": "is not JSON",
    "json-too-deep": "is nested too deeply to be read",
    "not-a-bundle": _NO_BUNDLE,
    "not-an-entry": _NO_BUNDLE,
    "repeated-key": REPEATED,
}


@dataclass(frozen=True, slots=True, repr=False)
class ResourceSummary:
    """A resource: ``resources`` is what it counts for, those in the ``entries`` of a Bundle or one.

    The lists are those of a Bundle's entries and empty for everything else (``full_urls`` has one for each entry, empty
    where there is none); ``single_type`` is the type of its resource
    when there is one entry, ``bundle_type`` its own. ``root`` and ``members`` (of resources, by index) are there when
    one pass read them all, and no key stands twice in the root, in an entry, or at the top level of a resource.
    """

    type: str
    id: str | None
    entries: int = 1
    resources: int = 1
    single_type: str | None = None
    bundle_type: Any = None
    types: list[str | None] = field(default_factory=list)
    ids: list[str | None] = field(default_factory=list)
    full_urls: list[str] = field(default_factory=list)
    request_urls: list[str] = field(default_factory=list)
    root: Members | None = None
    members: Mapping[int, Members] | None = None

    @property
    def is_bundle(self) -> bool:
        """Whether it has entries that count."""
        return self.type == "Bundle"


def outline_of(text: bytes, *, urls: bool = True, needed: Needed | None = None) -> ResourceSummary:
    """Read a resource. Of what was sent, which is kept while the request is under way, neither the URLs of requests nor
    the members of resources that are not ``needed``.

    Raises ``OutlineError``.
    """
    try:
        check_utf8(text)
    except UnicodeDecodeError:
        raise OutlineError("is not UTF-8") from None
    if len(text) <= _LARGEST and (bundle := member_entries(text)) is not None:
        try:
            return _of_members(bundle, urls, needed)
        except (KeyError, *UNREADABLE):
            pass  # a resource without a type or an id
    try:
        read = read_bundle(text)
        if read is None:
            head = _head.decode(text)
            return ResourceSummary(head.resource_type, head.id)
        entries = [*read.usable()]
        inside = [_resource.decode(raw) for raw in resource_texts(entries)]
    except UnusableError as problem:
        raise OutlineError(_WHY.get(problem.reference, "is no FHIR resource")) from None
    except UNREADABLE:
        raise OutlineError("is no FHIR resource") from None
    return _bundle(
        read.id,
        read.type,
        len(entries),
        [resource.resource_type for resource in inside],
        [resource.id for resource in inside],
        *_urls(entries, urls),
    )


def _bundle(own_id: str | None, kind: Any, entries: int, types: list[str | None], *more: Any) -> ResourceSummary:
    single = types[0] if entries == len(types) == 1 else None
    return ResourceSummary("Bundle", own_id, entries, len(types), single, kind, types, *more)


def _of_members(bundle: BundleText[MemberEntry], urls: bool, needed: Needed | None) -> ResourceSummary:
    inside = [entry.resource for entry in bundle.entries if entry.resource is not None]
    types = _names.decode(_encode([one["resourceType"] for one in inside]))
    ids = _names.decode(_encode([one["id"] for one in inside]))
    members = dict(enumerate(inside)) if needed is None else needed(types, inside)
    found = bundle.entries, urls
    return _bundle(bundle.id, bundle.type, len(bundle.entries), types, ids, *_urls(*found), bundle.root, members)


def _urls(entries: Sequence[BundleEntry], of_requests: bool) -> tuple[list[str], list[str]]:
    """Return the ``fullUrl`` of each entry, empty without one, and the URLs of requests, if they are wanted."""
    return (
        [entry.full_url or "" for entry in entries],
        [entry.request.url for entry in entries if entry.request and entry.request.url] if of_requests else [],
    )


def resources_in(text: bytes, summary: ResourceSummary) -> Iterator[tuple[str, Members]]:
    """The resources of a text of which ``summary`` is the outline, one by one: the type, and the top level as it is
    spelled; of a Bundle its own elements first. ``summary`` has those of all resources, or none.

    Raises ``OutlineError`` where a key stands twice in the root, in an entry, or at the top level of a resource.
    """
    if summary.root is not None and summary.members is not None:
        yield summary.type, summary.root
        for kind, members in zip(summary.types, summary.members.values(), strict=True):
            yield kind or "", members
        return
    try:
        bundle = read_bundle(text) if summary.is_bundle else None
        if bundle is None:
            yield summary.type, unique_members(text)
            return
        yield summary.type, bundle.root
        raws = resource_texts(bundle.usable())
        for start in range(0, len(raws), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            resources = unique_objects(b"[%b]" % b",".join(raws[some]))
            for kind, members in zip(summary.types[some], resources, strict=True):
                yield kind or "", members
    except RepeatedKeyError:
        raise OutlineError(REPEATED) from None
    except UNREADABLE:
        raise OutlineError("is not JSON that can be read") from None
