"""Run one unit of a job: the cohort query, a batch of patients in its stages, or the core pass with the reports."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any, Final

import msgspec

from deployments.sandbox.extraction.cohort import CohortQuery
from deployments.sandbox.extraction.consent import AUDITED, Permission, audit, decide
from deployments.sandbox.extraction.data import DataSet
from deployments.sandbox.extraction.engine import ExtractionOptions, UnitControl, UnitDone
from deployments.sandbox.extraction.events import (
    PATIENT_COLUMNS,
    PATIENT_EXCLUSIONS,
    RESOURCE_COLUMNS,
    RESOURCE_EXCLUSIONS,
    SUMMARY,
    Pair,
    Stage,
    UnitRecord,
    report,
    summary,
)
from deployments.sandbox.extraction.jobs import Job, JobStore, Unit, UnitState, write_whole
from deployments.sandbox.extraction.query import Query, read_query
from deployments.sandbox.extraction.redact import ElementTree, element_tree, redact
from deployments.sandbox.extraction.selection import Selection
from deployments.sandbox.extraction.tree import Node
from deployments.sandbox.extraction.vocabulary import PATIENT, is_patients

CORE: Final = "core"
_SYSTEMS: Final = "https://www.medizininformatik-initiative.de/fhir/fdpg/NamingSystem/"


@dataclass
class Extraction:
    """One unit of a job, a batch or the core pass; times are those of the job's and the unit's start.

    ``enter`` is called at the start of a stage and may raise to stop it. ``record`` and the lines of the consent audit,
    ``audit``, are complete at the end.
    """

    query: Query
    data: DataSet
    job: str
    unit: str
    times: tuple[datetime, datetime]
    today: date
    enter: Callable[[Stage], None]
    _trees: dict[tuple[str, ...], ElementTree] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.record = UnitRecord(self.unit)
        self.audit: list[bytes] = []

    def batch(self, patients: Sequence[str]) -> list[bytes]:
        """Return the lines of some patients; the batch ends early if nobody consents."""
        with self._stage(Stage.CONSENT_FETCH):
            allowed = self._consenting(patients)
        if not allowed:
            self.record.nobody_consents = bool(patients)
            return []
        with self._stage(Stage.DIRECT_LOAD):
            selections = self._loaded(allowed)
        with self._stage(Stage.REFERENCE_RESOLVE):
            for selection in selections.values():
                selection.expand()
        with self._stage(Stage.CASCADING_DELETE):
            for patient, selection in [*selections.items()]:
                selection.prune()
                if selection.lacks_required():
                    self.record.patients.append((Stage.CASCADING_DELETE, patient))
                    del selections[patient]
        with self._stage(Stage.COPY_REDACT):
            lines = [self._patient_line(*each) for each in selections.items()]
        reached = {pair for each in selections.values() for pair in each.alive | each.failed}
        self.record.wanted = sorted(pair for pair in reached if not is_patients(pair[0].partition("/")[0]))
        self.record.final_patients = len(selections)
        return lines

    def core(self, roots: Iterable[Pair]) -> list[bytes]:
        """Return the line with resources of no patient: those that groups select directly, and ``roots``."""
        with self._stage(Stage.DIRECT_LOAD):
            selection = self._core_selection(self.record, roots)
        groups_of = selection.groups_of(of_patients=False)
        with self._stage(Stage.COPY_REDACT):
            return [self._line(CORE, selection, groups_of, groups_of.__contains__)] if groups_of else []

    def _core_selection(self, record: UnitRecord, roots: Iterable[Pair] = ()) -> Selection:
        selection, groups = Selection(self.query, self.data, record), self.query.direct(of_patients=False)
        for kind in sorted({group.type for group in groups}):
            for resource in self.data.of_type(kind):
                selection.add(resource, groups)
        for key, group in roots:
            found = self.data.find(key)
            if found is not None:
                selection.add(found, [self.query.by_id[group]])
        selection.expand()
        selection.prune()
        return selection

    @contextmanager
    def _stage(self, stage: Stage) -> Iterator[None]:
        start = time.perf_counter_ns()
        self.enter(stage)
        yield
        self.record.timings[stage] = time.perf_counter_ns() - start

    def _consenting(self, patients: Sequence[str]) -> dict[str, Permission | None]:
        """Return the permitted days of each consenting patient; None: all days."""
        if not self.query.needs_consent:
            return dict.fromkeys(patients)
        allowed: dict[str, Permission | None] = {}
        for patient in patients:
            nodes = [resource.node() for resource in self.data.of_patient(patient, AUDITED)]
            if nodes:
                self.audit.append(msgspec.json.encode(audit(patient, nodes)))
            permission = decide(nodes, self.today)
            if permission is None:
                self.record.patients.append(("CONSENT", patient))
            else:
                allowed[patient] = permission
        return allowed

    def _loaded(self, allowed: Mapping[str, Permission | None]) -> dict[str, Selection]:
        groups = self.query.direct(of_patients=True)
        kinds = {group.type for group in groups} | {PATIENT}
        selections: dict[str, Selection] = {}
        for patient, permission in allowed.items():
            selection = Selection(self.query, self.data, self.record, patient, permission)
            for resource in self.data.of_patient(patient, kinds):
                selection.add(resource, groups)
            if selection.lacks_required():
                self.record.patients.append((Stage.DIRECT_LOAD, patient))
            else:
                selections[patient] = selection
        return selections

    def _patient_line(self, patient: str, selection: Selection) -> bytes:
        kept = {key for key, _ in selection.alive}
        groups_of = selection.groups_of(of_patients=True)
        return self._line(patient, selection, groups_of, lambda key: key in kept or key in self._core_keys)

    @cached_property
    def _core_keys(self) -> set[str]:
        """Return ``Type/id`` of the resources in the core file that groups select directly."""
        return {key for key, _ in self._core_selection(UnitRecord(CORE)).alive}

    def _line(
        self, identity: str, selection: Selection, groups_of: Mapping[str, Sequence[str]], keeps: Callable[[str], bool]
    ) -> bytes:
        """Return a transaction Bundle: the resources, then a Provenance for each attribute group with one of them."""
        nodes = [self._copied(selection, key, tuple(groups), keeps) for key, groups in groups_of.items()]
        for group in self.query.groups:
            keys = [key for key, groups in groups_of.items() if group.id in groups]
            if keys:
                nodes.append(self._provenance(identity, group.id, keys))
        entries = [
            {"resource": node, "request": {"method": "PUT", "url": f"{node['resourceType']}/{node['id']}"}}
            for node in nodes
        ]
        bundle = {"resourceType": "Bundle", "id": identity, "type": "transaction", "entry": entries}
        return msgspec.json.encode(bundle)

    def _copied(
        self, selection: Selection, key: str, groups: tuple[str, ...], keeps: Callable[[str], bool]
    ) -> dict[str, Any]:
        by_id = self.query.by_id
        if groups not in self._trees:
            paths = [attribute.path for group in groups for attribute in by_id[group].attributes]
            self._trees[groups] = element_tree(by_id[groups[0]].type, paths)
        for group in groups:
            self.record.include(self.query.label(by_id[group]))
        profiles = [*dict.fromkeys(by_id[group].profile for group in groups)]
        return redact(selection.resources[key].node(), self._trees[groups], profiles, keeps)

    def _provenance(self, bundle: str, group: str, keys: Sequence[str]) -> Node:
        """Return the Provenance of one attribute group in one Bundle.

        Its id is derived from job, Bundle and group, so that Provenances of two Bundles never overwrite each other in
        a FHIR server.
        """
        started, recorded = (moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for moment in self.times)
        return {
            "resourceType": "Provenance",
            "id": f"prov-{uuid.uuid5(uuid.UUID(self.job), f'{bundle}|{group}')}",
            "target": [{"reference": key} for key in keys],
            "recorded": recorded,
            "occurredPeriod": {"start": started},
            "agent": [{"who": {"identifier": {"system": f"{_SYSTEMS}program", "value": "sandbox"}}}],
            "entity": [_source("attribute_group", group), _source("extraction_id", self.job)],
        }


def _source(system: str, value: str) -> Node:
    return {"role": "source", "what": {"identifier": {"system": _SYSTEMS + system, "value": value}}}


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
