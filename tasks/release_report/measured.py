"""The results of the pass over the files that leave: exact numbers by path, type, URL, system and patient class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tasks.release_report.numbers import NOTHING, Tally

PatientClass = tuple[str, str, str]
"""Birth year, sex and region."""


@dataclass(slots=True)
class ScannedFile:
    """A file: its path below the job directory, bytes and SHA-256 as stored, and its counts."""

    name: str
    size: int = 0
    sha256: str = ""
    lines: int = 0
    resources: int = 0
    unread: int = 0
    """Lines that are no FHIR data; -1 if the file itself cannot be read."""


class IdentifyingPath(NamedTuple):
    """A path, or a column of a table, with values of a kind. ``urls`` are those of the extensions around the values,
    ``systems`` those of identifiers (blank: no system)."""

    path: str
    kind: str
    found: Tally
    urls: Mapping[str, Tally] = {}
    systems: Mapping[str, Tally] = {}


@dataclass(frozen=True)
class Measured:
    """All results. ``patients`` counts each patient once. ``types`` has the resources of a type and their patients,
    ``births`` is by precision, ``ids`` by form."""

    files: tuple[ScannedFile, ...] = ()
    tables: bool = False
    patients: int = 0
    patient_resources: int = 0
    """Resources of type Patient, including those in documents, as the steps count them."""

    types: Mapping[str, tuple[int, Tally]] = field(default_factory=dict)
    paths: tuple[IdentifyingPath, ...] = ()
    extensions: Mapping[str, Tally] = field(default_factory=dict)
    ids: Mapping[str, Tally] = field(default_factory=dict)
    births: Mapping[str, Tally] = field(default_factory=dict)
    above_89: Tally = NOTHING
    lost_subjects: Tally = NOTHING
    classes: Mapping[PatientClass, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return the bytes of all files as stored."""
        return sum(file.size for file in self.files)

    @property
    def resources(self) -> int:
        """Return the resources of all files; rows of tables."""
        return sum(file.resources for file in self.files)

    @property
    def lines(self) -> int:
        """Return the lines of all files."""
        return sum(file.lines for file in self.files)
