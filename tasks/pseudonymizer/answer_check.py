"""What the step reads of a resource: its type, its id, and of a Bundle the addresses of its entries.

One pass of msgspec over the whole text, which is also the proof that it is JSON. Numbers and everything else are only
passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tasks.shared.fhir.reading import UNREADABLE, RepeatedKeyError, check_utf8, unique_members

Members = Mapping[str, msgspec.Raw]
"""The top level of a resource, each value as it is spelled."""


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


_text: Final = msgspec.json.Decoder(_Text)
_entries: Final = msgspec.json.Decoder(list[msgspec.Raw] | None)
_NOTHING: Final = msgspec.Raw(b"null")
_head: Final = msgspec.json.Decoder(_Head)


@dataclass(frozen=True, slots=True, repr=False)
class ResourceSummary:
    """A resource: ``resources`` is what it counts for, those in the ``entries`` of a Bundle or one.

    The lists are those of a Bundle's entries and empty for everything else; ``single_type`` is the type of its resource
    when there is one entry, ``bundle_type`` its own.
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

    @property
    def is_bundle(self) -> bool:
        """Whether it has entries that count."""
        return self.type == "Bundle"


def outline_of(text: bytes, *, urls: bool = True) -> ResourceSummary:
    """Read a resource; its URLs only when they are asked for: it is kept while the request is under way.

    Raises ``OutlineError``.
    """
    try:
        check_utf8(text)
    except UnicodeDecodeError:
        raise OutlineError("is not UTF-8") from None
    read = _read(text)
    if read.resource_type != "Bundle":
        return ResourceSummary(read.resource_type, read.id)
    entries = read.entry or []
    inside = [entry.resource for entry in entries if entry.resource is not None]
    return ResourceSummary(
        read.resource_type,
        read.id,
        len(entries),
        len(inside),
        inside[0].resource_type if len(entries) == len(inside) == 1 else None,
        read.type,
        [resource.resource_type for resource in inside],
        [resource.id for resource in inside],
        [entry.full_url for entry in entries if entry.full_url] if urls else [],
        [entry.request.url for entry in entries if entry.request and entry.request.url] if urls else [],
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


def resources_in(text: bytes, summary: ResourceSummary) -> Iterator[Members]:
    """The resources of a text of which ``summary`` is the outline: their top level, as it is spelled, one by one; of a
    Bundle its own elements first.

    Raises ``OutlineError`` where a key stands twice in the root, in an entry, or at the top level of a resource.
    """
    try:
        root = unique_members(text)
        if not summary.is_bundle:
            yield root
            return
        yield {name: raw for name, raw in root.items() if name != "entry"}
        for entry in _entries.decode(root.get("entry", _NOTHING)) or ():
            resource = unique_members(entry).get("resource", _NOTHING)
            if resource != _NOTHING:
                yield unique_members(resource)
    except RepeatedKeyError:
        raise OutlineError("has a key twice, so what it holds is ambiguous") from None
    except UNREADABLE:
        raise OutlineError("is not JSON that can be read") from None
