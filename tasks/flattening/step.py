"""The step ``flattening``, and its checks before there is a job: lookup file, formats (document 3 §5)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tasks.flattening.flattening import STATE, run
from tasks.flattening.lookup import load_lookup, lookup_findings, lookup_warnings
from tasks.flattening.parquet import format_findings
from tasks.flattening.probe import service
from tasks.flattening.tables import DEFINITIONS, OUTPUT
from tasks.flattening.views import View, no_views, views
from tasks.shared.errors import SluiceError
from tasks.shared.fhir.crtdl import load_crtdl
from tasks.shared.files.named_file import file_findings
from tasks.shared.step import CheckContext, Given, Step, same_as_input


def needs(_given: Given) -> Collection[str]:
    """The groups of the query, whatever was imported."""
    return ("crtdl",)


def checks(context: CheckContext) -> Iterator[SluiceError]:
    """The lookup file, whether the query has anything to do with it, and what the formats take."""
    settings = context.config.services.flattening
    if settings.lookup_path is not None:
        unreadable = list(file_findings("services.flattening.lookup_path", settings.lookup_path))
        yield from unreadable or lookup_findings(settings.lookup_path)
        made = _made(context)
        if made is not None and not made[0]:
            yield no_views()
    yield from format_findings(settings)


def warnings(context: CheckContext) -> Iterator[str]:
    """What is odd about the lookup file, by itself and for the query."""
    path = context.config.services.flattening.lookup_path
    if path is not None and not list(file_findings("", path)):
        yield from lookup_warnings(path)
        made = _made(context)
        yield from made[1] if made is not None else ()


def _made(context: CheckContext) -> tuple[Sequence[View], Sequence[str]] | None:
    """The views of the query's groups, and what is odd about them; ``None`` where query or lookup file is of no use,
    which is a finding of its own.
    """
    path, query = context.config.services.flattening.lookup_path, context.given.crtdl
    if path is None or query is None:
        return None
    try:
        return views(load_crtdl(query), load_lookup(path)[0])
    except SluiceError:
        return None


STEP = Step(
    name="flattening",
    run=run,
    output=OUTPUT,
    tables=True,
    folders=(DEFINITIONS, STATE),
    takes={"crtdl": None},
    needs=needs,
    services=lambda config: [service(config)],
    checks=checks,
    warnings=warnings,
    space=same_as_input,
)
