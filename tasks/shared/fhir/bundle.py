"""Lines of NDJSON cut into resources, every resource with the bytes it came in.

Only ``resourceType`` and ``id`` are read (and ``type``, ``entry`` of a Bundle): numbers are never touched, so
``1.50``, ``1E2`` and ``-0.0`` keep their spelling (document 3 §1, "Numbers keep their spelling").

What a line means (document 3 §7): collection, searchset, transaction and batch Bundles are unwrapped;
document and message Bundles are resources themselves. A history Bundle holds versions, and a response Bundle
holds answers: neither is data to be loaded, so both are rejected, as is a Bundle without a type. A Bundle
inside a Bundle is a resource.

Two changes to a resource's bytes are possible, both by splicing, never by parsing and dumping:

* one without an ``id`` gets ``"id":"…",`` after its opening brace, a UUIDv5 of its position (base name of the
  file, line, entry) and its bytes without white space, so the same input gives the same id;
* a ``reference`` that equals the ``urn:`` fullUrl of another entry of the same Bundle becomes ``Type/id``.
  This is what a server does with a transaction's placeholders; as fullUrls of the input are never sent on, it
  would dangle otherwise.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tasks.shared.errors import DataError
from tasks.shared.fhir.entries import ReadBundle, read_bundle
from tasks.shared.fhir.reading import ID, TYPE, USUAL, UnusableError, read_head
from tasks.shared.files.data_directory import base_name

UNWRAPPED: Final = frozenset({"collection", "searchset", "transaction", "batch"})
"""Bundle types that are envelopes."""

RESOURCES: Final = frozenset({"document", "message"})
"""Bundle types that are resources of their own."""

REFERENCE: Final = re.compile(rb'("reference"\s*:\s*")([^"\\]+)"')
"""A literal reference in JSON text. It cannot match inside a string: quotes are escaped there."""

_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "urn:sluice:resource-without-id")


class Resource(msgspec.Struct, frozen=True, gc=False):
    """One resource of a line: what it is, where it stood, and its bytes.

    ``ordinal`` counts the resources of a file from 0, rejected ones included; it is what a ledger remembers.
    ``entry`` is the index in the Bundle, ``None`` for a plain line. ``raw`` may be a view that keeps its line
    alive.
    """

    type: str
    id: str
    key: str
    """``Type/id``. It may identify a person: for requests and private files, never for logs."""
    raw: bytes | msgspec.Raw
    file: str
    line: int
    entry: int | None
    ordinal: int


class RejectedResource(msgspec.Struct, frozen=True, gc=False):
    """A resource, or a whole line, that cannot be sent. ``reference`` and ``message`` quote nothing of it."""

    reference: str
    message: str
    raw: bytes | msgspec.Raw
    file: str
    line: int
    entry: int | None
    ordinal: int
    type: str | None = None

    def error(self) -> DataError:
        """Return the rejection as an error that names ``file:line``."""
        where = f"{self.file}:{self.line}" + (f" entry {self.entry}" if self.entry is not None else "")
        return DataError(self.reference, self.message, context=f"{where} {self.type or ''}".rstrip())


@dataclass(frozen=True, slots=True)
class CutLine:
    """Content of one line. Counts are resources or entries."""

    resources: tuple[Resource, ...] = ()
    rejected: tuple[RejectedResource, ...] = ()
    skipped: int = 0
    """Entries that carry nothing to load: no ``resource``, a DELETE, a searchset's outcome."""
    patients: frozenset[str] = frozenset()
    """Ids of the Patient entries of an unwrapped Bundle: one patient's resources belong into one sequence."""
    unwrapped: bool = False
    derived_ids: int = 0
    resolved_references: int = 0
    placeholders: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)
    """``Type/id`` by the ``urn:`` fullUrl of an entry."""

    @property
    def count(self) -> int:
        """Return the number of ordinals that the line used."""
        return len(self.resources) + len(self.rejected)


def cut(
    line: bytes,
    *,
    file: str,
    number: int,
    first: int = 0,
    entry: int = 0,
    placeholders: Mapping[bytes, bytes] | None = None,
) -> CutLine:
    """Cut one line into its resources.

    ``file`` is the file's name (its base, ``core`` for ``core.ndjson.zst``, is part of derived ids), ``number``
    the line number from 1, ``first`` the ordinal of the line's first resource. Where the line is a part of a longer
    Bundle, ``entry`` is the index of its first entry there, and ``placeholders`` are those of the whole Bundle. Raises
    nothing: what cannot be sent is in ``CutLine.rejected``.
    """
    try:
        bundle = read_bundle(line)
        if bundle is not None and bundle.type not in RESOURCES:
            return _cut_bundle(bundle, file, number, first, entry, placeholders)
        return _cut_plain(line, file, number, first)
    except UnusableError as problem:
        return CutLine(rejected=(_rejected(problem, line, file, number, None, first),))


def type_of(line: bytes) -> str | None:
    """Return the ``resourceType`` of a line, ``None`` when it is not readable. Cheap enough to look into every file."""
    try:
        read = read_head(line)
    except UnusableError:
        return None
    return read.resource_type if read.id is not None else None


def _cut_plain(line: bytes, file: str, number: int, first: int) -> CutLine:
    kind, known = _usable_head(line)
    raw, identifier, derived = _identified(line, known, file, number, None)
    resource = Resource(kind, identifier, f"{kind}/{identifier}", raw, file, number, None, first)
    return CutLine(resources=(resource,), derived_ids=derived)


def _cut_bundle(
    bundle: ReadBundle,
    file: str,
    number: int,
    first: int,
    start: int = 0,
    known: Mapping[bytes, bytes] | None = None,
) -> CutLine:
    if bundle.type not in UNWRAPPED:
        raise UnusableError(
            "bundle-type",
            "only collection, searchset, transaction, batch, document and message Bundles can be sent",
            "Bundle",
        )
    resources: list[Resource] = []
    rejected: list[RejectedResource] = []
    patients: list[str] = []
    placeholders: dict[bytes, bytes] = {}
    skipped = derived = 0
    ordinal = first
    for index, entry in enumerate(bundle.entries, start):
        raw: bytes | msgspec.Raw = entry.resource
        if entry.carries_nothing:
            skipped += 1
            continue
        if (usual := USUAL.match(raw)) is not None:
            kind, identifier = usual[1].decode(), usual[2].decode()
        else:
            try:
                kind, own = _usable_head(raw)
            except UnusableError as problem:
                rejected.append(_rejected(problem, raw, file, number, index, ordinal))
                ordinal += 1
                continue
            raw, identifier, new = _identified(raw, own, file, number, index)
            derived += new
        key = f"{kind}/{identifier}"
        resources.append(Resource(kind, identifier, key, raw, file, number, index, ordinal))
        ordinal += 1
        if kind == "Patient":
            patients.append(identifier)
        if entry.full_url is not None and entry.full_url[:4] == "urn:":
            placeholders[entry.full_url.encode()] = key.encode()
    resolved = 0
    if targets := placeholders if known is None else known:
        resources, resolved = _resolve(resources, targets)
    patients_here = frozenset(patients)
    return CutLine(tuple(resources), tuple(rejected), skipped, patients_here, True, derived, resolved, placeholders)


def _usable_head(raw: bytes | msgspec.Raw) -> tuple[str, str | None]:
    """Type and id; ``None`` without one."""
    read = read_head(raw)
    kind, identifier = read.resource_type, read.id
    if identifier is None:
        raise UnusableError("invalid-id", "the id is not a string", kind if TYPE.fullmatch(kind) else None)
    if not TYPE.fullmatch(kind):
        raise UnusableError("invalid-resource-type")
    if identifier is not msgspec.UNSET and not ID.fullmatch(identifier):
        raise UnusableError("invalid-id", "the id is not 1 to 64 letters, digits, - or .", kind)
    return kind, None if identifier is msgspec.UNSET else identifier


def _identified(
    raw: bytes | msgspec.Raw, known: str | None, file: str, number: int, entry: int | None
) -> tuple[bytes | msgspec.Raw, str, int]:
    """Return the resource's bytes with an id, that id, and 1 when it had to be derived."""
    if known is not None:
        return raw, known, 0
    text = bytes(raw)
    canonical = hashlib.sha256(msgspec.json.format(text, indent=-1)).hexdigest()
    position = f"{base_name(file)}\n{number}\n{'' if entry is None else entry}"
    identifier = str(uuid.uuid5(_NAMESPACE, f"{position}\n{canonical}"))
    brace = text.index(b"{") + 1
    return b"".join((text[:brace], b'"id":"', identifier.encode(), b'",', text[brace:])), identifier, 1


def _resolve(resources: list[Resource], placeholders: Mapping[bytes, bytes]) -> tuple[list[Resource], int]:
    resolved = 0

    def replace(match: re.Match[bytes]) -> bytes:
        nonlocal resolved
        target = placeholders.get(match[2])
        if target is None:
            return match[0]
        resolved += 1
        return match[1] + target + b'"'

    result: list[Resource] = []
    for resource in resources:
        text = bytes(resource.raw)
        if b'"urn:' in text:
            text = REFERENCE.sub(replace, text)
            resource = msgspec.structs.replace(resource, raw=text)
        result.append(resource)
    return result, resolved


def _rejected(
    problem: UnusableError, raw: bytes | msgspec.Raw, file: str, number: int, entry: int | None, ordinal: int
) -> RejectedResource:
    return RejectedResource(problem.reference, problem.message, raw, file, number, entry, ordinal, problem.type)
