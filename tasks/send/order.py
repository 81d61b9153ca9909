"""In which order files and resources are loaded, and which resources must go in one sequence.

``core.ndjson`` first and alone (document 3 §2, §7). A bulk export has one type per file, and its references run across
the files; in this order most targets are there before they are needed. It is a matter of speed only: a resource whose
target is missing waits (document 3 §7). Resources that waited go in the order of their references.

Resources that wait are on the disk, in a nameless file of one run: a resumed run finds the same resources in its input.
Memory holds about a third of a kilobyte for each waiting resource.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from tasks.shared.fhir.bundle import REFERENCE, Resource, type_of
from tasks.shared.fhir.reading import UNREADABLE
from tasks.shared.files.data_directory import CORE, base_name
from tasks.shared.files.lines import head_of
from tasks.shared.files.out_file import Spool

_EARLY: Final = (
    "Organization Location Practitioner HealthcareService PractitionerRole Endpoint Substance Medication "
    "ValueSet CodeSystem Questionnaire PlanDefinition ActivityDefinition ResearchStudy Patient RelatedPerson "
    "Person Group Device ResearchSubject Consent Account Coverage EpisodeOfCare Appointment Encounter "
    "CareTeam Goal BodyStructure Condition AllergyIntolerance Specimen ServiceRequest CarePlan "
    "MedicationRequest Procedure Observation"
)
_LATE: Final = (
    "ImagingStudy Media DiagnosticReport DocumentReference Claim ClaimResponse ExplanationOfBenefit "
    "Composition List Bundle Provenance AuditEvent"
)

EARLY: Final = tuple(_EARLY.split())
"""Types whose targets are mostly before them in this list."""

LATE: Final = tuple(_LATE.split())
"""Types that are mostly referred to by nothing but each other. All other types stand between the two lists."""

_RANK: Final = {name: rank for rank, name in enumerate(EARLY)} | {
    name: len(EARLY) + 1 + rank for rank, name in enumerate(LATE)
}


_HEAD: Final = 1 << 20
_TYPE: Final = re.compile(rb'"resourceType"\s*:\s*"([A-Za-z]+)"')
_PATIENT: Final = re.compile(r"(?:.*/)?Patient/([A-Za-z0-9\-.]{1,64})(?:/_history/.*)?")


def stages(files: Iterable[Path]) -> Iterator[list[Path]]:
    """Yield the files in groups; every group is on the server before the next one begins.

    A file whose first line is a plain resource is a group of its own, in the order of types; the files whose first line
    is a Bundle are the last group. Raises what reading raises.
    """
    rest: list[Path] = []
    for path in files:
        if base_name(path.name).lower() == CORE:
            yield [path]
        else:
            rest.append(path)
    plain: list[tuple[int, str, Path]] = []
    bundles: list[Path] = []
    for path in rest:
        kind = _first_type(path)
        if kind in {None, "Bundle"}:
            bundles.append(path)
        else:
            plain.append((_RANK.get(kind or "", len(EARLY)), path.name, path))
    for _, _, path in sorted(plain):
        yield [path]
    if bundles:
        yield bundles


def _first_type(path: Path) -> str | None:
    head = head_of(path, _HEAD).removeprefix(codecs.BOM_UTF8).lstrip()
    line, whole, _ = head.partition(b"\n")
    if whole or len(head) < _HEAD:
        return type_of(line)
    found = _TYPE.search(head)  # a line too long to be read for this alone
    return found[1].decode() if found else None


class _Concerns(msgspec.Struct, gc=False):
    """The elements of R4 that name the patient of a resource."""

    subject: Any = None
    patient: Any = None
    beneficiary: Any = None


_concerns = msgspec.json.Decoder(_Concerns)


def patient_of(resource: Resource) -> str | None:
    """Return the id of the Patient that the resource is or belongs to; ``None`` if unknown.

    What is sent of one patient goes in one sequence (document 3 §7).
    """
    if resource.type == "Patient":
        return resource.id
    try:
        found = _concerns.decode(resource.raw)
    except UNREADABLE:
        return None
    for value in (found.subject, found.patient, found.beneficiary):
        reference = value.get("reference") if isinstance(value, dict) else None
        match = _PATIENT.fullmatch(reference) if isinstance(reference, str) else None
        if match:
            return match[1]
    return None


def dependency_order(keys: Iterable[str], targets: Callable[[str], Iterable[str]]) -> Iterator[list[str]]:
    """Groups of ``keys``, each after the groups it refers to. ``targets`` is asked once for every key.

    Resources that refer to each other in a circle (an encounter names its diagnosis, the diagnosis its encounter) can
    only get in together, so they form one group, in the order in which its members were met. Targets that are not in
    ``keys`` are ignored. Groups and order are the strongly connected components of the graph of references, by Tarjan's
    algorithm, without recursion.
    """
    known = dict.fromkeys(keys)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    position: dict[str, int] = {}  # in the stack
    waiting: set[str] = set()
    for root in known:
        if root in index:
            continue
        path: list[tuple[str, Iterator[str]]] = []

        def enter(key: str, path: list[tuple[str, Iterator[str]]] = path) -> None:
            index[key] = low[key] = len(index)
            position[key] = len(stack)
            stack.append(key)
            waiting.add(key)
            path.append((key, iter([target for target in targets(key) if target in known])))

        enter(root)
        while path:
            key, left = path[-1]
            target = next(left, None)
            if target is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[key])
                if low[key] == index[key]:
                    at = position[key]
                    group = stack[at:]
                    del stack[at:]
                    waiting.difference_update(group)
                    yield group
            elif target not in index:
                enter(target)
            elif target in waiting:
                low[key] = min(low[key], index[target])


class _Slot(msgspec.Struct, frozen=True, gc=False):
    """The position of a waiting resource in the input, and of its bytes in the spool."""

    file: str
    line: int
    entry: int | None
    ordinal: int
    offset: int
    size: int


class DeferredResources:
    """The waiting resources, by ``Type/id``, in the order they came. For one thread.

    They lie in ``directory`` until the context is left. Raises ``StorageError``.
    """

    def __init__(self, directory: Path) -> None:
        self._slots: dict[str, _Slot] = {}
        self._files: dict[str, str] = {}
        self._spool = Spool(directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._spool.close()

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: object) -> bool:
        return key in self._slots

    def keys(self) -> list[str]:
        """``Type/id`` of all, in the order they came."""
        return list(self._slots)

    def holds(self, resource: Resource) -> bool:
        """Return whether exactly this resource waits, rather than another one with the same ``Type/id``."""
        slot = self._slots.get(resource.key)
        return slot is not None and (slot.file, slot.ordinal) == (resource.file, resource.ordinal)

    def put(self, resource: Resource) -> None:
        """Let a resource wait. One with the same ``Type/id`` must have been taken out before."""
        offset = self._spool.size
        self._spool.write(bytes(resource.raw))
        file = self._files.setdefault(resource.file, resource.file)
        where = (file, resource.line, resource.entry, resource.ordinal)
        self._slots[resource.key] = _Slot(*where, offset, len(resource.raw))

    def take_out(self, key: str) -> tuple[str, int] | None:
        """Drop what waits under this key; its file and ordinal, ``None`` when nothing did."""
        slot = self._slots.pop(key, None)
        return (slot.file, slot.ordinal) if slot else None

    def read(self, key: str) -> Resource | None:
        """Return the waiting resource without removing it; ``None`` if it no longer waits."""
        slot = self._slots.get(key)
        if slot is None:
            return None
        kind, _, identifier = key.partition("/")
        raw = self._spool.read(slot.offset, slot.offset + slot.size)
        return Resource(kind, identifier, key, raw, slot.file, slot.line, slot.entry, slot.ordinal)

    def targets(self, key: str, base: bytes) -> Iterator[str]:
        """``Type/id`` of the waiting resources that this one refers to; ``base`` is the server's own URL."""
        resource = self.read(key)
        if resource is None:
            return
        for match in REFERENCE.finditer(resource.raw):
            text = match[2].removeprefix(base).partition(b"#")[0].partition(b"/_history/")[0]
            target = text.decode("utf-8", "replace")
            if target != key and target in self._slots:
                yield target
