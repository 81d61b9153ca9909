"""A job and its units of work in their persistent form (document 2, "Job"; document 3 §2, "Server side")."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from deployments.sandbox.extraction.dates import instant

TRIES = 5
"""Maximum number of attempts for a unit."""


class ExtractionJobStatus(StrEnum):
    """States of a job."""

    PENDING = "PENDING"
    RUNNING_GET_COHORT = "RUNNING_GET_COHORT"
    RUNNING_PROCESS_BATCH = "RUNNING_PROCESS_BATCH"
    RUNNING_PROCESS_CORE = "RUNNING_PROCESS_CORE"
    PAUSED = "PAUSED"
    TEMP_FAILED = "TEMP_FAILED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """True if no other state can follow."""
        return self in (ExtractionJobStatus.COMPLETED, ExtractionJobStatus.FAILED, ExtractionJobStatus.CANCELLED)

    @property
    def is_running(self) -> bool:
        """True for the RUNNING states."""
        return self.name.startswith("RUNNING")


class UnitState(StrEnum):
    """States of a batch and of the other units of work."""

    INIT = "INIT"
    IN_PROGRESS = "IN_PROGRESS"
    FINISHED = "FINISHED"
    SKIPPED = "SKIPPED"
    FAILED = "FAILED"
    TEMP_FAILED = "TEMP_FAILED"

    @property
    def is_done(self) -> bool:
        """True if there is nothing left to do."""
        return self in (UnitState.FINISHED, UnitState.SKIPPED, UnitState.FAILED)


class JobPriority(StrEnum):
    """Priorities of jobs."""

    HIGH = "HIGH"
    NORMAL = "NORMAL"


class Severity(StrEnum):
    """Severities of an issue."""

    FATAL = "FATAL"
    ERROR = "ERROR"
    WARNING = "WARNING"
    INFO = "INFO"
    SUCCESS = "SUCCESS"


class JobIssue(msgspec.Struct, frozen=True):
    """A message about a job. Quotes no data."""

    severity: Severity
    msg: str
    diagnostics: str = ""


class WorkUnit(msgspec.Struct, frozen=True):
    """A unit of work: the cohort query, one batch, or the core pass."""

    id: str
    state: UnitState = UnitState.INIT
    attempts: int = 0
    started: datetime | None = None
    finished: datetime | None = None
    timings: dict[str, int] = {}
    """Nanoseconds by stage."""
    written: bool = False
    """True if there is a result file."""


class ExtractionJob(msgspec.Struct, frozen=True):
    """An immutable job. Each change creates a new value with the next version."""

    id: str
    created: datetime
    status: ExtractionJobStatus = ExtractionJobStatus.PENDING
    version: int = 0
    priority: JobPriority = JobPriority.NORMAL
    held_from: ExtractionJobStatus | None = None
    """State before a pause or a temporary failure."""
    updated: datetime | None = None
    started: datetime | None = None
    finished: datetime | None = None
    patients: tuple[str, ...] = ()
    """Patients listed by the client instead of a cohort."""
    batch_size: int = 0
    cohort_size: int | None = None
    """Number of patients; None until the cohort query has finished."""
    cohort: WorkUnit = WorkUnit("cohort")
    batches: tuple[WorkUnit, ...] = ()
    core: WorkUnit = WorkUnit("core")
    issues: tuple[JobIssue, ...] = ()

    @property
    def completed_batches(self) -> int:
        """Number of batches with nothing left to do."""
        return sum(batch.state.is_done for batch in self.batches)

    @property
    def percent(self) -> int:
        """Percentage of completed batches."""
        return 100 * self.completed_batches // len(self.batches) if self.batches else 0

    def unit(self, name: str) -> WorkUnit:
        """Return a unit by its id."""
        return next(unit for unit in (self.cohort, self.core, *self.batches) if unit.id == name)

    def with_unit(self, unit: WorkUnit) -> ExtractionJob:
        """Return the job with one unit replaced."""
        if unit.id == self.cohort.id:
            return msgspec.structs.replace(self, cohort=unit)
        if unit.id == self.core.id:
            return msgspec.structs.replace(self, core=unit)
        batches = tuple(unit if batch.id == unit.id else batch for batch in self.batches)
        return msgspec.structs.replace(self, batches=batches)

    def with_issue(self, severity: Severity, msg: str, diagnostics: str = "") -> ExtractionJob:
        """Return the job with another issue."""
        return msgspec.structs.replace(self, issues=(*self.issues, JobIssue(severity, msg, diagnostics)))

    def describe(self, crtdl: bytes) -> dict[str, Any]:
        """Return the job as in the manifest's job extension."""
        return {
            "id": self.id,
            "status": self.status.value,
            "version": self.version,
            "priority": self.priority.value,
            "cohortSize": self.cohort_size,
            "startedAt": _moment(self.started),
            "updatedAt": _moment(self.updated),
            "finishedAt": _moment(self.finished),
            "batches": [_described(batch) for batch in self.batches],
            "core": _described(self.core),
            "issues": self.described_issues(),
            "parameters": {"crtdl": msgspec.Raw(crtdl), "patient": list(self.patients), "batchSize": self.batch_size},
        }

    def described_issues(self) -> list[dict[str, str]]:
        """Return the issues as in the manifest's issues extension."""
        return [
            {"severity": issue.severity.value, "msg": issue.msg, "diagnostics": issue.diagnostics}
            for issue in self.issues
        ]


def _described(unit: WorkUnit) -> dict[str, Any]:
    timings = {"startedAt": _moment(unit.started), "finishedAt": _moment(unit.finished), "stageNanos": unit.timings}
    return {"id": unit.id, "state": unit.state.value, "attempts": unit.attempts, "timings": timings}


def _moment(moment: datetime | None) -> str | None:
    return instant(moment) if moment is not None else None
