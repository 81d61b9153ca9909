"""Read the entries of a Bundle: every step gets them from here, each part with the bytes it came in.

Nearly every Bundle has no white space and ends with its entries. ``raw_entries`` and ``member_entries`` read such a
Bundle in one pass of msgspec and prove that nothing is lost: what was read, written again, must be as long as the text,
which it is only when no key stands twice and no member is unknown. For any other text they return ``None``; then
``cut_bundle`` cuts it at the commas and ``read_entry`` reads piece by piece.

``raw_entries`` leaves each resource as text. ``member_entries`` reads its top level as well, so that no key stands
twice there either; it takes about twice the time, and as much memory again as the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from tasks.shared.fhir.envelope import cut_bundle
from tasks.shared.fhir.reading import (
    RESOURCE_TYPE,
    UNREADABLE,
    USUAL,
    RepeatedKeyError,
    UnusableError,
    kind_of,
    unique_members,
)

Members = dict[str, Raw]
"""The top level of a JSON object, each value as it is written."""

_DEFINED: Final = frozenset(
    {"id", "extension", "modifierExtension", "link", "fullUrl", "_fullUrl", "resource", "search", "request", "response"}
)
"""Elements of ``Bundle.entry`` (R4)."""
_AHEAD: Final = 4096
"""Bytes in which the entries of a Bundle begin."""
_AT_ONCE: Final = 256
_ENTRIES: Final = b'"entry":['
_BUNDLE: Final = Raw(b'"Bundle"')
_NULL: Final = Raw(b"null")
_EMPTY: Final = Raw(b"[]")


class EntryRequest(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """``Bundle.entry.request``."""

    method: str | None = None
    url: str | None = None
    if_none_match: str | None = None
    if_modified_since: str | None = None
    if_match: str | None = None
    if_none_exist: str | None = None


class EntrySearch(msgspec.Struct, omit_defaults=True, gc=False):
    """``Bundle.entry.search``."""

    mode: str | None = None
    score: Raw = Raw()


class BundleEntry(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """An entry of a Bundle, without its resource."""

    full_url: str | None = None
    request: EntryRequest | None = None
    response: Raw = Raw()
    search: EntrySearch | None = None

    @property
    def to_skip(self) -> bool:
        """Return whether the entry deletes something, or tells of the outcome of a search: it holds no data."""
        request, search = self.request, self.search
        return (request is not None and request.method == "DELETE") or (search is not None and search.mode == "outcome")


class RawEntry(BundleEntry, gc=False):
    """An entry whose ``resource`` is text; empty without one."""

    resource: Raw = Raw()

    @property
    def carries_nothing(self) -> bool:
        """Return whether there is nothing to load in the entry."""
        return not self.resource or self.resource == _NULL or self.to_skip


class MemberEntry(BundleEntry, gc=False):
    """An entry with the top level of its ``resource``; ``None`` without one."""

    resource: Members | None = None


T = TypeVar("T", bound=BundleEntry)


@dataclass(frozen=True, slots=True, repr=False)
class BundleText(Generic[T]):
    """A Bundle that was read in one pass: its type and id, the members around its entries, and the entries."""

    type: str | None
    id: str | None
    root: Members
    entries: list[T]


_root: Final = msgspec.json.Decoder(Members)
_text: Final = msgspec.json.Decoder(str | None)
_entry: Final = msgspec.json.Decoder(RawEntry)
_encode: Final = msgspec.json.Encoder().encode


def _reader(kind: type[T]) -> Callable[[bytes], BundleText[T] | None]:
    decode = msgspec.json.Decoder(list[kind]).decode  # type: ignore[valid-type]

    def read(text: bytes) -> BundleText[T] | None:
        start = text.find(_ENTRIES, 0, _AHEAD) + len(_ENTRIES) - 1
        if start < len(_ENTRIES):
            return None
        end = text.rfind(b"]") + 1
        # The text around is read by itself, so the entries that are cut out are the Bundle's own.
        around = b"".join((text[:start], b"[]", text[end:]))
        try:
            root = _root.decode(around)
            if len(_encode(root)) != len(around) or root.pop("entry", None) != _EMPTY:
                return None
            if root.get("resourceType") != _BUNDLE or around.count(RESOURCE_TYPE) > 1:
                return None
            entries: list[T] = decode(memoryview(text)[start:end])
            if _written(entries) != end - start:
                return None
            kind, own_id = (_text.decode(root.get(name, _NULL)) for name in ("type", "id"))
            return BundleText(kind, own_id, root, entries)
        except UNREADABLE:
            return None

    return read


def _written(entries: Sequence[BundleEntry]) -> int:
    """Return how many bytes a list of entries takes; a few at a time are written, as the list may be large."""
    slices = (entries[at : at + _AT_ONCE] for at in range(0, len(entries) or 1, _AT_ONCE))
    return 1 + sum(len(_encode(some)) - 1 for some in slices)


raw_entries: Final = _reader(RawEntry)
"""Return the entries of a Bundle with their resources as text, or ``None``; see the module."""
member_entries: Final = _reader(MemberEntry)
"""Return the entries of a Bundle with their resources read member by member, or ``None``; see the module."""


class ReadBundle(NamedTuple):
    """A Bundle's type and id, the members around its entries, and the entries in their order; one that cannot be used
    comes as the reason."""

    type: str | None
    id: str | None
    root: Members
    entries: Iterator[RawEntry | UnusableError]

    def usable(self) -> Iterator[RawEntry]:
        """Return the entries. Raises the ``UnusableError`` of one that cannot be used."""
        for entry in self.entries:
            if isinstance(entry, UnusableError):
                raise entry
            yield entry


def resource_texts(entries: Iterable[RawEntry]) -> list[Raw]:
    """Return the resources of entries, each as text."""
    return [one.resource for one in entries if one.resource and one.resource != _NULL]


def read_bundle(line: bytes) -> ReadBundle | None:
    """Return a Bundle, however it is written; ``None`` for a resource of another type.

    Raises ``UnusableError`` for a line that is no resource, and for
    a Bundle that cannot be taken apart.
    """
    if (bundle := raw_entries(line)) is not None:
        return ReadBundle(bundle.type, bundle.id, bundle.root, iter(bundle.entries))
    usual = USUAL.match(line)
    if (usual[1].decode() if usual else kind_of(line)) != "Bundle":
        return None
    envelope, pieces = cut_bundle(line)
    around = envelope.close(())
    if around.count(RESOURCE_TYPE) > 1:
        raise UnusableError("not-a-bundle", "the Bundle holds a resource outside its entries", "Bundle")
    root = _root.decode(around)
    root.pop("entry", None)
    return ReadBundle(envelope.type, envelope.id, root, map(read_entry, pieces))


def read_entry(text: bytes) -> RawEntry | UnusableError:
    """Return an entry that was cut out of its Bundle, or the reason why it cannot be used.

    ``not-an-entry`` is one of another shape, ``repeated-key`` one in which a key stands twice.
    """
    try:
        entry = _entry.decode(text)
        if len(_encode(entry)) != len(text) and not unique_members(text).keys() <= _DEFINED and not entry.resource:
            return UnusableError("not-an-entry")  # a resource may stand under a name that FHIR does not know
    except RepeatedKeyError:
        return UnusableError("repeated-key")
    except UNREADABLE:
        return UnusableError("not-an-entry")
    return entry
