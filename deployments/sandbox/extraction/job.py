"""A job and its units of work, as they are persisted (document 2, "Job"; document 3 §2, "Server side")."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from deployments.sandbox.extraction.dates import instant

TRIES = 5
"""How often a unit is tried in all."""


class ExtractionJobStatus(StrEnum):
    """The states of a job."""

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
        """Whether nothing follows."""
        return self in (ExtractionJobStatus.COMPLETED, ExtractionJobStatus.FAILED, ExtractionJobStatus.CANCELLED)

    @property
    def is_running(self) -> bool:
        """Whether it is one of the RUNNING states."""
        return self.name.startswith("RUNNING")


class UnitState(StrEnum):
    """The states of a batch, and of the other units of work."""

    INIT = "INIT"
    IN_PROGRESS = "IN_PROGRESS"
    FINISHED = "FINISHED"
    SKIPPED = "SKIPPED"
    FAILED = "FAILED"
    TEMP_FAILED = "TEMP_FAILED"

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self in (UnitState.FINISHED, UnitState.SKIPPED, UnitState.FAILED)


class JobPriority(StrEnum):
    """The priorities of jobs."""

    HIGH = "HIGH"
    NORMAL = "NORMAL"


class Severity(StrEnum):
    """How grave an issue is."""

    FATAL = "FATAL"
    ERROR = "ERROR"
    WARNING = "WARNING"
    INFO = "INFO"
    SUCCESS = "SUCCESS"


class JobIssue(msgspec.Struct, frozen=True):
    """Something worth knowing about a job. Quotes no data."""

    severity: Severity
    msg: str
    diagnostics: str = ""


class WorkUnit(msgspec.Struct, frozen=True):
    """A piece of work: the cohort query, one batch, or the core pass."""

    id: str
    state: UnitState = UnitState.INIT
    attempts: int = 0
    started: datetime | None = None
    finished: datetime | None = None
    timings: dict[str, int] = {}
    """Nanoseconds by stage."""
    written: bool = False
    """Whether there is a result file."""


class ExtractionJob(msgspec.Struct, frozen=True):
    """A job. It never changes: a change is a new value with the next version."""

    id: str
    created: datetime
    status: ExtractionJobStatus = ExtractionJobStatus.PENDING
    version: int = 0
    priority: JobPriority = JobPriority.NORMAL
    held_from: ExtractionJobStatus | None = None
    """The state that a pause or a temporary failure interrupted."""
    updated: datetime | None = None
    started: datetime | None = None
    finished: datetime | None = None
    patients: tuple[str, ...] = ()
    """Patients given by the client in place of the cohort."""
    batch_size: int = 0
    cohort_size: int | None = None
    """None until the cohort query has finished."""
    cohort: WorkUnit = WorkUnit("cohort")
    batches: tuple[WorkUnit, ...] = ()
    core: WorkUnit = WorkUnit("core")
    issues: tuple[JobIssue, ...] = ()

    @property
    def completed_batches(self) -> int:
        """Batches with nothing left to do."""
        return sum(batch.state.is_done for batch in self.batches)

    @property
    def percent(self) -> int:
        """How much of the batches is done."""
        return 100 * self.completed_batches // len(self.batches) if self.batches else 0

    def unit(self, name: str) -> WorkUnit:
        """A unit by its id."""
        return next(unit for unit in (self.cohort, self.core, *self.batches) if unit.id == name)

    def with_unit(self, unit: WorkUnit) -> ExtractionJob:
        """The job with one unit replaced."""
        if unit.id == self.cohort.id:
            return msgspec.structs.replace(self, cohort=unit)
        if unit.id == self.core.id:
            return msgspec.structs.replace(self, core=unit)
        batches = tuple(unit if batch.id == unit.id else batch for batch in self.batches)
        return msgspec.structs.replace(self, batches=batches)

    def with_issue(self, severity: Severity, msg: str, diagnostics: str = "") -> ExtractionJob:
        """The job with a further issue."""
        return msgspec.structs.replace(self, issues=(*self.issues, JobIssue(severity, msg, diagnostics)))

    def describe(self, crtdl: bytes) -> dict[str, Any]:
        """The job as the manifest's job extension shows it."""
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
        """The issues as the manifest's issues extension shows them."""
        return [
            {"severity": issue.severity.value, "msg": issue.msg, "diagnostics": issue.diagnostics}
            for issue in self.issues
        ]


def _described(unit: WorkUnit) -> dict[str, Any]:
    timings = {"startedAt": _moment(unit.started), "finishedAt": _moment(unit.finished), "stageNanos": unit.timings}
    return {"id": unit.id, "state": unit.state.value, "attempts": unit.attempts, "timings": timings}


def _moment(moment: datetime | None) -> str | None:
    return instant(moment) if moment is not None else None
