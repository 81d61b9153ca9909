"""Read the entries of a Bundle: every step gets them from here, each part with the bytes it came in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from tasks.shared.fhir.envelope import Members
from tasks.shared.fhir.reading import UNREADABLE, USUAL, UnusableError, why

_BUNDLE: Final = Raw(b'"Bundle"')
_NULL: Final = Raw(b"null")


class EntryRequest(msgspec.Struct, gc=False):
    """``Bundle.entry.request``."""

    method: str | None = None
    url: str | None = None


class EntrySearch(msgspec.Struct, gc=False):
    """``Bundle.entry.search``."""

    mode: str | None = None


class RawEntry(msgspec.Struct, rename="camel", gc=False):
    """An entry of a Bundle; its ``resource`` is text, empty without one."""

    full_url: str | None = None
    request: EntryRequest | None = None
    search: EntrySearch | None = None
    resource: Raw = Raw()

    @property
    def carries_nothing(self) -> bool:
        """Return whether there is nothing to load in the entry: it deletes something, or tells of the outcome of a
        search."""
        request, search = self.request, self.search
        skipped = (request is not None and request.method == "DELETE") or (
            search is not None and search.mode == "outcome"
        )
        return skipped or not self.resource or self.resource == _NULL


_members: Final = msgspec.json.Decoder(Members)
_text: Final = msgspec.json.Decoder(str | None)
_entries: Final = msgspec.json.Decoder(list[RawEntry] | None)
_entry: Final = msgspec.json.Decoder(RawEntry)


class ReadBundle(NamedTuple):
    """A Bundle's type and id, the members around its entries, and the entries in their order."""

    type: str | None
    id: str | None
    root: Members
    entries: list[RawEntry]


def resource_texts(entries: Iterable[RawEntry]) -> list[Raw]:
    """Return the resources of entries, each as text."""
    return [one.resource for one in entries if one.resource and one.resource != _NULL]


def read_bundle(line: bytes) -> ReadBundle | None:
    """Return a Bundle; ``None`` for a resource of another type.

    Raises ``UnusableError`` for a line that is no resource, and ``not-a-bundle`` for a Bundle of another shape.
    """
    usual = USUAL.match(line)
    if usual is not None and usual[1] != b"Bundle":
        return None
    try:
        root = _members.decode(line)
    except UNREADABLE as error:
        raise UnusableError(why(error)) from None
    kind = root.get("resourceType", _NULL)
    if kind != _BUNDLE:
        if not bytes(kind).startswith(b'"'):
            raise UnusableError("not-a-resource")
        return None
    try:
        entries = _entries.decode(root.pop("entry", _NULL)) or []
        kind_of_bundle, own = (_text.decode(root.get(name, _NULL)) for name in ("type", "id"))
    except UNREADABLE as error:
        raise UnusableError(why(error, "not-a-bundle"), type="Bundle") from None
    return ReadBundle(kind_of_bundle, own, root, entries)


def read_entry(text: bytes) -> RawEntry:
    """Return an entry that was cut out of its Bundle. Raises ``UnusableError`` (``not-a-bundle``)."""
    try:
        return _entry.decode(text)
    except UNREADABLE as error:
        raise UnusableError(why(error, "not-a-bundle"), type="Bundle") from None
