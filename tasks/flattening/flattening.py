"""The step: every resource of the input to its groups, through the flattening service, into a table for each group.

Document 3 §5. The input is read once (``core.ndjson`` first), resources are packed into batches for their groups
(``batches.py``), and at most two groups are asked about at a time. The tables are in ``csv/``; they get
their names when all of them are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tasks.flattening.answer import AnswerWriter, RowRule
from tasks.flattening.batches import MIB, Packer, RequestBatch, share
from tasks.flattening.client import Flattener
from tasks.flattening.lookup import load_lookup
from tasks.flattening.report import result
from tasks.flattening.routing import Groups, Router, RoutingFacts
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
"""Directory of the step's own files, below the job directory: ledger, answers that were no rows."""


@dataclass(frozen=True)
class FlatteningBounds:
    """Numbers that are not configuration.

    ``groups`` are asked about at once. ``line`` is how many bytes of an input line are held in memory. ``mebibyte`` is
    the unit of ``batch_size_mb``.
    """

    groups: int = 2
    line: int = 16 * MIB
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
    for warning in warnings:
        context.meter.warn(warning)
    bounds, state = bounds or FlatteningBounds(), context.state(STATE)
    budget = context.config.services.flattening.batch_size_mb * bounds.mebibyte
    agreed = terms(made, files, url, share(budget, len(made)))
    context.meter.work_on(files)
    with Ledger(state / "ledger.ndjson") as ledger:
        tables = Tables(context.job_dir, made, ledger, agreed)
        try:
            if tables.finished is None:
                router = Router(
                    files,
                    Groups(crtdl.groups, made),
                    state,
                    limit=bounds.line,
                    largest=context.config.limits.largest_resource,
                    stop=context.stop,
                    meter=context.meter,
                )
                _fill(context, url, tables, made, router, budget, bounds, sleep)
                facts = _checked(context, router.facts)
                tables.finish(msgspec.to_builtins(facts))
            else:
                facts = msgspec.convert(tables.finished, RoutingFacts)
                context.meter.add(resources=facts.resources, files=len(files))
                for path in files:
                    context.meter.within(path, 0, whole=True, earlier=True)
        finally:
            tables.close()
        requests = context.meter.requests
        return result(files, made, tables, facts, warnings, requests)


def _fill(
    context: StepContext,
    url: str,
    tables: Tables,
    made: Sequence[GroupView],
    router: Router,
    budget: int,
    bounds: FlatteningBounds,
    sleep: Callable[[float], None] | None,
) -> None:
    """Send all batches that are not done, and write their rows to the tables."""
    together = SharedStop(context.stop)
    rules = [RowRule.of(view) for view in made]
    packers = [
        Packer(place, view.definition, share(budget, len(made)), skip=tables.done(place))
        for place, view in enumerate(made)
    ]

    def one(batch: RequestBatch) -> None:
        writer = AnswerWriter(tables[batch.place], rules[batch.place], batch.ids)
        name = made[batch.place].group_name
        flattener.flatten(batch, writer, where=f"group {name}, batch {batch.ordinal + 1:,}")
        tables.record_batch(batch, writer.rows, writer.with_rows)
        context.meter.hand_in(batch.resources)

    with (
        Flattener(
            context, url, FailedAnswers(context.state(STATE)).begin(), together, connections=bounds.groups, sleep=sleep
        ) as flattener,
        Workers[RequestBatch, None](
            lambda batch, _: one(batch), threads=bounds.groups, budget=budget, stop=together
        ) as workers,
    ):
        held = 0
        for deliveries in router.deliveries():
            for place, identifier, raw in deliveries:
                workers.wait_for_capacity(held + len(raw))
                packer = packers[place]
                held -= packer.size
                context.meter.hand_out(packer.makes)
                _submit(workers, packer.add(identifier, raw))
                held += packer.size
            context.meter.add(resources=len(deliveries))
        for packer in packers:
            _submit(workers, packer.end())
        workers.drain()


def _submit(workers: Workers[RequestBatch, None], batches: Iterable[RequestBatch]) -> None:
    """Submit the batches; the batches of a group run in order, and groups run in parallel."""
    for batch in batches:
        workers.submit(batch, keys=frozenset((batch.place,)), weight=len(batch.body))


def _checked(context: StepContext, facts: RoutingFacts) -> RoutingFacts:
    """Raise an error if no resource was assigned to a group."""
    unrouted = sum(facts.unrouted.values())
    if unrouted and unrouted == facts.resources:
        raise DataError(
            "flattening-unrouted",
            f"flattening: none of {unrouted:,} resources belongs to a group ({', '.join(sorted(facts.unrouted))})",
            context=str(context.input_dir),
            hint="the Provenances of the data name other resources or other groups: does the CRTDL belong to this "
            "data? did the pseudonymization treat the ids of resources and the targets of Provenances differently?",
        )
    return facts
