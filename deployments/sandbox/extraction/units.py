"""Run one unit of a job: the cohort query, a batch, or the core pass with the reports."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import msgspec

from deployments.sandbox.extraction.cohort import CohortQuery
from deployments.sandbox.extraction.data import DataSet
from deployments.sandbox.extraction.engine import ExtractionOptions, UnitControl, UnitDone
from deployments.sandbox.extraction.events import (
    PATIENT_COLUMNS,
    PATIENT_EXCLUSIONS,
    RESOURCE_COLUMNS,
    RESOURCE_EXCLUSIONS,
    SUMMARY,
    Stage,
    UnitRecord,
    report,
    summary,
)
from deployments.sandbox.extraction.extract import CORE, Extraction
from deployments.sandbox.extraction.jobs import Job, JobStore, Unit, UnitState, write_whole
from deployments.sandbox.extraction.query import Query, read_query


@dataclass(frozen=True)
class UnitRunner:
    """Runs units of jobs."""

    data: DataSet
    store: JobStore
    options: ExtractionOptions

    def __call__(self, job: Job, unit: Unit, control: UnitControl) -> UnitDone:
        """Run a unit. Its files are complete when this returns. Raises ``OSError`` and ``Aborted``."""
        query = read_query(bytes(job.parameters.crtdl))
        if unit.id == job.cohort.id:
            return self._cohort(job, unit, query, control)

        def enter(stage: Stage) -> None:
            control.stage = stage
            self.options.wait(control, self.options.batch_delay / len(Stage))

        now = self.options.clock()
        # The same times on every attempt, so that a repeated unit writes the same bytes.
        times = (job.started_at or now, unit.timings.started_at or now)
        extraction = Extraction(query, self.data, job.id, unit.id, times, now.date(), enter)
        records = [self.store.record(job.id, batch.id) for batch in job.batches] if unit.id == CORE else []
        if unit.id == CORE:
            lines = extraction.core(sorted({pair for record in records for pair in record.wanted}))
        else:
            lines = extraction.batch(self.store.patients(job.id, unit.id))
        record, audit = extraction.record, extraction.audit
        directory = self.store.results(job.id)
        for name, content in ((f"{unit.id}.ndjson", lines), (f"{unit.id}_consent.ndjson", audit)):
            if content:
                write_whole(directory / name, b"".join(line + b"\n" for line in content))
        self.store.save_record(job.id, record)
        if records:
            self._report(job, query, records, record)
        state = UnitState.FINISHED if lines or unit.id == CORE else UnitState.SKIPPED
        timings = msgspec.structs.replace(unit.timings, stage_nanos=record.timings)
        done = Unit(unit.id, state, 0, timings, bool(lines), bool(audit))
        nobody = "A batch was skipped because none of its patients consents."
        return UnitDone(done, warning=nobody if record.nobody_consents else None)

    def _cohort(self, job: Job, unit: Unit, query: Query, control: UnitControl) -> UnitDone:
        """Find the patients of a job, its cohort or those listed by the client, and split them into batches."""
        self.options.wait(control, self.options.batch_delay)
        found = list(job.parameters.patient)
        if not found:
            found = CohortQuery(self.data, self.options.clock().date()).patients(query.cohort_definition)
        size = job.parameters.batch_size
        parts = {str(uuid.uuid4()): found[start : start + size] for start in range(0, len(found), size)}
        self.store.save_batches(job.id, parts)
        changes = {"cohort_size": len(found), "batches": tuple(Unit(name) for name in parts)}
        warning = None if found else "The cohort is empty: there are no batches to process."
        return UnitDone(msgspec.structs.replace(unit, state=UnitState.FINISHED), changes, warning)

    def _report(self, job: Job, query: Query, batches: list[UnitRecord], core: UnitRecord) -> None:
        directory = self.store.results(job.id)
        records = [*batches, core]
        write_whole(directory / RESOURCE_EXCLUSIONS, report(RESOURCE_COLUMNS, records))
        write_whole(directory / PATIENT_EXCLUSIONS, report(PATIENT_COLUMNS, records))
        counts = summary(job.cohort_size or 0, query, batches, core)
        write_whole(directory / SUMMARY, msgspec.json.encode(counts))
