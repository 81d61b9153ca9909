"""The step: every resource of the input to its groups, through the flattening service, into a table for each group.

Document 3 §5. The input is read once (``core.ndjson`` first), resources are packed into batches for their groups
(``batches.py``), and at most two groups are asked about at a time. The tables are in ``csv/``; they get
their names when all of them are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from config import OutputFormat
from tasks.flattening.answer import AnswerWriter, RowRule
from tasks.flattening.batches import MIB, Packer, RequestBatch, share
from tasks.flattening.client import INTERVAL, Flattener
from tasks.flattening.lookup import load_lookup
from tasks.flattening.parquet import format_findings
from tasks.flattening.report import result
from tasks.flattening.routing import Groups, Router, RoutingFacts
from tasks.flattening.routing_index import RoutingIndex
from tasks.flattening.tables import Tables, terms
from tasks.flattening.views import GroupView, no_views, views
from tasks.shared.errors import DataError, InputError
from tasks.shared.fhir.crtdl import Crtdl, load_crtdl
from tasks.shared.files.data_directory import data_files
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.files.ledger import Ledger
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tasks.shared.stop import SharedStop
from tasks.shared.work import Workers

STATE: Final = "flattening"
"""Directory of the step's own files, below the job directory: ledger, index, answers that were no rows."""


@dataclass(frozen=True)
class FlatteningBounds:
    """Numbers that are not configuration.

    ``groups`` are asked about at once. ``line`` is how many bytes of an input line are held in memory. ``interval``
    (seconds) is that between two looks at the service. ``mebibyte`` is the unit of ``batch_size_mb``.
    """

    groups: int = 2
    line: int = 16 * MIB
    interval: float = INTERVAL
    mebibyte: int = MIB


def run(
    context: StepContext, *, bounds: FlatteningBounds | None = None, sleep: Callable[[float], None] | None = None
) -> StepReport:
    """Flatten the input directory into ``csv/``.

    ``sleep`` (seconds) is a seam for tests. Raises ``InputError`` for a CRTDL or lookup file that cannot be used,
    ``ServiceError``, ``StalledError`` and ``TransientError`` for what the service does, ``DataError`` for lines that
    are no resources and when no resource belongs to a group; what is done stays done.
    """
    settings = context.config.services.flattening
    if context.given.crtdl is None:
        raise InputError("flattening-crtdl", "flattening: there is no CRTDL, so there are no groups", context="CRTDL")
    if settings.lookup_path is None:
        raise InputError(
            "flattening-lookup", "flattening: there is no lookup file", context="services.flattening.lookup_path"
        )
    crtdl = load_crtdl(context.given.crtdl)
    lookup, warnings = load_lookup(settings.lookup_path)
    made, more = views(crtdl, lookup)
    return flatten(context, crtdl, made, (*warnings, *more), bounds=bounds, sleep=sleep)


def flatten(
    context: StepContext,
    crtdl: Crtdl,
    made: Sequence[GroupView],
    warnings: Sequence[str] = (),
    *,
    bounds: FlatteningBounds | None = None,
    sleep: Callable[[float], None] | None = None,
) -> StepReport:
    """Flatten with the given views of the groups."""
    url = context.config.services.flattening.service_url
    if url is None:
        raise InputError(
            "flattening-url", "flattening: there is no service to ask", context="services.flattening.service_url"
        )
    files = data_files(context.input_dir)
    if not files:
        raise DataError(
            "flattening-no-input", "flattening: there is nothing to flatten", context=str(context.input_dir)
        )
    if not made:
        raise no_views()
    _refuse_names(made)
    for finding in format_findings(context.config.services.flattening):
        raise finding
    for warning in warnings:
        context.meter.warn(warning)
    return _FlatteningRun(context, crtdl, made, warnings, url, files, bounds or FlatteningBounds(), sleep).run()


def _refuse_names(made: Sequence[GroupView]) -> None:
    """Refuse column names that need escapes in JSON, because keys of rows are compared as they are spelled."""
    for view in made:
        if any(char in '"\\' or char < " " for column in view.columns for char in column.name):
            raise InputError(
                "flattening-column",
                f"flattening: a column of group {view.group_name} has a quote, a backslash or a control character "
                "in its name",
                context="services.flattening.lookup_path",
                hint="name columns with letters, digits and underscores, a letter first",
            )


@dataclass
class _FlatteningRun:
    context: StepContext
    crtdl: Crtdl
    views: Sequence[GroupView]
    warned: Sequence[str]
    url: str
    files: list[Path]
    bounds: FlatteningBounds
    sleep: Callable[[float], None] | None

    def __post_init__(self) -> None:
        self.state = self.context.state(STATE)
        self.budget = self.context.config.services.flattening.batch_size_mb * self.bounds.mebibyte
        self.share = share(self.budget, len(self.views))
        self.rules = [RowRule.of(view) for view in self.views]

    def run(self) -> StepReport:
        self.context.meter.work_on(self.files)
        with Ledger(self.state / "ledger.ndjson") as ledger:
            agreed = terms(self.views, self.files, self.url, self.share)
            self._tables = Tables(
                self.context.job_dir,
                self.views,
                ledger,
                agreed,
                parquet=OutputFormat.PARQUET in self.context.config.services.flattening.formats,
                check=self.context.stop.check,
            )
            try:
                if self._tables.finished is None:
                    facts = self._all()
                    self._tables.finish(msgspec.to_builtins(facts))
                else:
                    facts = msgspec.convert(self._tables.finished, RoutingFacts)
                    self.context.meter.add(resources=facts.resources, files=len(self.files))
                    for path in self.files:
                        self.context.meter.within(path, 0, whole=True, earlier=True)
            finally:
                self._tables.close()
            requests = self.context.meter.requests
            return result(self.files, self.views, self._tables, facts, self.warned, requests)

    def _all(self) -> RoutingFacts:
        together = SharedStop(self.context.stop)
        packers = [
            Packer(place, view.definition, self.share, skip=self._tables.done(place))
            for place, view in enumerate(self.views)
        ]
        with (
            RoutingIndex(self.state) as index,
            Flattener(
                self.context,
                self.url,
                FailedAnswers(self.state).begin(),
                together,
                interval=self.bounds.interval,
                sleep=self.sleep,
            ) as self._flattener,
            Workers[RequestBatch, None](
                lambda batch, _: self._one(batch), threads=self.bounds.groups, budget=self.budget, stop=together
            ) as workers,
        ):
            router = Router(
                self.files,
                Groups(self.crtdl.groups, self.views),
                index,
                self.state,
                limit=self.bounds.line,
                largest=self.context.config.limits.largest_resource,
                stop=self.context.stop,
                meter=self.context.meter,
            )
            self._pack(router, packers, workers)
            for packer in packers:
                _submit(workers, packer.end())
            workers.drain()
        return self._checked(router.facts)

    def _pack(self, router: Router, packers: Sequence[Packer], workers: Workers[RequestBatch, None]) -> None:
        held = 0
        for deliveries in router.deliveries():
            for place, identifier, raw in deliveries:
                workers.wait_for_capacity(held + len(raw))
                packer = packers[place]
                held -= packer.size
                self.context.meter.hand_out(packer.makes)
                _submit(workers, packer.add(identifier, raw))
                held += packer.size
            self.context.meter.add(resources=len(deliveries))

    def _one(self, batch: RequestBatch) -> None:
        """Send a batch and write its rows to the table, in a thread of the pool."""
        writer = AnswerWriter(self._tables[batch.place], self.rules[batch.place], batch.ids)
        name = self.views[batch.place].group_name
        self._flattener.flatten(batch, writer, where=f"group {name}, batch {batch.ordinal + 1:,}")
        self._tables.record_batch(batch, writer.rows, writer.with_rows)
        self.context.meter.hand_in(batch.resources)

    def _checked(self, facts: RoutingFacts) -> RoutingFacts:
        """Raise an error if no resource was assigned to a group."""
        unrouted = sum(facts.unrouted.values())
        if unrouted and unrouted == facts.resources:
            raise DataError(
                "flattening-unrouted",
                f"flattening: none of {unrouted:,} resources belongs to a group ({', '.join(sorted(facts.unrouted))})",
                context=str(self.context.input_dir),
                hint="the Provenances of the data name other resources or other groups: does the CRTDL belong to this "
                "data? did the pseudonymization treat the ids of resources and the targets of Provenances differently?",
            )
        return facts


def _submit(workers: Workers[RequestBatch, None], batches: Iterable[RequestBatch]) -> None:
    """Submit the batches; the batches of a group run in order, and groups run in parallel."""
    for batch in batches:
        workers.submit(batch, keys=frozenset((batch.place,)), weight=len(batch.body))
