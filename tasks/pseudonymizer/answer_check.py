"""Read the type and id of a resource, and the ``fullUrl`` of the entries of a Bundle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Raw

from tasks.shared.fhir.entries import read_bundle, resource_texts
from tasks.shared.fhir.r4 import PERSONS
from tasks.shared.fhir.reading import UNREADABLE, UnusableError, check_utf8

Members = Mapping[str, Raw]
"""The top level of a resource, each value as it is spelled."""
HOLDERS: Final = PERSONS | {"Bundle", "Parameters"}
"""Types of resources that are a person, or may have one inside."""


class OutlineError(Exception):
    """The text is no JSON, or no FHIR resource. The message quotes nothing of it."""


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
_members: Final = msgspec.json.Decoder(dict[str, Raw])

_WHY: Final = {
    "not-json": "is not JSON",
    "json-too-deep": "is nested too deeply to be read",
    "not-a-bundle": "is no FHIR Bundle: its entries do not have the shape they must have",
}


@dataclass(frozen=True, repr=False)
class ResourceSummary:
    """The resource ``text``: ``resources`` is what it counts for, those in the ``entries`` of a Bundle or one.

    The lists are those of a Bundle's entries and empty for everything else (``full_urls`` has one for each entry, empty
    where there is none); ``single_type`` is the type of its resource when there is one entry, ``bundle_type`` its own.
    ``root`` has the members around the entries of a Bundle that came back, ``raws`` the texts of its resources.
    ``holders`` are, of what was sent, the texts of resources that are persons or may have some inside.
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
    raws: Sequence[Raw] = ()
    holders: Sequence[bytes | Raw] = ()

    @property
    def is_bundle(self) -> bool:
        """Return whether the resource has entries that count."""
        return self.type == "Bundle"

    def all_members(self) -> Iterator[tuple[str, Members]]:
        """Yield the resources one by one: the type, and the top level as it is spelled; a Bundle's own elements
        first."""
        if self.root is None:
            yield self.type, _members.decode(self.text)
            return
        yield self.type, self.root
        for kind, raw in zip(self.types, self.raws, strict=True):
            yield kind or "", _members.decode(raw)


def outline_of(text: bytes, *, sent: bool = False) -> ResourceSummary:
    """Read a resource. Of what is ``sent``, which stays while the request is under way, only the ``holders`` are kept:
    it has no ``all_members``.

    Raises ``OutlineError``.
    """
    try:
        check_utf8(text)
        read = read_bundle(text)
        if read is None:
            line = _line.decode(text)
            whole = (text,) if sent and line.may_hold_persons else ()
            return ResourceSummary(text, line.resource_type, line.id, holders=whole)
        entries = read.entries
        raws = resource_texts(entries)
        inside = [_resource.decode(raw) for raw in raws]
    except UnusableError as problem:
        raise OutlineError(_WHY.get(problem.reference, "is no FHIR resource")) from None
    except UnicodeDecodeError:
        raise OutlineError("is not UTF-8") from None
    except UNREADABLE:
        raise OutlineError("is no FHIR resource") from None
    types = [one.resource_type for one in inside]
    return ResourceSummary(
        text,
        "Bundle",
        read.id,
        entries=len(entries),
        resources=len(types),
        single_type=types[0] if len(entries) == len(types) == 1 else None,
        bundle_type=read.type,
        types=types,
        ids=[one.id for one in inside],
        full_urls=[entry.full_url or "" for entry in entries],
        request_urls=[entry.request.url for entry in entries if entry.request and entry.request.url],
        root=None if sent else read.root,
        raws=() if sent else raws,
        holders=[raw for raw, one in zip(raws, inside, strict=True) if one.may_hold_persons] if sent else (),
    )
