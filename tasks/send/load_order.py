"""In which order the files of a directory are sent.

``core.ndjson`` first and alone (document 3 §2, §7). A bulk export has one type per file, and its references run across
the files; in this order most targets are there before they are needed. It is a matter of speed only: a resource whose
target is missing waits (document 3 §7).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tasks.shared.fhir.bundle import type_of
from tasks.shared.files.lines import head_of
from tasks.shared.files.names import CORE, base_name

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


def stages(files: Iterable[Path]) -> Iterator[list[Path]]:
    """The files in groups: every group is on the server before the next one begins.

    A file whose first line is a plain resource is a group of its own, in the order of types; the files whose first line
    is a Bundle are the last group. Raises what reading raises.
    """
    rest: list[Path] = []
    for path in files:
        if base_name(path.name) == CORE:
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
