"""Run one unit of a job: the cohort query, a batch, or the core pass with the reports."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from deployments.sandbox.extraction.cohort import CohortQuery
from deployments.sandbox.extraction.diagnostics import (
    PATIENT_COLUMNS,
    RESOURCE_COLUMNS,
    Counts,
    Stage,
    row,
    summary,
)
from deployments.sandbox.extraction.extract import (
    CORE,
    ExtractionWork,
    UnitOutcome,
    diagnostics_files,
    extract_batch,
    extract_core,
)
from deployments.sandbox.extraction.index import ResourceIndex
from deployments.sandbox.extraction.job import ExtractionJob
from deployments.sandbox.extraction.query import read_query
from deployments.sandbox.extraction.reader import ResourceReader
from deployments.sandbox.extraction.result import BundleOrigin, whole_file, write_json
from deployments.sandbox.extraction.selection import Pair

REPORTS = "reports"
SUMMARY = "job-summary.json"
RESOURCE_EXCLUSIONS = "resource-exclusions.csv"
PATIENT_EXCLUSIONS = "patient-exclusions.csv"
Clock = Callable[[], datetime]


class Aborted(Exception):  # noqa: N818 - somebody asked for it
    """The unit was stopped because its job was cancelled or deleted, or the server is stopping."""


class UnitControl:
    """Controls a running unit."""

    def __init__(self) -> None:
        self._aborted = threading.Event()
        self.stage: Stage | None = None
        """Current stage of a batch; None before the first."""

    def abort(self) -> None:
        """Request that the unit stops."""
        self._aborted.set()

    @property
    def is_aborted(self) -> bool:
        """True if the unit was asked to stop."""
        return self._aborted.is_set()

    def check(self) -> None:
        """Raise ``Aborted`` if the unit was asked to stop."""
        if self._aborted.is_set():
            raise Aborted

    def wait(self, seconds: float) -> None:
        """Wait for ``seconds``. Raises ``Aborted`` as soon as the unit is asked to stop."""
        if self._aborted.wait(seconds):
            raise Aborted


@dataclass(frozen=True)
class Units:
    """Everything that units need. ``delay`` adds seconds to each of them, passed to ``wait``."""

    index: ResourceIndex
    results: Path
    """Directory with one directory of results per job."""
    clock: Clock
    delay: float = 0.0
    wait: Callable[[UnitControl, float], None] = UnitControl.wait

    def directory(self, job: str) -> Path:
        """Return the directory of a job's results."""
        return self.results / job

    def cohort(self, job: ExtractionJob, crtdl: bytes, control: UnitControl) -> list[str]:
        """Return the patients of a job: its cohort, or the patients listed by the client."""
        query = read_query(crtdl)
        self.wait(control, self.delay)
        if job.patients:
            return list(job.patients)
        with self.index.reader() as reader:
            return CohortQuery(reader, self.clock().date(), control.check).patients(query.cohort)

    def batch(
        self, job: ExtractionJob, crtdl: bytes, batch: str, patients: Sequence[str], control: UnitControl
    ) -> UnitOutcome:
        """Extract one batch."""
        with self.index.reader() as reader:
            return extract_batch(self._work(job, crtdl, reader, batch, control), batch, patients)

    def core(
        self,
        job: ExtractionJob,
        crtdl: bytes,
        wanted: Sequence[Pair],
        counts: Mapping[str, Counts],
        control: UnitControl,
    ) -> UnitOutcome:
        """Extract the core file, and write the reports if any batch has run."""
        with self.index.reader() as reader:
            outcome = extract_core(self._work(job, crtdl, reader, CORE, control), wanted)
        if counts:
            self._report(job, crtdl, counts, outcome.counts)
        return outcome

    def remove(self, job: str) -> None:
        """Remove the results of a job. Raises ``OSError``."""
        directory = self.directory(job)
        if directory.exists() or directory.is_symlink():
            shutil.rmtree(directory)

    def _work(
        self, job: ExtractionJob, crtdl: bytes, reader: ResourceReader, unit: str, control: UnitControl
    ) -> ExtractionWork:
        def enter(stage: Stage) -> None:
            control.stage = stage
            self.wait(control, self.delay / len(Stage))

        now = self.clock()
        # The same times on every attempt, so that a repeated unit writes the same bytes.
        origin = BundleOrigin(job.id, job.started or now, job.unit(unit).started or now)
        return ExtractionWork(
            read_query(crtdl), reader, self.directory(job.id), origin, now.date(), enter=enter, check=control.check
        )

    def _report(self, job: ExtractionJob, crtdl: bytes, batches: Mapping[str, Counts], core: Counts) -> None:
        directory = self.directory(job.id)
        units = [*(batch.id for batch in job.batches), CORE]
        reports = directory / REPORTS
        for number, (name, columns) in enumerate(
            ((RESOURCE_EXCLUSIONS, RESOURCE_COLUMNS), (PATIENT_EXCLUSIONS, PATIENT_COLUMNS))
        ):
            with whole_file(reports / name) as file:
                file.write(row(columns).encode())
                for unit in units:
                    part = diagnostics_files(directory, unit)[number]
                    with part.open("rb") as rows:
                        shutil.copyfileobj(rows, file)
        groups = read_query(crtdl).groups
        write_json(reports / SUMMARY, summary(job.cohort_size or 0, groups, list(batches.values()), core))
