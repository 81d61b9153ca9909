"""Read a line, a Bundle or one resource, into the account, and the patient of each resource (document 5, R1)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tasks.release_report.measure.account import Account, Members
from tasks.release_report.measure.json_text import decode
from tasks.shared.fhir.bundles import RESOURCES
from tasks.shared.fhir.resource import UNREADABLE

decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
decode_entries: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]] | None).decode


class Entry:
    """A resource by its elements, as they are spelled, and what stands around it in a Bundle: its URL, its request's,
    and the ``rest``."""

    __slots__ = ("kind", "members", "own", "request", "rest", "url")

    def __init__(self, members: Members, kind: str, own: str | None, url: str = "", request: str = "") -> None:
        self.members = members
        self.kind = kind
        self.own = own or ""
        self.url = url
        self.request = request
        self.rest: Members | None = None


NO_URLS: Final[dict[str, str]] = {}


def text_of(raw: msgspec.Raw | None) -> str | None:
    """Return a JSON string; ``None`` for other values."""
    value = decode(raw) if raw is not None else None
    return value if value.__class__ is str else None


def decoded(members: Members) -> dict[str, Any]:
    """Return the decoded members except the type."""
    return {name: decode(raw) for name, raw in members.items() if name != "resourceType"}


def entry_of(rest: Members) -> Entry:
    """Return an entry of a Bundle, by its members."""
    raw = rest.pop("resource", None)
    if raw is None or bytes(raw) == b"null":
        entry = Entry({}, "", "")
    else:
        members = decode_members(raw)
        entry = Entry(members, text_of(members.get("resourceType")) or "…", text_of(members.get("id")))
    if (url := text_of(rest.get("fullUrl"))) is not None:
        entry.url = url
        del rest["fullUrl"]
    if "request" in rest:
        request = decode(rest["request"])
        target = request.get("url") if isinstance(request, dict) else None
        if isinstance(target, str):
            entry.request = target
            if request.keys() <= _REQUEST and isinstance(request.get("method", ""), str):
                del rest["request"]
    entry.rest = rest
    return entry


_REQUEST: Final = frozenset({"method", "url"})


def outline(entries: list[Entry]) -> tuple[dict[str, None], dict[str, str]]:
    """Return the ids of the Patients of a Bundle, and those by ``fullUrl``."""
    patients: dict[str, None] = {}
    urls: dict[str, str] = {}
    for entry in entries:
        if entry.kind == "Patient" and entry.own:
            patients[entry.own] = None
            if entry.url:
                urls[entry.url] = entry.own
    return patients, urls


def is_no_patient(entry: Entry) -> bool:
    """For sorting: Patients first, so that they have the same numbers in ``import/`` and in what leaves."""
    return entry.kind != "Patient"


def only_patient(members: Members) -> str | None:
    """Return the Patient of a Bundle that is a resource itself, if it has exactly one."""
    try:
        entries = [entry_of(one) for one in decode_entries(members.get("entry", b"[]")) or ()]
    except UNREADABLE:
        return None
    patients, _ = outline(entries)
    return next(iter(patients)) if len(patients) == 1 else None


class _Target(msgspec.Struct, gc=False):
    reference: Any = None


_target: Final = msgspec.json.Decoder(_Target)


def owner_of(entry: Entry, urls: dict[str, str]) -> str | None:
    """Return the patient of a resource; ``None`` if it belongs to none."""
    if entry.kind == "Patient":
        return entry.own or None
    for name in ("subject", "patient", "beneficiary"):
        raw = entry.members.get(name)
        if raw is None:
            continue
        try:
            reference = _target.decode(raw).reference
        except msgspec.ValidationError:
            continue
        if reference.__class__ is str:
            if reference in urls:
                return urls[reference]
            head, found_it, own = reference.partition("/_history/")[0].rpartition("Patient/")
            if found_it and (not head or head[-1] == "/") and own and "/" not in own:
                return own
    return None


class NoResourceError(Exception):
    """A line is JSON, and no resource."""


class Lines:
    """Takes lines into an account; ``resources`` counts what was in them."""

    def __init__(self, account: Account) -> None:
        self.resources = 0
        self._account = account

    def read_line(self, line: bytes) -> None:
        """Measure one line. Raises ``NoResourceError``, and the errors in ``UNREADABLE``."""
        members = decode_members(line)
        kind = text_of(members.get("resourceType"))
        if kind is None:
            raise NoResourceError
        account = self._account
        if kind != "Bundle" or text_of(members.get("type")) in RESOURCES:
            resource = Entry(members, kind, text_of(members.get("id")))
            account.turn(owner_of(resource, NO_URLS) if kind != "Bundle" else only_patient(members))
            self._one(resource)
            return
        entries = [entry_of(one) for one in decode_entries(members.pop("entry", b"[]")) or ()]
        self._bundle(decoded(members), entries)

    def _bundle(self, around: dict[str, Any], entries: list[Entry]) -> None:
        patients, urls = outline(entries)
        only = next(iter(patients)) if len(patients) == 1 else None
        self._account.turn(only)
        self._account.outside(around)
        self._entries(entries, only, urls)

    def _entries(self, entries: list[Entry], only: str | None, urls: dict[str, str]) -> None:
        """Entries of a Bundle that is this patient's only, or whose each is can be told with the URLs of Patients."""
        account = self._account
        groups: dict[str | None, list[Entry]] = {}
        if only is not None:
            groups[only] = entries
        else:
            for entry in entries:
                groups.setdefault(owner_of(entry, urls), []).append(entry)
        for owner, group in groups.items():
            group.sort(key=is_no_patient)
            for run in [group] if owner is not None else [[one] for one in group]:
                account.turn(owner)
                for entry in run:
                    self._one(entry)

    def _one(self, entry: Entry) -> None:
        own, account = entry.own, self._account
        if entry.kind:
            self.resources += 1
            entry.members.pop("resourceType", None)
            if own:
                del entry.members["id"]
            account.resource(entry.members, entry.kind, own)
        if entry.rest:
            account.outside({"entry": [decoded(entry.rest)]})
        if entry.url or entry.request:
            account.entry(entry.url, entry.request, own)
