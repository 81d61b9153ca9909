"""The measuring pass: what is in some files, in one streaming read of each (document 5, sections 2 and 4 to 12).

NDJSON, plain and zstd: Bundles, one resource a line, any number of files, resources of nobody (``core``). CSV is
``tables.py``'s. Every leaf is counted in patients, not in rows; ``measured.py`` says what comes out, ``cells.py``,
``trie.py``, ``codes.py``, ``one_each.py``, ``numbers.py`` and ``originals.py`` the bounds of what is held. Others:
50,000 classes of section 8; resources a patient of the first million patients; 2,400 years, quarters and months a path;
a line above 4 MB goes to disk and is read entry by entry, but what is no Bundle is held whole. Patients are known by a
hash, 110 bytes each.

Where each patient's data come together (Bundles, as extraction servers make them) counters suffice, and memory does not
grow with the patients but for that; as soon as a patient returns, the pass begins again with sets of them.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, Final

import msgspec

from tasks.release_report import measured as found
from tasks.release_report.cells import Cell
from tasks.release_report.codes import CodeTable
from tasks.release_report.measured import Codes, Dates, Ids, Measured, MeasuredFile, References, TypeCount
from tasks.release_report.numbers import quartiles
from tasks.release_report.originals import NOBODYS, Originals
from tasks.release_report.tables import NoTableError, is_table, read_table, with_patients_first
from tasks.release_report.trie import DATE, Node
from tasks.release_report.walk import QUARTER, Account, Apart, Members, decode
from tasks.shared.errors import DataError, StorageError
from tasks.shared.fhir.bundle import RESOURCES
from tasks.shared.fhir.long_line import LongLine, lines_with_long
from tasks.shared.fhir.reading import UNREADABLE
from tasks.shared.files.lines import open_content
from tasks.shared.stop import Stop

_LINE: Final = 4 << 20
"""Bytes of a line that is decoded as a whole; it takes ten times as much in memory."""
_NINETY: Final = 32_871
"""Days that make 90 years."""
_SHIFTS: Final = 1_000
_PRECISIONS: Final = {4: "year", 7: "month", 10: "day"}


def measure(
    files: Sequence[Path],
    *,
    base: Path,
    spool: Path,
    stop: Stop,
    k: int,
    today: date,
    region_prefix: int = 2,
    originals: Originals | None = None,
    collect: bool = False,
    read: Callable[[int], None] = lambda _: None,
) -> Measured:
    """What is in ``files``, named relative to ``base``.

    With ``collect`` they are ``import/``, whose values go into ``originals``; else they are what leaves, and what is
    among ``originals`` is found. ``spool`` is the directory of nameless temporary files, ``region_prefix`` how many
    signs of a postal code make a region, ``read`` is told of stored bytes that were read.

    A file, or a line, that cannot be read ends nothing: it is in ``unread``, quoting nothing. Raises ``Stopped``, and
    ``StorageError`` of the spool (``disk-full`` …).
    """
    started = time.perf_counter()
    tables = bool(files) and all(map(is_table, files))
    together = not tables and _begins_with_bundle(files)
    while True:
        account = Account(
            spool, today=today, together=together, originals=originals, collect=collect, region=region_prefix
        )
        try:
            reader = _Reader(account, base, spool, stop, read)
            order = list(files) if together else with_patients_first(list(files)) if tables else _patients_first(files)
            for path in order:
                reader.file(path)
            account.spread()
            return replace(_result(account, reader, k, started), tables=tables)
        except Apart:
            together = False
            if originals is not None and collect:
                originals.forget()
        finally:
            account.close()


def _first_type(path: Path) -> str:
    """The type that a file begins with, as far as its first bytes tell; blank otherwise."""
    head = bytearray(_HEAD)
    try:
        with open_content(path) as content:
            count = content.readinto(head) or 0
    except (DataError, StorageError):
        return ""
    match = _FIRST.search(head, 0, count)
    return match[1].decode() if match is not None else ""


_HEAD: Final = 1 << 16
_FIRST: Final = re.compile(rb'"resourceType"\s*:\s*"([A-Za-z]+)"')


_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entries: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]] | None)


def _begins_with_bundle(files: Sequence[Path]) -> bool:
    for path in files:
        if kind := _first_type(path):
            return kind == "Bundle"
    return True


def _patients_first(files: Sequence[Path]) -> list[Path]:
    """Files of Patients first: whether a date is before birth can be told then."""
    return sorted(files, key=lambda path: _first_type(path) != "Patient")


class _Reader:
    """Reads the files into an account."""

    def __init__(self, account: Account, base: Path, spool: Path, stop: Stop, read: Callable[[int], None]) -> None:
        self.files: list[tuple[str, int, int, int, int, str, Cell]] = []
        self.unread: dict[str, str] = {}
        self._account = account
        self._base = base
        self._spool = spool
        self._stop = stop
        self._read = read
        self._resources = 0

    def file(self, path: Path) -> None:
        """One file, to its end; what is wrong with it is in ``unread``."""
        account, name = self._account, path.relative_to(self._base).as_posix()
        digest = hashlib.sha256()
        stored = content = lines = 0

        def see(piece: bytes | memoryview) -> None:
            nonlocal stored
            digest.update(piece)
            stored += len(piece)
            self._read(len(piece))

        def inside(piece: bytes | memoryview) -> None:
            nonlocal content
            content += len(piece)

        account.file = Cell()
        self._resources = 0
        try:
            if is_table(path):
                for _ in read_table(account, path, stored=see, inside=inside, check=self._stop.check):
                    lines += 1
                    account.settle()
                self._resources = lines
            else:
                for number, line in lines_with_long(path, limit=_LINE, spool=self._spool, stored=see, inside=inside):
                    self._stop.check()
                    lines += 1
                    self._line(name, number, line)
                    account.settle()
        except (DataError, StorageError, NoTableError) as error:
            if isinstance(error, StorageError) and error.context != str(path):
                raise  # the disk of the temporary files
            self.unread.setdefault(name, str(error) if isinstance(error, NoTableError) else error.message)
            if (rest := _hash_rest(path, digest, stored)) is None:
                return
            stored += rest
        finally:
            account.end()
        self.files.append((name, stored, content, lines, self._resources, digest.hexdigest(), account.file))

    def _line(self, name: str, number: int, line: bytes | LongLine) -> None:
        try:
            if isinstance(line, LongLine):
                self._long(line)
            else:
                self._whole(line)
        except (*UNREADABLE, DataError, _NoResourceError):
            self.unread.setdefault(name, f"line {number} is no FHIR resource that can be read")

    def _whole(self, line: bytes) -> None:
        if _BUNDLE in line[:64]:
            try:
                usual = _usual.decode(line)
            except msgspec.ValidationError:
                pass  # the long way
            else:
                if usual.resourceType == "Bundle" and usual.type not in RESOURCES:
                    self._bundle({"id": usual.id, "type": usual.type}, [_usual_entry(one) for one in usual.entry])
                    return
        members = _members.decode(line)
        kind = _text(members.get("resourceType"))
        if kind is None:
            raise _NoResourceError
        account = self._account
        if kind != "Bundle" or _text(members.get("type")) in RESOURCES:
            resource = _Entry(members, kind, _text(members.get("id")))
            account.turn(_owner(resource, _NO_URLS) if kind != "Bundle" else _only_patient(members))
            self._one(resource)
            return
        entries = [_entry(one) for one in _entries.decode(members.pop("entry", b"[]")) or ()]
        self._bundle(_decoded(members), entries)

    def _bundle(self, around: dict[str, Any], entries: list[_Entry]) -> None:
        account = self._account
        patients, urls, local = _outline(entries)
        if len(patients) == 1:
            account.turn(next(iter(patients)))
            account.outside(around)
            entries.sort(key=_is_no_patient)
            for entry in entries:
                self._one(entry)
            account.end_of_line(local)
            return
        account.turn(None)
        account.outside(around)
        groups: dict[str | None, list[_Entry]] = {}
        for entry in entries:
            groups.setdefault(_owner(entry, urls), []).append(entry)
        for owner, group in groups.items():
            for entry in sorted(group, key=_is_no_patient):
                account.turn(owner)
                self._one(entry)
                account.end_of_line(local)

    def _one(self, entry: _Entry) -> None:
        own = entry.own
        if entry.kind:
            self._resources += 1
            entry.members.pop("resourceType", None)
            if own:
                del entry.members["id"]
            self._account.resource(entry.members, entry.kind, own)
        if entry.rest:
            self._account.outside({"entry": [_decoded(entry.rest)]})
        if entry.url or entry.request:
            self._account.entry(entry.url, entry.request, own)

    def _long(self, line: LongLine) -> None:
        account = self._account
        if line.resource_type != "Bundle":
            self._whole(line.whole())
            return
        envelope = _members.decode(line.envelope().close(()))
        if _text(envelope.get("type")) in RESOURCES:
            self._whole(line.whole())
            return
        urls: dict[str, str] = {}
        patients: dict[str, None] = {}
        for piece in line.entries():
            entry = _entry(_members.decode(piece))
            if entry.url:
                account.urls.hashes.append(account.hash(entry.url))
                account.urls.settle()
            if entry.kind == "Patient" and entry.own:
                patients[entry.own] = None
                if entry.url:
                    urls[entry.url] = entry.own
        only = next(iter(patients)) if len(patients) == 1 else None
        account.turn(only)
        envelope.pop("entry", None)
        account.outside(_decoded(envelope))
        for piece in line.entries():
            self._stop.check()
            entry = _entry(_members.decode(piece))
            account.turn(only if only is not None else _owner(entry, urls))
            self._one(entry)
            account.end_of_line(())
            account.settle()


def _hash_rest(path: Path, digest: Any, stored: int) -> int | None:
    """Hash what was not read of a file; how many bytes, ``None`` when that is not possible."""
    rest = 0
    try:
        with path.open("rb") as file:
            file.seek(stored)
            while piece := file.read(1 << 20):
                digest.update(piece)
                rest += len(piece)
    except OSError:
        return None
    return rest


class _NoResourceError(Exception):
    """A line is JSON, and no resource."""


_BUNDLE: Final = b'"Bundle"'


class _UsualRequest(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    method: str = ""
    url: str = ""


class _UsualEntry(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    resource: dict[str, msgspec.Raw]
    fullUrl: str = ""  # noqa: N815 - FHIR's name
    request: _UsualRequest | None = None


class _UsualBundle(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A Bundle as nearly all are: read in half the time."""

    resourceType: str  # noqa: N815
    entry: list[_UsualEntry]
    id: str | None = None
    type: str | None = None


_usual: Final = msgspec.json.Decoder(_UsualBundle)


class _Entry:
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


_NO_URLS: Final[dict[str, str]] = {}


def _text(raw: msgspec.Raw | None) -> str | None:
    """A JSON string; ``None`` of anything else."""
    if raw is None:
        return None
    text = bytes(raw)
    if text[:1] != b'"':
        return None
    return text[1:-1].decode() if b"\\" not in text else str(decode(text))


def _decoded(members: Members) -> dict[str, Any]:
    return {name: decode(raw) for name, raw in members.items() if name != "resourceType"}


def _usual_entry(entry: _UsualEntry) -> _Entry:
    members, request = entry.resource, entry.request
    spelled = bytes(members["resourceType"]) if "resourceType" in members else b""
    kind = _kinds.get(spelled)
    if kind is None:
        kind = _text(members.get("resourceType")) or "…"
        if len(_kinds) < _TYPES:
            _kinds[spelled] = kind
    return _Entry(members, kind, _text(members.get("id")), entry.fullUrl, request.url if request is not None else "")


_TYPES: Final = 1_000
_kinds: Final[dict[bytes, str]] = {}


def _entry(rest: Members) -> _Entry:
    raw = rest.pop("resource", None)
    if raw is None or bytes(raw) == b"null":
        entry = _Entry({}, "", "")
    else:
        members = _members.decode(raw)
        entry = _Entry(members, _text(members.get("resourceType")) or "…", _text(members.get("id")))
    url = _text(rest.pop("fullUrl", None))
    if url:
        entry.url = url
    entry.rest = rest
    if "request" in rest:
        request = decode(rest["request"])
        target = request.get("url") if isinstance(request, dict) else None
        if isinstance(target, str):
            entry.request = target
    return entry


def _outline(entries: list[_Entry]) -> tuple[dict[str, None], dict[str, str], set[str]]:
    """Of a Bundle's entries: ids of Patients, those by ``fullUrl``, and all keys and URLs."""
    patients: dict[str, None] = {}
    urls: dict[str, str] = {}
    local: set[str] = set()
    for entry in entries:
        own, url = entry.own, entry.url
        if url:
            local.add(url)
        if own:
            local.add(f"{entry.kind}/{own}")
            if entry.kind == "Patient":
                patients[own] = None
                if url:
                    urls[url] = own
    return patients, urls, local


def _is_no_patient(entry: _Entry) -> bool:
    return entry.kind != "Patient"


def _only_patient(members: Members) -> str | None:
    """The Patient of a Bundle that is a resource itself, if there is one alone."""
    try:
        entries = [_entry(one) for one in _entries.decode(members.get("entry", b"[]")) or ()]
    except UNREADABLE:
        return None
    patients, _, _ = _outline(entries)
    return next(iter(patients)) if len(patients) == 1 else None


class _Target(msgspec.Struct, gc=False):
    reference: Any = None


_target: Final = msgspec.json.Decoder(_Target)


def _owner(entry: _Entry, urls: dict[str, str]) -> str | None:
    """The patient whose a resource is, ``None`` when it is nobody's."""
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


def _result(account: Account, reader: _Reader, k: int, started: float) -> Measured:
    originals = account.originals
    original, original_nobody = _originals(account)
    nodes = [node for node in account.trie.nodes if node.patients or node.nobody]
    roots = set(map(id, account.trie.roots.values()))
    paths: dict[str, found.Path] = {}
    elements: dict[str, int] = {}
    for node in nodes:
        if id(node) in roots:
            continue
        if not node.leaf:
            elements[node.path] = max(node.patients, elements.get(node.path, 0))
            continue
        patients = node.patients
        one = node.one
        paths[node.path] = found.Path(
            patients, node.kind,
            one_each=one is not None and patients >= k and one.holds(patients),
            original=original[node.place].patients if node.place in original else 0,
            nobody=node.nobody,
            original_nobody=original_nobody[node.place],
        )  # fmt: skip
    if originals is not None and account.collect:
        originals.first, originals.last = account.first, account.last
        originals.close_import()
    return Measured(
        files=tuple(
            MeasuredFile(name, stored, content, lines, resources, cell.patients, sha256)
            for name, stored, content, lines, resources, sha256, cell in sorted(reader.files, key=lambda one: one[0])
        ),
        patients=len(account.serials),
        types={
            kind: TypeCount(root.resources, root.patients, root.nobody)
            for kind, root in sorted(account.trie.roots.items())
            if root.resources
        },
        paths=paths,
        elements=elements,
        codes=_codes(nodes),
        numbers={
            node.path: {code: one.result() for code, one in node.numbers.by.items() if one.patients}
            for node in nodes
            if node.numbers is not None
        },
        dates={node.path: _dates(node) for node in nodes if node.dates},
        date_shifts=_shifts(account),
        references=_references(account),
        ids=_ids(account),
        classes=dict(account.classes),
        identifier_systems=account.trie.systems.counts(),
        extensions=account.trie.urls.counts(),
        profiles=account.trie.profiles.counts(),
        statuses={
            key: count
            for node in nodes
            if node.values is not None and len(node.above) == 2 and node.path.endswith(".status")
            for key, count in node.values.counts(f"{node.path}|").items()
        },
        attachments={
            node.path.rpartition(".")[0]: node.values.counts()
            for node in nodes
            if node.values is not None and node.path.endswith(".contentType")
        },
        multiplicity={
            kind: middle
            for kind, column in account.counts.items()
            if (middle := quartiles(sorted(one for one in column if one))) is not None
        },
        above_89=sum(
            1 for born, last in zip(account.births, account.last, strict=True) if born and last - born >= _NINETY
        ),
        others={name: count for name, count in account.bounds.others.items() if count},
        unread=reader.unread,
        seconds=time.perf_counter() - started,
    )


def _originals(account: Account) -> tuple[dict[int, Cell], Counter[int]]:
    """Patients by place that have a value of ``import/`` left there, and how many resources of nobody."""
    patients: dict[int, Cell] = {}
    anybodys: dict[int, Cell] = {}
    nobody: set[tuple[int, int]] = set()
    originals = account.originals
    if originals is None or account.collect:
        return {}, Counter()
    dates: dict[int, Node] = {}
    if len(originals.first) == len(account.first):
        dates = {node.place: node for node in account.trie.nodes if node.act == DATE and node.looked_up}
    for place, owner, hers in originals.confirmed(account.hits, dates=dates):
        if owner < NOBODYS:
            if place in dates:
                anybodys.setdefault(place, Cell()).add(owner, account.bounds)
            if hers:
                patients.setdefault(place, Cell()).add(owner, account.bounds)
        elif len(nobody) < 100_000:
            nobody.add((place, owner))
    patients.update({place: cell for place, cell in anybodys.items() if cell.patients == dates[place].patients})
    return patients, Counter(place for place, _ in nobody)


def _codes(nodes: list[Node]) -> dict[str, Codes]:
    result: dict[str, Codes] = {}
    tables: dict[int, None] = {}
    for node in nodes:
        table: CodeTable | None = node.codes
        if table is None or id(table) in tables:
            continue
        tables[id(table)] = None
        displays = {
            code: max(spelled.items(), key=lambda one: one[1].patients) for code, spelled in table.displays.items()
        }
        result[table.path] = Codes(
            patients=node.patients,
            codes={code: cell.patients for code, cell in table.codes.items() if cell.patients},
            displays={code: display for code, (display, _) in displays.items()},
            display_patients={code: cell.patients for code, (_, cell) in displays.items()},
            systems=table.systems.counts(),
            text_only=table.text_only.patients,
            others=table.other.patients,
        )
    return result


def _dates(node: Node) -> Dates:
    precision: Counter[str] = Counter()
    for name, cell in node.precision.items():
        precision[name] = cell.patients
    dates = node.dates or {}
    return Dates(
        patients=node.patients,
        years={month: cell.patients for month, cell in dates.items() if len(month) == 4 and cell.patients},
        quarters={
            quarter.removeprefix(QUARTER): cell.patients
            for quarter, cell in dates.items()
            if quarter.startswith(QUARTER) and cell.patients
        },
        months={month: cell.patients for month, cell in dates.items() if len(month) == 7 and cell.patients},
        precision={name: count for name, count in precision.items() if count},
        future=node.future.patients if node.future is not None else 0,
        before_birth=node.before.patients if node.before is not None else 0,
    )


def _shifts(account: Account) -> dict[int, int]:
    """Patients by days; told by their order, and only where the first and the last day moved alike."""
    originals = account.originals
    if originals is None or account.collect or len(originals.first) != len(account.first):
        return {}
    before, after = (originals.first, originals.last), (account.first, account.last)
    moved: Counter[int] = Counter()
    for first, last, now_first, now_last in zip(*before, *after, strict=True):
        if first and now_first and now_first - first == now_last - last:
            moved[now_first - first] += 1
    account.bounds.others["date_shifts"] += sum(count for _, count in moved.most_common()[_SHIFTS:])
    return dict(moved.most_common(_SHIFTS))


def _references(account: Account) -> References:
    dangling, inside = account.dangling, account.inside
    parts = max(account.keys.parts(), account.references.parts())
    if len(account.references):
        for part in range(parts):
            known = set(account.keys.numbers(part, parts))
            known.update(account.urls.numbers(part, parts))
            for target, owner, times in account.references.rows(part, parts):
                if target in known:
                    account.inside_count += times
                    cell = inside
                else:
                    account.dangling_count += times
                    cell = dangling
                if owner < NOBODYS:
                    cell.add(owner, account.bounds)
    return References(
        account.inside_count, account.dangling_count, inside.patients, dangling.patients, account.hosts.counts(),
        other=account.other_references,
    )  # fmt: skip


def _ids(account: Account) -> Ids:
    duplicates = 0
    patients = Cell()
    parts = account.keys.parts()
    for part in range(parts):
        known: set[int] = set()
        for key, owner in account.keys.rows(part, parts):
            if key in known:
                duplicates += 1
                if owner < NOBODYS:
                    patients.add(owner, account.bounds)
            known.add(key)
    kept, referred = Cell(), Cell()
    if account.originals is not None and not account.collect:
        for place, owner, _ in account.originals.confirmed(account.id_hits, ids=True):
            if owner < NOBODYS:
                (referred if place else kept).add(owner, account.bounds)
    kinds = account.ids.counts()
    if kept.patients:
        kinds["original"] = kept.patients
    return Ids(kinds, duplicates, patients.patients, referred.patients)
