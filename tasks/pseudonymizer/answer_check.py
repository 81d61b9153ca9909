"""What the step reads of a resource: its type, its id, and of a Bundle the addresses of its entries.

One pass of msgspec over the whole text, which is also the proof that it is JSON. Numbers and everything else are only
passed over. Nearly every Bundle is one without white space, entries last: of such a one the same pass also gives the
members of its resources, and proves that no key stands twice (``_in_one_pass``). Others are read part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from tasks.shared.fhir.reading import UNREADABLE, RepeatedKeyError, check_utf8, unique_members, unique_objects

Members = Mapping[str, Raw]
"""The top level of a resource, each value as it is spelled."""
Needed = Callable[[Sequence[str | None], Sequence[Members]], Mapping[int, Members]]
"""Picks some of the resources with these types and members, by index."""


class OutlineError(Exception):
    """The text is no JSON, or no FHIR resource. The message quotes nothing of it."""


class _Resource(msgspec.Struct, rename="camel", gc=False):
    resource_type: str | None = None
    id: str | None = None


class _Request(msgspec.Struct, gc=False):
    url: str | None = None


class _Entry(msgspec.Struct, rename="camel", gc=False):
    full_url: str | None = None
    request: _Request | None = None
    resource: _Resource | None = None


class _Text(msgspec.Struct, rename="camel"):
    resource_type: str
    id: str | None = None
    type: Any = None
    entry: list[_Entry] | None = None


class _Head(msgspec.Struct, rename="camel"):
    resource_type: str
    id: str | None = None


class _CompactRequest(msgspec.Struct, rename="camel", gc=False):
    method: Raw | UnsetType = UNSET
    url: str | UnsetType | None = UNSET
    if_none_match: Raw | UnsetType = UNSET
    if_modified_since: Raw | UnsetType = UNSET
    if_match: Raw | UnsetType = UNSET
    if_none_exist: Raw | UnsetType = UNSET


class _CompactEntry(msgspec.Struct, rename="camel", gc=False):
    """All that usually stands in an entry: what else does is read part by part."""

    full_url: str | UnsetType | None = UNSET
    resource: dict[str, Raw] | UnsetType = UNSET
    request: _CompactRequest | UnsetType = UNSET
    response: Raw | UnsetType = UNSET
    search: Raw | UnsetType = UNSET


_text: Final = msgspec.json.Decoder(_Text)
_head: Final = msgspec.json.Decoder(_Head)
_root: Final = msgspec.json.Decoder(dict[str, Raw])
_compact: Final = msgspec.json.Decoder(list[_CompactEntry])
_names: Final = msgspec.json.Decoder(list[str | None])
_encode: Final = msgspec.json.Encoder().encode

_AT_ONCE: Final = 256
"""Resources of a Bundle whose members are in memory at once when it is read part by part."""
_LARGEST: Final = 1 << 20
"""Bytes of a text whose members may all be in memory: they take as much again."""
_AHEAD: Final = 4096
"""Bytes in which the entries of a Bundle begin."""
_ENTRIES: Final = b'"entry":['
_NOTHING: Final = Raw(b"null")
_EMPTY: Final = Raw(b"[]")


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
    if (whole := _in_one_pass(text, urls, needed)) is not None:
        return whole
    read = _read(text)
    if read.resource_type != "Bundle":
        return ResourceSummary(read.resource_type, read.id)
    entries = read.entry or []
    inside = [entry.resource for entry in entries if entry.resource is not None]
    return _bundle(
        read.id,
        read.type,
        len(entries),
        [resource.resource_type for resource in inside],
        [resource.id for resource in inside],
        [entry.full_url or "" for entry in entries],
        [entry.request.url for entry in entries if entry.request and entry.request.url] if urls else [],
    )


def _bundle(own_id: str | None, kind: Any, entries: int, types: list[str | None], *more: Any) -> ResourceSummary:
    single = types[0] if entries == len(types) == 1 else None
    return ResourceSummary("Bundle", own_id, entries, len(types), single, kind, types, *more)


def _in_one_pass(text: bytes, urls: bool, needed: Needed | None) -> ResourceSummary | None:
    """A Bundle as most are: of a moderate size, no white space, entries last, no key twice; ``None`` for every other.

    What stands around its entries is read by itself, so the entries that are cut out are the Bundle's own. What was
    read is written anew: as long as the text it is only when nothing is missing, neither a key nor a value of one that
    stands twice, since nothing can be spelled shorter.
    """
    if len(text) > _LARGEST or (start := text.find(_ENTRIES, 0, _AHEAD) + len(_ENTRIES) - 1) < len(_ENTRIES):
        return None
    end = text.rfind(b"]") + 1
    around = b"".join((text[:start], b"[]", text[end:]))
    try:
        root = _root.decode(around)
        if len(_encode(root)) != len(around) or root.pop("entry", None) != _EMPTY:
            return None
        entries = _compact.decode(memoryview(text)[start:end])
        if len(_encode(entries)) != end - start:
            return None
        inside = [entry.resource for entry in entries if entry.resource is not UNSET]
        types = _names.decode(_encode([one["resourceType"] for one in inside]))
        ids = _names.decode(_encode([one["id"] for one in inside]))
        kind, own_id = _names.decode(_encode([root["resourceType"], root.get("id", _NOTHING)]))
        bundle_type = msgspec.json.decode(root.get("type", _NOTHING))
    except (KeyError, *UNREADABLE):
        return None
    if kind != "Bundle":
        return None
    return _bundle(
        own_id,
        bundle_type,
        len(entries),
        types,
        ids,
        [entry.full_url or "" for entry in entries],
        [entry.request.url for entry in entries if entry.request and entry.request.url] if urls else [],
        root,
        dict(enumerate(inside)) if needed is None else needed(types, inside),
    )


def _read(text: bytes) -> _Text:
    try:
        return _text.decode(text)
    except msgspec.ValidationError:
        pass  # another resource may have an `entry` of another shape
    except RecursionError:
        raise OutlineError("is nested too deeply to be read") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise OutlineError("is not JSON") from None
    try:
        head = _head.decode(text)
    except UNREADABLE:
        raise OutlineError("is no FHIR resource") from None
    if head.resource_type == "Bundle":
        raise OutlineError("is no FHIR Bundle: its entries do not have the shape they must have")
    return _Text(head.resource_type, head.id)


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
        root = unique_members(text)
        if not summary.is_bundle:
            yield summary.type, root
            return
        entry = root.pop("entry", _NOTHING)
        yield summary.type, root
        entries = [] if entry == _NOTHING else unique_objects(entry)
        raws = [raw for one in entries if (raw := one.get("resource", _NOTHING)) != _NOTHING]
        for start in range(0, len(raws), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            resources = unique_objects(b"[%b]" % b",".join(raws[some]))
            for kind, members in zip(summary.types[some], resources, strict=True):
                yield kind or "", members
    except RepeatedKeyError:
        raise OutlineError("has a key twice, so what it holds is ambiguous") from None
    except UNREADABLE:
        raise OutlineError("is not JSON that can be read") from None
