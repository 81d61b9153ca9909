"""Read the type and id of a resource, and the ``fullUrl`` of the entries of a Bundle.

``tasks/shared/fhir/entries.py`` reads the Bundle. One that it can read in one pass, members included, also gives the
members of its resources, and no key stands twice in it. Of any other Bundle the members are read part by part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import msgspec
from msgspec import Raw

from tasks.shared.fhir.entries import (
    BundleEntry,
    BundleText,
    MemberEntry,
    ReadBundle,
    member_entries,
    read_bundle,
    resource_texts,
)
from tasks.shared.fhir.r4 import PERSONS
from tasks.shared.fhir.reading import (
    UNREADABLE,
    RepeatedKeyError,
    UnusableError,
    check_utf8,
    unique_members,
    unique_objects,
)
from tasks.shared.fhir.references import spelled_references

Members = Mapping[str, Raw]
"""The top level of a resource, each value as it is spelled."""
HOLDERS: Final = PERSONS | {"Bundle", "Parameters"}
"""Types of resources that are a person, or may have one inside."""

REPEATED: Final = "has a key twice, so what it holds is ambiguous"


class OutlineError(Exception):
    """The text is no JSON, no FHIR resource, or ambiguous. The message quotes nothing of it.

    ``reference`` is that of the error for a line of ours: ``not-a-resource`` or ``repeated-key``.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.reference = "repeated-key" if message == REPEATED else "not-a-resource"


class _AnswerResource(msgspec.Struct, rename="camel", gc=False):
    resource_type: str | None = None
    id: str | None = None
    contained: Raw = Raw()

    @property
    def may_hold_persons(self) -> bool:
        """Return whether the resource is a person or can contain one."""
        return self.resource_type in HOLDERS or bool(self.contained)


class _AnswerLine(_AnswerResource, rename="camel"):
    resource_type: str


_line: Final = msgspec.json.Decoder(_AnswerLine)
_resource: Final = msgspec.json.Decoder(_AnswerResource)
_names: Final = msgspec.json.Decoder(list[str | None])
_encode: Final = msgspec.json.Encoder().encode

_AT_ONCE: Final = 256
"""Resources of a Bundle whose members are in memory at once when it is read part by part."""
_LARGEST: Final = 1 << 20
"""Bytes of a text whose members may all be in memory: they take as much again."""
_NO_BUNDLE: Final = "is no FHIR Bundle: its entries do not have the shape they must have"
_WHY: Final = {
    "not-json": "is not JSON",
    "json-too-deep": "is nested too deeply to be read",
    "not-a-bundle": _NO_BUNDLE,
    "not-an-entry": _NO_BUNDLE,
    "repeated-key": REPEATED,
}


@dataclass(frozen=True, repr=False)
class ResourceSummary:
    """The resource ``text``: ``resources`` is what it counts for, those in the ``entries`` of a Bundle or one.

    The lists are those of a Bundle's entries and empty for everything else (``full_urls`` has one for each entry, empty
    where there is none); ``single_type`` is the type of its resource when there is one entry, ``bundle_type`` its own.
    ``root`` is that of a Bundle that came back; ``members`` are those of its resources where one pass read them all,
    and no key stands twice in the root, in an entry, or at the top level of a resource; else ``raws`` are their texts.
    ``holders`` are, of what was sent, the texts of resources that are persons or may have some inside, by index.
    """

    text: bytes
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
    members: Sequence[Members] | None = None
    raws: Sequence[Raw] = ()
    holders: Mapping[int, bytes | Raw] = field(default_factory=dict)

    @property
    def is_bundle(self) -> bool:
        """Return whether the resource has entries that count."""
        return self.type == "Bundle"

    @cached_property
    def references(self) -> list[bytes]:
        """The references in the text, in their order."""
        return spelled_references(self.text)

    def all_members(self) -> Iterator[tuple[str, Members]]:
        """Yield the resources one by one: the type, and the top level as it is spelled; a Bundle's own elements first.

        Raises ``OutlineError`` where a key stands twice in the root, in an entry, or at the top level of a resource.
        """
        try:
            if self.root is None:
                yield self.type, unique_members(self.text)
                return
            yield self.type, self.root
            for start in range(0, len(self.types), _AT_ONCE):
                some = slice(start, start + _AT_ONCE)
                for kind, members in zip(self.types[some], self._members_of(some), strict=True):
                    yield kind or "", members
        except RepeatedKeyError:
            raise OutlineError(REPEATED) from None
        except UNREADABLE:
            raise OutlineError("is not JSON that can be read") from None

    def _members_of(self, some: slice) -> Sequence[Members]:
        if self.members is not None:
            return self.members[some]
        return unique_objects(b"[%b]" % b",".join(self.raws[some]))


def outline_of(text: bytes, *, sent: bool = False) -> ResourceSummary:
    """Read a resource. Of what is ``sent``, which stays while the request is under way, only the ``holders`` are kept:
    it has no ``all_members``.

    Raises ``OutlineError``.
    """
    try:
        check_utf8(text)
    except UnicodeDecodeError:
        raise OutlineError("is not UTF-8") from None
    if not sent and len(text) <= _LARGEST and (bundle := member_entries(text)) is not None:
        try:
            return _of_members(text, bundle)
        except (KeyError, *UNREADABLE):
            pass  # a resource without a type or an id
    try:
        read = read_bundle(text)
        if read is None:
            line = _line.decode(text)
            whole = {0: text} if sent and line.may_hold_persons else {}
            return ResourceSummary(text, line.resource_type, line.id, holders=whole)
        entries = [*read.usable()]
        raws = resource_texts(entries)
        inside = [_resource.decode(raw) for raw in raws]
    except UnusableError as problem:
        raise OutlineError(_WHY.get(problem.reference, "is no FHIR resource")) from None
    except UNREADABLE:
        raise OutlineError("is no FHIR resource") from None
    types, ids = [one.resource_type for one in inside], [one.id for one in inside]
    if not sent:
        return _bundle(text, read, entries, types, ids, root=read.root, raws=raws)
    holders = {index: raws[index] for index, one in enumerate(inside) if one.may_hold_persons}
    return _bundle(text, read, entries, types, ids, holders=holders)


def _of_members(text: bytes, bundle: BundleText[MemberEntry]) -> ResourceSummary:
    inside = [entry.resource for entry in bundle.entries if entry.resource is not None]
    types = _names.decode(_encode([one["resourceType"] for one in inside]))
    ids = _names.decode(_encode([one["id"] for one in inside]))
    return _bundle(text, bundle, bundle.entries, types, ids, root=bundle.root, members=inside)


def _bundle(
    text: bytes,
    bundle: ReadBundle | BundleText[MemberEntry],
    entries: Sequence[BundleEntry],
    types: list[str | None],
    ids: list[str | None],
    **more: Any,
) -> ResourceSummary:
    return ResourceSummary(
        text,
        "Bundle",
        bundle.id,
        entries=len(entries),
        resources=len(types),
        single_type=types[0] if len(entries) == len(types) == 1 else None,
        bundle_type=bundle.type,
        types=types,
        ids=ids,
        full_urls=[entry.full_url or "" for entry in entries],
        request_urls=[entry.request.url for entry in entries if entry.request and entry.request.url],
        **more,
    )
