"""A directory of FHIR NDJSON in memory: the bytes of each resource by type, id and patient.

A line is a resource or a Bundle of resources, which refer to each other as ``Type/id``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from deployments.sandbox.child import SandboxStartError
from deployments.sandbox.extraction.tree import Node, decode, values
from deployments.sandbox.extraction.vocabulary import OWNERS, PATIENT
from deployments.sandbox.r4 import ID, local_key

_DATA: Final = re.compile(r"[^.].*\.ndjson", re.IGNORECASE)
_NAMED: Final = 20
"""Most bad lines that a message lists."""


class _Entry(msgspec.Struct):
    resource: msgspec.Raw = msgspec.Raw()


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
        return decode(self.body)


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

    Bad lines are not skipped, because a cohort in a part of the data would be wrong.
    """
    bad: list[str] = []
    try:
        files = sorted(path for path in directory.iterdir() if _DATA.fullmatch(path.name))
        data = DataSet(_read(files, bad))
    except OSError as error:
        raise SandboxStartError(f"the data in {directory} cannot be read: {type(error).__name__}") from None
    if not files:
        raise SandboxStartError(f"{directory} has no file whose name ends in .ndjson")
    if bad:
        shown = ", ".join(bad[:_NAMED])
        raise SandboxStartError(f"{len(bad)} lines of {directory} are not FHIR resources with a valid id: {shown}")
    return data


def _read(paths: Iterable[Path], bad: list[str]) -> Iterator[Resource]:
    for path in paths:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield from _resources(line.strip())
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    bad.append(f"{path.name}:{number}")


def _resources(line: bytes) -> Iterator[Resource]:
    if not line:
        return
    document = decode(line)
    if document["resourceType"] != "Bundle":
        yield _resource(line)
        return
    for entry in msgspec.json.decode(line, type=_Bundle).entry:
        if bytes(entry.resource):
            yield _resource(bytes(entry.resource))


def _resource(body: bytes) -> Resource:
    """Return a resource. Raises ``ValueError`` without a valid type and id."""
    node = decode(body)
    kind, identity = node["resourceType"], node["id"]
    if not isinstance(kind, str) or not ID.fullmatch(identity):
        raise ValueError("no resource with an id")
    owners = [identity] if kind == PATIENT else []
    for path in OWNERS.get(kind, ()):
        keys = (local_key(value.get("reference")) for value in values(node, path) if isinstance(value, dict))
        owners += [key.partition("/")[2] for key in keys if key is not None and key.startswith("Patient/")]
    return Resource(kind, identity, tuple(dict.fromkeys(owners)), body)
