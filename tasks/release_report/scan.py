"""One pass over the files that leave (docs/review.md): count resources, patients and identifying values.

Resources are decoded one by one, so a line of many needs no more memory than its largest. Values of the data stay in
local variables. The results are counts by path, class and URL; ``sections`` shows a URL if k patients have it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw

from tasks.release_report.dates import is_very_old, precision_of
from tasks.release_report.measured import Measured, ScannedFile
from tasks.release_report.paths import Paths, Position, Sightings, tallies
from tasks.release_report.patients import Patients, is_lost, patient_of, subject_of
from tasks.release_report.tables import TableScan, is_table
from tasks.shared.errors import DataError, storage_errors
from tasks.shared.fhir.bundles import RESOURCES, open_bundle, unwrapped
from tasks.shared.fhir.resource import UNREADABLE, head_of
from tasks.shared.files.data_directory import is_ndjson_name
from tasks.shared.files.ndjson import lines
from tasks.shared.stop import Stop

ID_FORMS: Final = ("hashed", "uuid", "other")

_HASHED: Final = re.compile(r"[0-9a-fA-F]{32,}|[0-9a-zA-Z_-]{43,}")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

Resource = tuple[bytes | Raw, str | None]
"""A resource as it is written, and its fullUrl."""


@dataclass(frozen=True, kw_only=True)
class ScanSettings:
    """Settings of a pass. ``views`` is the directory with the ViewDefinitions of tables."""

    k: int = 5
    region_prefix: int = 2
    longest_line: int = 512 << 20
    today: date = field(default_factory=date.today)
    views: Path | None = None


def scan(
    files: Iterable[Path], base: Path, settings: ScanSettings, *, stop: Stop, read: Callable[[int], None]
) -> Measured:
    """Return the results for the files, named relative to ``base``. ``read`` gets the number of bytes of each read.

    Raises:
        StorageError: a file cannot be read.
        Stopped: the run is asked to stop.
    """
    found = _Pass(settings, stop, read)
    scanned = tuple(found.file(path, path.relative_to(base).as_posix()) for path in files)
    return found.result(scanned)


class _Pass:
    def __init__(self, settings: ScanSettings, stop: Stop, read: Callable[[int], None]) -> None:
        self._settings = settings
        self._stop = stop
        self._read = read
        self._at = Position(settings.k)
        self._paths = Paths(self._at)
        self._patients = Patients(settings.region_prefix)
        self._tables = TableScan(settings.views, self._paths, self._patients)
        self._resources: Counter[str] = Counter()
        self._patient_resources = 0
        self._births: dict[str, Sightings] = {}
        self._ids: dict[str, Sightings] = {}
        self._old = Sightings()
        self._lost = Sightings()

    def file(self, path: Path, name: str) -> ScannedFile:
        """Read one file. Raises ``StorageError`` and ``Stopped``."""
        found, digest = ScannedFile(name), hashlib.sha256()

        def stored(piece: bytes) -> None:
            self._stop.check()
            digest.update(piece)
            found.size += len(piece)
            self._read(len(piece))

        try:
            if is_table(path):
                found.lines = found.resources = self._tables.read(path, stored)
            elif is_ndjson_name(path.name):
                for _, line in lines(path, self._settings.longest_line, stored=stored):
                    found.lines += 1
                    self._line(line, found)
            else:
                found.unread = -1
        except DataError:
            found.unread = -1
        if found.unread < 0:  # it was not read to its end
            with storage_errors(path), path.open("rb") as file:
                digest, found.size = hashlib.file_digest(file, "sha256"), file.tell()
        found.sha256 = digest.hexdigest()
        return found

    def _line(self, line: bytes, found: ScannedFile) -> None:
        self._at.line += 1
        try:
            resources, counted = _opened(line)
            heads = [head_of(raw) for raw, _ in resources]
            self._resources.update([counted] if counted else [kind for kind, _ in heads])
            found.resources += 1 if counted else len(heads)
            self._patient_resources += sum(kind == "Patient" for kind, _ in heads)
            self._of_line(resources, heads)
        except (DataError, *UNREADABLE):
            found.unread += 1

    def _of_line(self, resources: Sequence[Resource], heads: Sequence[tuple[str, str | None]]) -> None:
        """Read the resources of a line. If it has one patient, all belong to this one, else each to its own subject."""
        own = {
            full_url or f"Patient/{name}": name
            for (kind, name), (_, full_url) in zip(heads, resources, strict=True)
            if kind == "Patient" and name is not None
        }
        [only] = own.values() if len(own) == 1 else [None]
        if only is not None:
            self._at.begin(self._patients.know(only))
        for (kind, name), (raw, _) in zip(heads, resources, strict=True):
            resource = msgspec.json.decode(raw)
            reference = subject_of(resource)
            if only is None:
                whose = name if kind == "Patient" else patient_of(reference, own) if reference else None
                self._at.begin(self._patients.know(whose) if whose else None)
            self._paths.read(resource, kind)
            if reference is not None and is_lost(reference):
                self._lost.see(self._at)
            if kind == "Patient" and self._at.patient is not None:
                self._patient(resource, self._at.patient)

    def _patient(self, resource: Mapping[str, Any], patient: int) -> None:
        """Count a patient by class, form of the id, precision of the birth date, and age."""
        self._patients.classify(patient, resource)
        self._ids.setdefault(_form_of(str(resource.get("id"))), Sightings()).see(self._at)
        birth = resource.get("birthDate")
        if isinstance(birth, str) and (precision := precision_of(birth)):
            self._births.setdefault(precision, Sightings()).see(self._at)
            if is_very_old(birth, resource.get("deceasedDateTime"), self._settings.today):
                self._old.see(self._at)

    def result(self, files: tuple[ScannedFile, ...]) -> Measured:
        """Return the results for all files."""
        at = self._at
        at.exact = at.runs == len(self._patients)
        types = tallies(self._paths.types, at)
        return Measured(
            files=files,
            tables=self._tables.any,
            patients=len(self._patients),
            patient_resources=self._patient_resources,
            types={name: (self._resources[name], tally) for name, tally in types.items()},
            paths=tuple(sorted(self._paths.result(), key=lambda one: (one.path, one.kind))),
            extensions=tallies(self._paths.extensions, at),
            ids=tallies(self._ids, at),
            births=tallies(self._births, at),
            above_89=self._old.tally(at),
            lost_subjects=self._lost.tally(at),
            classes=dict(self._patients.classes),
        )


def _opened(line: bytes) -> tuple[list[Resource], str]:
    """Return the resources of a line; and ``Bundle`` if the line counts as one resource, else a blank.

    Raises ``DataError``.
    """
    bundle = open_bundle(line)
    if bundle is not None and bundle.type in RESOURCES:
        return [(raw, None) for raw in bundle.resources() if raw is not None], "Bundle"
    return [(found.raw, found.full_url) for found in unwrapped(line)], ""


def _form_of(own: str) -> str:
    if _UUID.fullmatch(own):
        return "uuid"
    return "hashed" if _HASHED.fullmatch(own) else "other"
