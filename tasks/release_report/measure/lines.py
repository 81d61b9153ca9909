"""A line taken into the account: a Bundle, or one resource, and whose the resources are (document 5, R1)."""

from __future__ import annotations

from typing import Any, Final

from tasks.release_report.measure.account import Account
from tasks.release_report.measure.entries import (
    NO_URLS,
    Entry,
    called,
    decode_entries,
    decode_members,
    decoded,
    entries_of,
    entry_of,
    is_no_patient,
    only_patient,
    outline,
    owner_of,
    text_of,
    usual_entry,
)
from tasks.shared.fhir.bundle import RESOURCES
from tasks.shared.fhir.entries import member_entries
from tasks.shared.fhir.long_line import LongLine
from tasks.shared.stop import Stop

_BUNDLE: Final = b'"Bundle"'
_PART: Final = 1 << 20
"""Bytes of a long line that are taken in at once."""


class NoResourceError(Exception):
    """A line is JSON, and no resource."""


class Lines:
    """Takes lines into an account; ``resources`` counts what was in them."""

    def __init__(self, account: Account, stop: Stop) -> None:
        self.resources = 0
        self._account = account
        self._stop = stop

    def read_line(self, line: bytes | LongLine) -> None:
        """Measure one line. Raises ``NoResourceError``, ``DataError``, and the errors in ``UNREADABLE``."""
        if isinstance(line, LongLine):
            self._long(line)
        else:
            self._whole(line)

    def _whole(self, line: bytes) -> None:
        if _BUNDLE in line[:64]:
            usual = member_entries(line)
            if usual is not None and usual.type not in RESOURCES:
                self._bundle(decoded(usual.root), list(map(usual_entry, usual.entries)))
                return
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
        patients, urls, local = outline(entries)
        only = next(iter(patients)) if len(patients) == 1 else None
        self._account.turn(only)
        self._account.outside(around)
        self._entries(entries, only, urls, local)

    def _entries(self, entries: list[Entry], only: str | None, urls: dict[str, str], local: set[str]) -> None:
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
                account.end_of_line(local)

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

    def _long(self, line: LongLine) -> None:
        account = self._account
        if line.resource_type != "Bundle":
            self._whole(line.whole())
            return
        envelope = decode_members(line.envelope().close(()))
        if text_of(envelope.get("type")) in RESOURCES:
            self._whole(line.whole())
            return
        urls: dict[str, str] = {}
        patients: dict[str, None] = {}
        for part in line.parts(_PART):
            for url, own in called(part):
                if url:
                    account.targets.urls.hashes.append(account.lookup.hash(url))
                if own:
                    patients[own] = None
                    if url:
                        urls[url] = own
            account.targets.urls.settle()
        only = next(iter(patients)) if len(patients) == 1 else None
        account.turn(only)
        envelope.pop("entry", None)
        account.outside(decoded(envelope))
        for part in line.parts(_PART):
            self._stop.check()
            entries = entries_of(part)
            self._entries(entries, only, urls, outline(entries)[2])
            account.settle()
