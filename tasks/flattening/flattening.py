"""The step: every resource of the input to its groups, through the flattening service, into a table for each group.

Document 3 §5. The input is read once (``core.ndjson`` first), resources are packed into batches for their groups
(``batches.py``), and at most two groups are asked about at a time. The tables are in ``csv/``; they get
their names when all of them are complete.
"""

from __future__ import annotations

import shutil
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
from tasks.flattening.tables import DEFINITIONS, INPUT, OUTPUT, Tables, terms, write_definitions
from tasks.flattening.views import GroupView, no_views, views
from tasks.shared.errors import DataError, InputError, StorageError, storage_errors
from tasks.shared.fhir.crtdl import Crtdl, load_crtdl
from tasks.shared.files.ledger import Ledger
from tasks.shared.files.out_file import write_file
from tasks.shared.files.private_file import read_state
from tasks.shared.report import StepReport
from tasks.shared.shards import Division, load_division, shard_context
from tasks.shared.step import StepContext
from tasks.shared.stop import SharedStop
from tasks.shared.work import Workers

STATE: Final = "flattening"
"""Directory of the step's own files, below the job directory: ledger, index, answers that were no rows."""

_LEDGER: Final = "ledger.ndjson"
_ROUTES: Final = "routes.db"
"""The saved routing index of all files, of a step that is divided (``RoutingIndex.save``)."""
_ROUTED: Final = "routes.json"


class _Routed(msgspec.Struct):
    """The facts about all files, and the terms under which they hold. Written when ``routes.db`` is complete."""

    terms: str
    facts: RoutingFacts


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
    return flatten(context, *_groups(context), bounds=bounds, sleep=sleep)


def prepare(context: StepContext) -> None:
    """Read all files of a divided step, and save how their resources are routed. Raises the errors of ``run``."""
    route(context, *_groups(context))


def _groups(context: StepContext) -> tuple[Crtdl, Sequence[GroupView], Sequence[str]]:
    """Return the query, the views of its groups, and the warnings about them."""
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
    return crtdl, made, (*warnings, *more)


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
    return _flattening(context, crtdl, made, warnings, bounds, sleep).run()


def route(
    context: StepContext,
    crtdl: Crtdl,
    made: Sequence[GroupView],
    warnings: Sequence[str] = (),
    *,
    bounds: FlatteningBounds | None = None,
) -> None:
    """Do what ``prepare`` does, with the given views of the groups."""
    _flattening(context, crtdl, made, warnings, bounds).route()


def _flattening(
    context: StepContext,
    crtdl: Crtdl,
    made: Sequence[GroupView],
    warnings: Sequence[str],
    bounds: FlatteningBounds | None,
    sleep: Callable[[float], None] | None = None,
) -> _FlatteningRun:
    url = context.config.services.flattening.service_url
    if url is None:
        raise InputError(
            "flattening-url", "flattening: there is no service to ask", context="services.flattening.service_url"
        )
    files = context.files()
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
        context.meter.warn(warning, once=True)
    return _FlatteningRun(context, crtdl, made, warnings, url, files, bounds or FlatteningBounds(), sleep)


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
        self.of_all = self.context.whole.state(STATE)
        self.budget = self.context.config.services.flattening.batch_size_mb * self.bounds.mebibyte
        self.share = share(self.budget, len(self.views))
        self.rules = [RowRule.of(view) for view in self.views]
        whole = self.context.part is None
        self.division = load_division(self.context.job_dir, self.context.position) if whole else None
        self.terms = terms(self.views, self.files, self.url, self.share, self.division)

    def run(self) -> StepReport:
        whole = self.context.part is None
        if whole:
            write_definitions(self.context.job_dir / DEFINITIONS, self.views)
        self.context.meter.work_on(self.files)
        with Ledger(self.state / _LEDGER) as ledger:
            parquet = whole and OutputFormat.PARQUET in self.context.config.services.flattening.formats
            self._tables = self._open(
                self.context.job_dir if whole else self.state, ledger, self.terms, parquet=parquet
            )
            try:
                if self._tables.finished is None:
                    facts = self._all() if self.division is None else self._joined(self.division)
                    self._tables.finish(msgspec.to_builtins(facts))
                else:
                    facts = msgspec.convert(self._tables.finished, RoutingFacts)
                    self._count_earlier(facts)
                if self.division is not None:
                    self._remove_parts()
            finally:
                self._tables.close()
            requests = self.context.meter.requests
            report = result(
                self.files, self.views, self._tables, facts, self.warned, requests, k=self.context.config.report.k
            )
        return report if whole else report.model_copy(update={"output": None})

    def route(self) -> None:
        """Read all files, and save what each shard must know of the others, unless that was done before."""
        meter = self.context.meter
        with Ledger(self.state / _LEDGER) as ledger:
            finished = ledger.account(INPUT, self.terms).complete is not None
        known = read_state(self.of_all / _ROUTED, _Routed)
        if not finished and (known is None or known.terms != self.terms):
            self.context.remove_shard_states("")  # their receipts, too
            self._remove(_ROUTED)
            meter.begin("assigning all resources to their groups")
            meter.work_on(self.files)
            with RoutingIndex(self.state) as index:
                router = self._router(index)
                for _ in router.deliveries():
                    pass
                facts = self._checked(router.facts)
                index.save(self.state / _ROUTES)
            write_file(self.state / _ROUTED, msgspec.json.encode(_Routed(self.terms, facts)))
            meter.begin("flattening")
        meter.work_on(self.files)

    def _open(self, directory: Path, ledger: Ledger, agreed: str, *, parquet: bool = False) -> Tables:
        return Tables(directory, self.views, ledger, agreed, parquet=parquet, check=self.context.stop.check)

    def _count_earlier(self, facts: RoutingFacts) -> None:
        """Count what was done before, by an earlier run or by the shards."""
        self.context.meter.add(resources=facts.resources, files=len(self.files))
        for path in self.files:
            self.context.meter.within(path, 0, whole=True, earlier=True)

    def _all(self) -> RoutingFacts:
        together = SharedStop(self.context.stop)
        packers = [
            Packer(place, view.definition, self.share, skip=self._tables.done(place))
            for place, view in enumerate(self.views)
        ]
        routed = None if self.context.part is None else self._routed()
        with (
            RoutingIndex(self.state, None if routed is None else self.of_all / _ROUTES) as index,
            Flattener(
                self.context,
                self.url,
                self.context.failed_answers(STATE),
                together,
                interval=self.bounds.interval,
                sleep=self.sleep,
            ) as self._flattener,
            Workers[RequestBatch, None](
                lambda batch, _: self._one(batch),
                threads=self.context.requests_at_once(self.bounds.groups),
                budget=self.budget,
                stop=together,
            ) as workers,
        ):
            router = self._router(index, named_by_all=None if routed is None else not routed.fallback)
            self._pack(router, packers, workers)
            for packer in packers:
                _submit(workers, packer.end())
            workers.drain()
        return self._checked(router.facts) if routed is None else router.facts

    def _router(self, index: RoutingIndex, *, named_by_all: bool | None = None) -> Router:
        return Router(
            self.files,
            Groups(self.crtdl.groups, self.views),
            index,
            self.state,
            limit=self.bounds.line,
            largest=self.context.config.limits.largest_resource,
            stop=self.context.stop,
            meter=self.context.meter,
            named_by_all=named_by_all,
        )

    def _joined(self, division: Division) -> RoutingFacts:
        """Make the tables of those of the shards, in the order of the files. Return what was found in all files."""
        facts = self._routed()
        for shard in division.shards:
            child = shard_context(self.context, shard, 1)
            state = child.state(STATE)
            agreed = terms(self.views, child.files(), self.url, self.share)
            with Ledger(state / _LEDGER) as ledger:
                part = self._open(state, ledger, agreed)
                part.close()
                if part.finished is None:
                    raise self._damaged(state / OUTPUT)
                self._tables.append(shard.index, part)
        self._count_earlier(facts)
        return facts

    def _routed(self) -> RoutingFacts:
        """Return what was found in all files of a divided step."""
        routed = read_state(self.of_all / _ROUTED, _Routed)
        if routed is None:
            raise self._damaged(self.of_all / _ROUTED)
        return routed.facts

    def _damaged(self, path: Path) -> StorageError:
        """Return the error that a file of a divided step is not as it was written, and have the step begin anew."""
        if self.context.part is None:
            self._tables.void()
            self._remove(_ROUTED)
        return StorageError(
            "shard-file-damaged", "a file of a divided step was changed", context=str(path),
            hint="continue the job: all tables are made again",
        )  # fmt: skip

    def _remove_parts(self) -> None:
        """Remove what the shards have made, which is in the tables now. Their ledgers say that they are done."""
        for directory in self.context.shard_states(f"{STATE}/{OUTPUT}"):
            with storage_errors(directory):
                shutil.rmtree(directory)
        self._remove(_ROUTES, _ROUTED)

    def _remove(self, *names: str) -> None:
        for name in names:
            with storage_errors(self.state / name):
                (self.state / name).unlink(missing_ok=True)

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
