"""The step: send the resources of each attribute group to the flattening service, and write its rows to a table.

The input is read once, ``core.ndjson`` first. Resources are packed into batches for their groups; ``batch_size_mb``
bounds the batches in memory. When all batches are answered, their rows are joined to tables.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec

from tasks.flattening.lookup import read_lookup
from tasks.flattening.routing import Delivery, Router
from tasks.flattening.service import Flattener, service
from tasks.flattening.tables import CSV, OUTPUT, PARTS, Batch, GroupTable, file_names, parts_of, write_definitions
from tasks.flattening.views import GroupView, no_views, views
from tasks.shared.errors import DataError
from tasks.shared.fhir.crtdl import crtdl_in, read_content
from tasks.shared.file_work import Done, FileWork, digest, identities
from tasks.shared.files.data_directory import CORE, base_name, data_files, stored_bytes
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.files.ndjson import MIB, lines
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tasks.shared.stop import SharedStop
from tasks.shared.work import for_each

DEFINITIONS: Final = "viewdefinitions"
STATE: Final = "flattening"
"""Directory of wrong answers, below the job directory."""

_REQUESTS: Final = 2  # under way
_INPUT: Final = ".input"
"""Name of the record of the input, beside the records of the tables. No table has this name."""

_ABOUT: Final = {
    "unrouted": "resources that belong to no group",
    "left_out": "resources that belong only to groups that get no CSV",
}


def run(context: StepContext) -> StepReport:
    """Flatten the input directory into ``csv/``.

    Raises ``InputError`` for a CRTDL or lookup file that cannot be used, the errors of ``Flattener``, and ``DataError``
    for lines that are no resources, and when no resource belongs to a group. Answered batches are kept.
    """
    files = data_files(context.input_dir)
    if not files:
        raise DataError("flattening-no-input", "flattening: no NDJSON file to flatten", context=str(context.input_dir))
    settings = context.config.services.flattening
    router, made, odd = _groups(context)
    named = dict(zip(file_names(view.group_name for view in made), made, strict=True))
    directory = context.job_dir / OUTPUT
    inputs = digest(*(f"{base}\n{one}" for base, one in sorted(identities(files, context.records).items())))
    definitions = msgspec.json.encode([asdict(view) for view in made]).decode()
    terms = digest(definitions, str(settings.service_url))
    work = FileWork(context.job_dir, context.position, directory, terms=terms, stem=lambda name: name.removesuffix(CSV))
    todo = set(work.begin(dict.fromkeys((*named, _INPUT), inputs)))
    parts, other_plan = parts_of(directory, digest(inputs, terms))
    if work.again or other_plan:
        odd.append("tables are made again: the input, the views or the service has changed")
    for warning in odd:
        context.meter.warn(warning)
    if todo:
        context.meter.expect(files=len(files), bytes=stored_bytes(files))
        write_definitions(context.state(DEFINITIONS), named)
        share = settings.batch_size_mb * MIB // len(made)
        tables = [GroupTable(view, parts / name, share, finished=name not in todo) for name, view in named.items()]
        _fill(context, files, router, tables)
        work.finish(_read(context, router, inputs))
        for table in tables:
            if not table.finished:
                table.join(directory, work, inputs)
    shutil.rmtree(directory / PARTS, ignore_errors=True)
    done = {one.file: one for one in work.done()}
    return _report(named, done, stored_bytes(files), (*odd, *_not_in_a_table(done[_INPUT])))


def _groups(context: StepContext) -> tuple[Router, Sequence[GroupView], list[str]]:
    """Return a router for the groups of the query, the views of the groups that have one, and the warnings."""
    lookup = read_lookup(context.config.services.flattening.lookup_path or Path())
    for finding in lookup.findings:
        raise finding
    query = context.given.crtdl or Path()
    crtdl = crtdl_in(read_content(query), query)
    made, odd = views(crtdl, lookup.tables)
    if not made:
        raise no_views()
    return Router(crtdl, made), made, [*lookup.warnings, *odd]


def _fill(context: StepContext, files: Sequence[Path], router: Router, tables: Sequence[GroupTable]) -> None:
    """Send all unfinished batches; keep their rows as parts of the tables."""
    together = SharedStop(context.stop)
    failed = FailedAnswers(context.state(STATE)).begin()
    with context.client(service(context.config), stop=together) as client:
        flattener = Flattener(context, client, together, failed)

        def flatten(work: tuple[Batch, GroupTable], _: object) -> None:
            flattener.flatten(*work)
            context.meter.add(resources=len(work[0].ids))

        for_each(
            _batches(context, files, router, tables), flatten, threads=_REQUESTS, stop=context.stop, together=together
        )


def _batches(
    context: StepContext, files: Sequence[Path], router: Router, tables: Sequence[GroupTable]
) -> Iterator[tuple[Batch, GroupTable]]:
    """Yield the batches of all groups, each when the next resource would make it too large."""
    for deliveries in _routed_lines(context, files, router):
        for table, resource in ((tables[place], resource) for place, resource in deliveries):
            yield from ((batch, table) for batch in table.add(resource))
    for table in tables:
        yield from ((batch, table) for batch in table.end())


def _routed_lines(context: StepContext, files: Sequence[Path], router: Router) -> Iterator[list[Delivery]]:
    """Yield the resources of every line of the input with their groups."""
    most = context.config.limits.max_line_mb * MIB
    for path in (one for one in files if base_name(one.name).lower() == CORE):
        for _, line in lines(path, most):
            router.learn_core(line)
    for path in files:
        for number, line in lines(path, most, stored=context.meter.read):
            context.stop.check()
            try:
                yield router.route(line)
            except DataError as error:
                error.context = f"{path.name}:{number}"
                raise
            context.meter.add(bytes=len(line), stored=0)
        context.meter.add(files=1)


def _read(context: StepContext, router: Router, identity: str) -> Done:
    """Return the record of the input. Raises ``DataError`` if no resource belongs to a group."""
    unrouted = router.unrouted.total()
    if unrouted and unrouted == router.resources:
        raise DataError(
            "flattening-unrouted",
            f"flattening: none of {unrouted:,} resources belongs to a group ({', '.join(sorted(router.unrouted))})",
            context=str(context.input_dir),
            hint="the Provenances of the data name other resources or other groups: does the CRTDL belong to this "
            "data? did the pseudonymization treat the ids of resources and the targets of Provenances differently?",
        )
    counts = {"lines": router.lines, "resources": router.resources, "by_type": router.by_type}
    tallies = {"unrouted": dict(sorted(router.unrouted.items())), "left_out": dict(sorted(router.left_out.items()))}
    return Done(file=_INPUT, identity=identity, counts=counts, tallies=tallies)


def _report(
    named: Mapping[str, GroupView], done: Mapping[str, Done], size: int, warnings: tuple[str, ...]
) -> StepReport:
    """Return the report. ``details["groups"]`` has one flat object per group."""
    groups: list[dict[str, Any]] = [
        {"group": view.group_name, "file": f"{name}{CSV}", "columns": len(view.columns)}
        | done[name].counts
        | {"bytes": done[name].size}
        for name, view in named.items()
    ]
    read = done[_INPUT]
    return StepReport(
        files=len(groups),
        resources_in=read.counts["resources"],
        lines_in=read.counts["lines"],
        bytes_in=size,
        bytes_out=sum(group["bytes"] for group in groups),
        output=OUTPUT,
        warnings=warnings,
        details={
            "groups": groups,
            "rows": sum(group["rows"] for group in groups),
            **read.tallies,
            "routed_by": "profile and type" if read.counts["by_type"] else "Provenance",
        },
    )


def _not_in_a_table(read: Done) -> Iterator[str]:
    if read.counts["by_type"]:
        yield f"resources routed by profile and type, because no Provenance names them: {read.counts['by_type']:,}"
    for name, what in _ABOUT.items():
        if counts := read.tallies[name]:
            yield f"{what}: " + ", ".join(f"{kind} {count:,}" for kind, count in counts.items())
