"""The reports of an extraction: the diagnostics summary and two CSV files."""

from __future__ import annotations

import csv
import io
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from deployments.sandbox.extraction.query import Query

SUMMARY: Final = "reports/job-summary.json"
RESOURCE_EXCLUSIONS: Final = "reports/resource-exclusions.csv"
PATIENT_EXCLUSIONS: Final = "reports/patient-exclusions.csv"
RESOURCE_COLUMNS: Final = ("Batch-ID", "Reason", "Group", "Attribute", "Resource-ID", "Patient-ID")
PATIENT_COLUMNS: Final = ("Batch-ID", "Stage", "Patient-ID")
Pair = tuple[str, str]
"""``Type/id`` and the id of a group."""


class Reason(StrEnum):
    """Reason for the exclusion of a resource."""

    MUST_HAVE = "MUST_HAVE"
    CONSENT = "CONSENT"
    REFERENCE_NOT_FOUND = "REFERENCE_NOT_FOUND"
    RESOURCE_OUTSIDE_BATCH = "RESOURCE_OUTSIDE_BATCH"
    CASCADING_DELETE = "CASCADING_DELETE"


class Stage(StrEnum):
    """Stages of a batch, in order. Patients are excluded in three of them (the first as ``CONSENT``)."""

    CONSENT_FETCH = "CONSENT_FETCH"
    DIRECT_LOAD = "DIRECT_LOAD"
    REFERENCE_RESOLVE = "REFERENCE_RESOLVE"
    CASCADING_DELETE = "CASCADING_DELETE"
    COPY_REDACT = "COPY_REDACT"


class UnitRecord(msgspec.Struct):
    """Record of a batch or of the core pass, stored beside its file. It names groups by their labels."""

    unit: str
    nobody_consents: bool = False
    wanted: list[Pair] = []
    """Pairs of the core file to which the batch's patients refer, also those that turn out not to fit."""
    final_patients: int = 0
    included: dict[str, int] = {}
    timings: dict[str, int] = {}
    """Nanoseconds by stage."""
    resources: list[tuple[str, str, str, str, str]] = []
    """Reason, group, attribute, ``Type/id`` and patient of each excluded resource."""
    patients: list[tuple[str, str]] = []
    """Stage and id of each excluded patient."""

    def exclude(self, reason: Reason, group: str, attribute: str, key: str, patient: str | None) -> None:
        """Record that a resource is excluded from a group."""
        self.resources.append((reason, group, attribute, key, patient or ""))

    def include(self, group: str) -> None:
        """Record that a resource is in the result for a group."""
        self.included[group] = self.included.get(group, 0) + 1


def summary(cohort: int, query: Query, batches: Sequence[UnitRecord], core: UnitRecord) -> Any:
    """Return the diagnostics summary of a job. Durations are those of its batches."""
    records = [*batches, core]
    labels = [query.label(group) for group in query.groups]
    stages = Counter(stage for record in records for stage, _ in record.patients)
    return {
        "Num-Cohort-Patients": cohort,
        "Num-Final-Patients": sum(record.final_patients for record in records),
        "Duration-Measurements": {stage.value: _durations(stage, batches) for stage in Stage},
        "Patient-Exclusions": {stage: stages[stage] for stage in ("CASCADING_DELETE", "DIRECT_LOAD", "CONSENT")},
        "Resource-Exclusions": {label: _exclusions(label, records) for label in labels},
        "Resource-Inclusions": {label: sum(record.included.get(label, 0) for record in records) for label in labels},
    }


def _exclusions(label: str, records: Sequence[UnitRecord]) -> dict[str, Any]:
    rows = [row for record in records for row in record.resources if row[1] == label]
    reasons = Counter(reason for reason, *_ in rows)
    required = Counter(attribute for reason, _, attribute, *_ in rows if reason == Reason.MUST_HAVE)
    named = {reason.value.title().replace("_", "-"): reasons[reason] for reason in Reason}
    return named | {"Must-Have": dict(required)}


def _durations(stage: Stage, batches: Sequence[UnitRecord]) -> dict[str, int]:
    nanos = [record.timings[stage] for record in batches if stage in record.timings] or [0]
    return {"medianNanos": round(statistics.median(nanos)), "averageNanos": round(statistics.fmean(nanos))}


def report(columns: Sequence[str], records: Sequence[UnitRecord]) -> bytes:
    """Return a CSV report, every field quoted; ``columns`` selects one of the two."""
    about_patients = columns is PATIENT_COLUMNS
    rows: Iterable[Sequence[str]] = (
        (record.unit, *row) for record in records for row in (record.patients if about_patients else record.resources)
    )
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue().encode()
