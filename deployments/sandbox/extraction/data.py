"""A directory of FHIR NDJSON, plain or zstd, in memory: the bytes of each resource by type, id and patient.

A line is a resource or a Bundle. Entries of a Bundle can refer to each other by ``fullUrl`` (``urn:uuid:…``, or
absolute): these references become ``Type/id``. An entry without an id has that of its ``urn:uuid``.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import zstandard

from deployments.sandbox.child import SandboxStartError
from deployments.sandbox.extraction.tree import Node, decode, values
from deployments.sandbox.extraction.vocabulary import OWNERS, PATIENT
from deployments.sandbox.r4 import ID, local_key

_UNWRAPPED: Final = frozenset({"collection", "searchset", "transaction", "batch", "history"})
_DATA: Final = re.compile(r"(?!\.)(?!.*_consent\.).*\.ndjson(\.zst)?", re.IGNORECASE)
_URL_REFERENCE: Final = re.compile(rb'("reference"\s*:\s*")((?:urn|https?):[^"\\]+)(")')
_UUID: Final = "urn:uuid:"
_NAMED: Final = 20
"""Bad lines that a message lists."""


class _Entry(msgspec.Struct):
    resource: msgspec.Raw = msgspec.Raw()
    fullUrl: str = ""  # noqa: N815 - the name is FHIR's


class _Bundle(msgspec.Struct):
    entry: list[_Entry] = []


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource. ``owners`` are the ids of its patients; one without any belongs to nobody."""

    type: str
    id: str
    owners: tuple[str, ...]
    body: bytes

    @property
    def key(self) -> str:
        """Return ``Type/id``."""
        return f"{self.type}/{self.id}"

    def node(self) -> Node:
        """Return the resource as plain values, a new one each time."""
        return {"resourceType": self.type, "id": self.id} | decode(self.body)


class DataSet:
    """The resources of a directory. Of two with the same type and id the later one counts."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        by_key = {(each.type, each.id): each for each in resources}
        self._of_type: dict[str, dict[str, Resource]] = {}
        self._of_patient: dict[str, list[Resource]] = {}
        for (kind, identity), each in sorted(by_key.items()):
            self._of_type.setdefault(kind, {})[identity] = each
            for owner in each.owners:
                self._of_patient.setdefault(owner, []).append(each)

    def patients(self) -> list[str]:
        """Return the ids of all patients, sorted."""
        return [*self._of_type.get(PATIENT, {})]

    def of_type(self, kind: str) -> Iterable[Resource]:
        """Return the resources of a type, sorted by id."""
        return self._of_type.get(kind, {}).values()

    def of_patient(self, patient: str, kinds: Iterable[str]) -> list[Resource]:
        """Return a patient's resources of some types, sorted by type and id."""
        wanted = set(kinds)
        return [each for each in self._of_patient.get(patient, ()) if each.type in wanted]

    def find(self, key: object) -> Resource | None:
        """Return the resource that a literal reference ``Type/id`` names, or None."""
        kind, _, identity = (local_key(key) or "").partition("/")
        return self._of_type.get(kind, {}).get(identity)


def load(directory: Path) -> DataSet:
    """Read a directory. Raises ``SandboxStartError`` with file and line of everything that is not a resource.

    A cohort counted over a part of the data would be wrong, so there is no data set without them.
    """
    bad: list[str] = []
    try:
        data = DataSet(_read(sorted(path for path in directory.iterdir() if _DATA.fullmatch(path.name)), bad))
    except (OSError, zstandard.ZstdError) as error:
        raise SandboxStartError(f"the data in {directory} cannot be read: {type(error).__name__}") from None
    if bad:
        shown = ", ".join(bad[:_NAMED])
        raise SandboxStartError(f"{len(bad)} lines of {directory} are not FHIR resources with a valid id: {shown}")
    return data


def _read(paths: Iterable[Path], bad: list[str]) -> Iterator[Resource]:
    for path in paths:
        for number, line in enumerate(_lines(path), 1):
            if line.isspace():
                continue
            try:
                yield from _resources(line)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                bad.append(f"{path.name}:{number}")


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        if path.suffix.lower() != ".zst":
            yield from file
            return
        with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as reader:
            yield from io.BufferedReader(reader)


def _resources(line: bytes) -> Iterator[Resource]:
    document = decode(line)
    if document["resourceType"] != "Bundle" or document.get("type") not in _UNWRAPPED:
        yield _resource(line.strip(), None)
        return
    urls = {
        entry["fullUrl"]: _key(entry) for entry in document.get("entry", ()) if {"fullUrl", "resource"} <= entry.keys()
    }

    def target(match: re.Match[bytes]) -> bytes:
        return match[1] + urls.get(match[2].decode(), match[2].decode()).encode() + match[3]

    resolved = msgspec.json.decode(_URL_REFERENCE.sub(target, line), type=_Bundle)
    for entry in resolved.entry:
        if bytes(entry.resource):
            yield _resource(bytes(entry.resource), entry.fullUrl)


def _key(entry: Node) -> str:
    resource = entry["resource"]
    return f"{resource['resourceType']}/{resource.get('id') or entry['fullUrl'].removeprefix(_UUID)}"


def _resource(body: bytes, url: str | None) -> Resource:
    """Return a resource. Raises ``ValueError`` without a valid type and id."""
    node = decode(body)
    kind = node["resourceType"]
    identity = node.get("id") or (url or "").removeprefix(_UUID)
    if not isinstance(kind, str) or not isinstance(identity, str) or not ID.fullmatch(identity):
        raise ValueError("no resource with an id")
    owners = [identity] if kind == PATIENT else []
    for path in OWNERS.get(kind, ()):
        keys = (local_key(value.get("reference")) for value in values(node, path) if isinstance(value, dict))
        owners += [key.partition("/")[2] for key in keys if key is not None and key.startswith("Patient/")]
    return Resource(kind, identity, tuple(dict.fromkeys(owners)), body)
