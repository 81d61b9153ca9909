"""Extract a batch of patients, or the core file, into a job's directory.

The stages of document 2 run one after the other over the whole batch. Between stages, memory holds only the assignment
of resources to groups, never the resources themselves.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import IO

from deployments.sandbox.common.json_text import encode
from deployments.sandbox.extraction.consent import AUDITED, Permission, audit, decide
from deployments.sandbox.extraction.diagnostics import BatchEvents, Counts, DiscardingSink, PatientStage, Stage
from deployments.sandbox.extraction.query import ExtractionGroup, ExtractionQuery
from deployments.sandbox.extraction.reader import ResourceReader
from deployments.sandbox.extraction.redact import ElementTree, element_tree, redact
from deployments.sandbox.extraction.result import BundleOrigin, whole_file, write_bundle
from deployments.sandbox.extraction.selection import Evaluator, Pair, Selection
from deployments.sandbox.extraction.tree import Node
from deployments.sandbox.extraction.types import PATIENT, is_patients

CORE = "core"
Enter = Callable[[Stage], None]
"""Called at the start of a stage; may wait, and may raise to stop the extraction."""


@dataclass(frozen=True)
class ExtractionWork:
    """Input of a batch or of the core pass."""

    query: ExtractionQuery
    reader: ResourceReader
    directory: Path
    """The job's directory of results."""
    origin: BundleOrigin
    today: date
    enter: Enter
    check: Callable[[], None]
    """Called often; may raise to stop the extraction."""


@dataclass(frozen=True)
class UnitOutcome:
    """Result of a batch or of the core pass."""

    counts: Counts
    written: bool
    """True if there is a result file."""
    nobody_consents: bool = False
    wanted: tuple[Pair, ...] = ()
    """Resources of the core file to which the batch's patients refer."""


def diagnostics_files(directory: Path, batch: str) -> tuple[Path, Path]:
    """Return the files for the rows about resources and about patients of one batch, until the reports are made."""
    return directory / ".diagnostics" / f"{batch}.resources.csv", directory / ".diagnostics" / f"{batch}.patients.csv"


def extract_batch(work: ExtractionWork, batch: str, patients: Sequence[str]) -> UnitOutcome:
    """Extract a batch. Raises ``OSError`` or ``sqlite3.Error`` if the data or the disk fails."""
    with _events(work.directory, batch) as events:
        return _Batch(work, batch, events).run(patients)


def extract_core(work: ExtractionWork, roots: Sequence[Pair]) -> UnitOutcome:
    """Extract resources of no patient: those that groups select directly, and ``roots``."""
    with _events(work.directory, CORE) as events:
        return _Core(work, events).run(roots)


@contextmanager
def _events(directory: Path, batch: str) -> Iterator[BatchEvents]:
    resources, patients = diagnostics_files(directory, batch)
    with ExitStack() as stack:
        sinks = [stack.enter_context(_text(stack.enter_context(whole_file(path)))) for path in (resources, patients)]
        yield BatchEvents(batch, *sinks)


@contextmanager
def _text(file: IO[bytes]) -> Iterator[io.TextIOWrapper]:
    wrapper = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=False)
    try:
        yield wrapper
    finally:
        wrapper.flush()
        wrapper.detach()


class _Clock:
    """Starts the stages and measures their duration."""

    def __init__(self, work: ExtractionWork, counts: Counts) -> None:
        self._work = work
        self._counts = counts

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        start = time.perf_counter_ns()
        self._work.enter(stage)
        yield
        self._counts.timings[stage] = time.perf_counter_ns() - start


@dataclass
class _Copier:
    """Copies resources, each with the elements of its groups."""

    work: ExtractionWork
    events: BatchEvents
    trees: dict[tuple[str, ...], ElementTree] = field(default_factory=dict)

    def nodes(self, selection: Selection, keys: dict[str, list[str]], keeps: Callable[[str], bool]) -> Iterator[Node]:
        by_id = self.work.query.by_id
        for key, groups in keys.items():
            self.work.check()
            chosen = tuple(groups)
            if chosen not in self.trees:
                paths = [attribute.path for group in chosen for attribute in by_id[group].attributes]
                self.trees[chosen] = element_tree(by_id[chosen[0]].type, paths)
            for group in chosen:
                self.events.included(by_id[group])
            profiles = dict.fromkeys(by_id[group].profile for group in chosen)
            yield redact(self.work.reader.load(selection.places[key]), self.trees[chosen], [*profiles], keeps)

    def write(
        self, file: IO[bytes], identity: str, selection: Selection, keys: dict[str, list[str]],
        keeps: Callable[[str], bool],
    ) -> None:  # fmt: skip
        members: dict[str, list[str]] = {group.id: [] for group in self.work.query.groups}
        for key, groups in keys.items():
            for group in groups:
                members[group].append(key)
        targets = {group: found for group, found in members.items() if found}
        write_bundle(file, identity, self.nodes(selection, keys, keeps), targets, self.work.origin)


class _Batch:
    """One batch during its stages."""

    def __init__(self, work: ExtractionWork, batch: str, events: BatchEvents) -> None:
        self._work = work
        self._batch = batch
        self._events = events
        self._clock = _Clock(work, events.counts)
        self._evaluator = Evaluator(work.query, work.reader, events)
        self._core = _CoreView(work)

    def run(self, patients: Sequence[str]) -> UnitOutcome:
        """Run all stages; the batch ends early if a stage excludes all patients."""
        with self._clock.stage(Stage.CONSENT_FETCH):
            allowed = self._fetch_consents(patients)
        if not allowed:
            return UnitOutcome(self._events.counts, written=False, nobody_consents=bool(patients))
        with self._clock.stage(Stage.DIRECT_LOAD):
            selections = self._load(allowed)
        with self._clock.stage(Stage.REFERENCE_RESOLVE):
            for selection in self._each(selections):
                selection.expand()
        with self._clock.stage(Stage.CASCADING_DELETE):
            for patient, selection in list(selections.items()):
                self._work.check()
                selection.prune()
                if selection.lacks_alive():
                    self._events.patient(PatientStage.CASCADING_DELETE, patient)
                    del selections[patient]
        with self._clock.stage(Stage.COPY_REDACT):
            if selections:
                self._write(selections)
        self._events.counts.final_patients = len(selections)
        shared = {pair for selection in selections.values() for pair in selection.alive if not _is_patients(pair)}
        return UnitOutcome(self._events.counts, written=bool(selections), wanted=tuple(sorted(shared)))

    def _each(self, selections: dict[str, Selection]) -> Iterator[Selection]:
        for selection in selections.values():
            self._work.check()
            yield selection

    def _fetch_consents(self, patients: Sequence[str]) -> dict[str, Permission | None]:
        """Return the permitted days of each consenting patient; write the audit file if there is anything to audit."""
        if not self._work.query.needs_consent:
            return dict.fromkeys(patients)
        allowed: dict[str, Permission | None] = {}
        with ExitStack() as stack:
            file: IO[bytes] | None = None
            for patient in patients:
                self._work.check()
                places = self._work.reader.of_patient(patient, AUDITED)
                nodes = [self._work.reader.load(place) for place in places]
                if nodes:
                    path = self._work.directory / f"{self._batch}_consent.ndjson"
                    file = file or stack.enter_context(whole_file(path))
                    file.write(encode(audit(patient, nodes)) + b"\n")
                permission = decide(nodes, self._work.today)
                if permission is None:
                    self._events.patient(PatientStage.CONSENT, patient)
                else:
                    allowed[patient] = permission
        return allowed

    def _load(self, allowed: dict[str, Permission | None]) -> dict[str, Selection]:
        groups = self._evaluator.direct_groups(of_patients=True)
        kinds = sorted({group.type for group in groups} | {PATIENT})
        selections: dict[str, Selection] = {}
        for patient, permission in allowed.items():
            self._work.check()
            selection = Selection(self._evaluator, patient, permission)
            for place in self._work.reader.of_patient(patient, kinds):
                selection.add(place, groups)
            if selection.lacks_direct():
                self._events.patient(PatientStage.DIRECT_LOAD, patient)
            else:
                selections[patient] = selection
        return selections

    def _write(self, selections: dict[str, Selection]) -> None:
        copier = _Copier(self._work, self._events)
        with whole_file(self._work.directory / f"{self._batch}.ndjson") as file:
            for patient, selection in selections.items():
                kept = {key for key, _ in selection.alive}

                def is_in_result(key: str, kept: set[str] = kept) -> bool:
                    return key in kept or self._core.has(key)

                copier.write(file, patient, selection, selection.keys(of_patients=True), is_in_result)


class _CoreView:
    """Resources that groups put into the core file directly, known to a batch in advance."""

    def __init__(self, work: ExtractionWork) -> None:
        self._reader = work.reader
        self._evaluator = Evaluator(work.query, work.reader, BatchEvents(CORE, DiscardingSink(), DiscardingSink()))
        self._groups = self._evaluator.direct_groups(of_patients=False)
        self._types = {group.type for group in self._groups}
        self._known: dict[str, bool] = {}

    def has(self, key: str) -> bool:
        """Return True if ``Type/id`` will be in the core file regardless of patients' references."""
        kind, _, identity = key.partition("/")
        if kind not in self._types:
            return False
        if key not in self._known:
            self._known[key] = self._decide(kind, identity)
        return self._known[key]

    def _decide(self, kind: str, identity: str) -> bool:
        place = self._reader.find(kind, identity)
        if place is None:
            return False
        selection = Selection(self._evaluator, None)
        selection.add(place, self._groups)
        selection.expand()
        selection.prune()
        return any(key == place.key for key, _ in selection.alive)


class _Core:
    """The core pass."""

    def __init__(self, work: ExtractionWork, events: BatchEvents) -> None:
        self._work = work
        self._events = events
        self._clock = _Clock(work, events.counts)
        self._evaluator = Evaluator(work.query, work.reader, events, core=True)

    def run(self, roots: Sequence[Pair]) -> UnitOutcome:
        """Load, resolve, prune and write."""
        selection = Selection(self._evaluator, None)
        with self._clock.stage(Stage.DIRECT_LOAD):
            self._load(selection, self._evaluator.direct_groups(of_patients=False), roots)
        with self._clock.stage(Stage.REFERENCE_RESOLVE):
            selection.expand()
        with self._clock.stage(Stage.CASCADING_DELETE):
            selection.prune()
        keys = selection.keys(of_patients=False)
        with self._clock.stage(Stage.COPY_REDACT):
            if keys:
                with whole_file(self._work.directory / f"{CORE}.ndjson") as file:
                    _Copier(self._work, self._events).write(file, CORE, selection, keys, keys.__contains__)
        return UnitOutcome(self._events.counts, written=bool(keys))

    def _load(self, selection: Selection, groups: Sequence[ExtractionGroup], roots: Sequence[Pair]) -> None:
        for kind in sorted({group.type for group in groups}):
            for place in self._work.reader.of_type(kind):
                self._work.check()
                selection.add(place, groups)
        for key, group in roots:
            kind, _, identity = key.partition("/")
            found = self._work.reader.find(kind, identity)
            if found is not None:
                selection.add(found, [self._work.query.by_id[group]])


def _is_patients(pair: Pair) -> bool:
    return is_patients(pair[0].partition("/")[0])
