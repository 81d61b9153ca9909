"""Jobs and their units of work, stored as one JSON file per job, which is replaced by rename."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

import msgspec

from deployments.sandbox.extraction.events import UnitRecord

TRIES: Final = 5
"""Maximum number of attempts for a unit."""


class JobStatus(StrEnum):
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
        """Return whether no other state can follow."""
        return self in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)

    @property
    def is_running(self) -> bool:
        """Return whether this is one of the RUNNING states."""
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
        """Return whether there is nothing left to do."""
        return self in (UnitState.FINISHED, UnitState.SKIPPED, UnitState.FAILED)


class JobPriority(StrEnum):
    """Priorities of jobs."""

    HIGH = "HIGH"
    NORMAL = "NORMAL"


class JobIssue(msgspec.Struct, frozen=True):
    """A message about a job. Quotes no data."""

    severity: Literal["FATAL", "WARNING"]
    msg: str
    diagnostics: str = ""


class Timings(msgspec.Struct, frozen=True, rename="camel"):
    """When a unit ran, and how long its stages took."""

    started_at: datetime | None = None
    finished_at: datetime | None = None
    stage_nanos: dict[str, int] = {}


class Unit(msgspec.Struct, frozen=True, rename="camel"):
    """A unit of work: the cohort query, one batch, or the core pass."""

    id: str
    state: UnitState = UnitState.INIT
    attempts: int = 0
    timings: Timings = Timings()
    written: bool = False
    """Whether there is a result file."""
    audited: bool = False
    """Whether there is a consent audit file."""


class Parameters(msgspec.Struct, frozen=True, rename="camel"):
    """What the client asked for, and the batch size. ``patient``: ids instead of a cohort."""

    crtdl: msgspec.Raw
    patient: tuple[str, ...]
    batch_size: int


class Job(msgspec.Struct, frozen=True, rename="camel"):
    """An immutable job, as it is kept and as the manifest shows it. Each change makes a new value with the next
    version."""

    id: str
    created_at: datetime
    parameters: Parameters
    status: JobStatus = JobStatus.PENDING
    version: int = 0
    priority: JobPriority = JobPriority.NORMAL
    held_from: JobStatus | None = None
    """State before a pause or a temporary failure."""
    updated_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    cohort_size: int | None = None
    """Number of patients; None until the cohort query has finished."""
    cohort: Unit = Unit("cohort")
    batches: tuple[Unit, ...] = ()
    core: Unit = Unit("core")
    issues: tuple[JobIssue, ...] = ()

    @property
    def completed_batches(self) -> int:
        """Return the number of batches with nothing left to do."""
        return sum(batch.state.is_done for batch in self.batches)

    @property
    def percent(self) -> int:
        """Return the percentage of completed batches."""
        return 100 * self.completed_batches // len(self.batches) if self.batches else 0

    def unit(self, name: str) -> Unit:
        """Return a unit by its id."""
        return next(unit for unit in (self.cohort, self.core, *self.batches) if unit.id == name)

    def with_unit(self, unit: Unit) -> Job:
        """Return the job with one unit replaced."""
        if unit.id in ("cohort", "core"):
            return msgspec.structs.replace(self, **{unit.id: unit})
        batches = tuple(unit if batch.id == unit.id else batch for batch in self.batches)
        return msgspec.structs.replace(self, batches=batches)

    def with_issue(self, severity: Literal["FATAL", "WARNING"], msg: str, diagnostics: str = "") -> Job:
        """Return the job with another issue."""
        return msgspec.structs.replace(self, issues=(*self.issues, JobIssue(severity, msg, diagnostics)))


def instant(moment: datetime) -> str:
    """Return a FHIR instant in UTC, with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class JobStore:
    """The directory of a server: ``jobs/<id>.json``, and results and records of units in ``results/<id>/``.

    A file gets its name when it is complete. All methods that write raise ``OSError``.
    """

    directory: Path

    def load(self) -> list[Job]:
        """Return all jobs."""
        (self.directory / "jobs").mkdir(parents=True, exist_ok=True, mode=0o700)
        files = (self.directory / "jobs").glob("*.json")
        return [msgspec.json.decode(path.read_bytes(), type=Job) for path in files]

    def save(self, job: Job) -> None:
        """Write a job."""
        write_whole(self.directory / "jobs" / f"{job.id}.json", msgspec.json.encode(job))

    def delete(self, job: str) -> None:
        """Delete results and file of a job. If that fails, the job stays."""
        results = self.results(job)
        if results.exists() or results.is_symlink():
            shutil.rmtree(results)
        (self.directory / "jobs" / f"{job}.json").unlink()

    def results(self, job: str) -> Path:
        """Return the directory of a job's results."""
        return self.directory / "results" / job

    def save_batches(self, job: str, batches: Mapping[str, list[str]]) -> None:
        """Keep the patients of each batch."""
        write_whole(self._kept(job, "cohort"), msgspec.json.encode(batches))

    def patients(self, job: str, batch: str) -> list[str]:
        """Return the patients of a batch."""
        return msgspec.json.decode(self._kept(job, "cohort").read_bytes(), type=dict[str, list[str]])[batch]

    def save_record(self, job: str, record: UnitRecord) -> None:
        """Keep the record of a unit."""
        write_whole(self._kept(job, record.unit), msgspec.json.encode(record))

    def record(self, job: str, unit: str) -> UnitRecord:
        """Return the record of a finished unit."""
        return msgspec.json.decode(self._kept(job, unit).read_bytes(), type=UnitRecord)

    def _kept(self, job: str, unit: str) -> Path:
        return self.results(job) / ".units" / f"{unit}.json"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that gets its name when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.replace(path)
