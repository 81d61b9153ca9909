"""Exclusions of an extraction and their reasons: counts for the summary, rows for the two CSV reports.

Keys and columns: document 2, "Diagnostics summary", and document 3 §2, "CSV reports".
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from deployments.sandbox.extraction.query import ExtractionGroup


class Reason(StrEnum):
    """Reason for the exclusion of a resource."""

    MUST_HAVE = "MUST_HAVE"
    CONSENT = "CONSENT"
    REFERENCE_NOT_FOUND = "REFERENCE_NOT_FOUND"
    RESOURCE_OUTSIDE_BATCH = "RESOURCE_OUTSIDE_BATCH"
    CASCADING_DELETE = "CASCADING_DELETE"


class PatientStage(StrEnum):
    """Stage in which a patient was excluded."""

    CONSENT = "CONSENT"
    DIRECT_LOAD = "DIRECT_LOAD"
    CASCADING_DELETE = "CASCADING_DELETE"


class Stage(StrEnum):
    """Stages of a batch, in order."""

    CONSENT_FETCH = "CONSENT_FETCH"
    DIRECT_LOAD = "DIRECT_LOAD"
    REFERENCE_RESOLVE = "REFERENCE_RESOLVE"
    CASCADING_DELETE = "CASCADING_DELETE"
    COPY_REDACT = "COPY_REDACT"


RESOURCE_COLUMNS = ("Batch-ID", "Reason", "Group", "Attribute", "Resource-ID", "Patient-ID")
PATIENT_COLUMNS = ("Batch-ID", "Stage", "Patient-ID")

_REASON_KEYS = {
    Reason.CONSENT: "Consent",
    Reason.REFERENCE_NOT_FOUND: "Reference-Not-Found",
    Reason.RESOURCE_OUTSIDE_BATCH: "Resource-Outside-Batch",
    Reason.CASCADING_DELETE: "Cascading-Delete",
}


class GroupCounts(msgspec.Struct):
    """Counts for the resources of one attribute group."""

    included: int = 0
    must_have: dict[str, int] = {}
    """Counts by attribute reference."""
    reasons: dict[str, int] = {}


class Counts(msgspec.Struct):
    """Counts of a batch or of the core pass."""

    final_patients: int = 0
    patients: dict[str, int] = {}
    groups: dict[str, GroupCounts] = {}
    """Counts by the group's label."""
    timings: dict[str, int] = {}
    """Nanoseconds by stage."""


class TextSink(Protocol):
    """Target for the rows of a report."""

    def write(self, text: str, /) -> object:
        """Append text."""


def row(values: Iterable[str]) -> str:
    """Return one line of a report with every field quoted."""
    lines: list[str] = []

    class LineSink:
        def write(self, text: str) -> None:
            lines.append(text)

    csv.writer(LineSink(), quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(values)
    return "".join(lines)


class BatchEvents:
    """Counts and reports the events of one batch; ``batch`` is its id, or ``core``."""

    def __init__(self, batch: str, resources: TextSink, patients: TextSink) -> None:
        self.counts = Counts()
        self._batch = batch
        self._resources = resources
        self._patients = patients

    def resource(self, reason: Reason, group: ExtractionGroup, attribute: str, key: str, patient: str | None) -> None:
        """Record that a resource, ``Type/id``, is excluded from a group."""
        counts = self.counts.groups.setdefault(group.label, GroupCounts())
        if reason is Reason.MUST_HAVE:
            counts.must_have[attribute] = counts.must_have.get(attribute, 0) + 1
        else:
            counts.reasons[reason] = counts.reasons.get(reason, 0) + 1
        self._resources.write(row((self._batch, reason, group.label, attribute, key, patient or "")))

    def patient(self, stage: PatientStage, patient: str) -> None:
        """Record that a patient is excluded."""
        self.counts.patients[stage] = self.counts.patients.get(stage, 0) + 1
        self._patients.write(row((self._batch, stage, patient)))

    def included(self, group: ExtractionGroup) -> None:
        """Record that a resource is in the result for a group."""
        self.counts.groups.setdefault(group.label, GroupCounts()).included += 1


class DiscardingSink:
    """A sink that discards its rows."""

    def write(self, text: str, /) -> None:
        """Discard the text."""


def summary(cohort: int, groups: Sequence[ExtractionGroup], batches: Sequence[Counts], core: Counts) -> dict[str, Any]:
    """Return the diagnostics summary of a job. Durations are those of its batches."""
    found = [*batches, core]
    labels = [group.label for group in groups]
    merged = {label: _merge([counts.groups[label] for counts in found if label in counts.groups]) for label in labels}
    return {
        "Num-Cohort-Patients": cohort,
        "Num-Final-Patients": sum(counts.final_patients for counts in found),
        "Duration-Measurements": {stage.value: _durations(stage, batches) for stage in Stage},
        "Patient-Exclusions": {
            stage.value: sum(counts.patients.get(stage, 0) for counts in found)
            for stage in (PatientStage.CASCADING_DELETE, PatientStage.DIRECT_LOAD, PatientStage.CONSENT)
        },
        "Resource-Exclusions": {
            label: {"Must-Have": counts.must_have}
            | {key: counts.reasons.get(reason, 0) for reason, key in _REASON_KEYS.items()}
            for label, counts in merged.items()
        },
        "Resource-Inclusions": {label: counts.included for label, counts in merged.items()},
    }


def _durations(stage: Stage, found: Sequence[Counts]) -> dict[str, int]:
    nanos = [counts.timings[stage] for counts in found if stage in counts.timings] or [0]
    return {"medianNanos": round(statistics.median(nanos)), "averageNanos": round(statistics.fmean(nanos))}


def _merge(parts: Sequence[GroupCounts]) -> GroupCounts:
    return GroupCounts(
        sum(part.included for part in parts),
        _sum([part.must_have for part in parts]),
        _sum([part.reasons for part in parts]),
    )


def _sum(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for key, count in part.items():
            total[key] = total.get(key, 0) + count
    return total
