"""The step ``flattening``, and its checks of the lookup file before a job exists (docs/steps.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from config import ConfigError
from config.enrichments import enrichment_rules
from tasks.flattening.lookup import LookupFile, read_lookup
from tasks.flattening.run import DEFINITIONS, STATE, run
from tasks.flattening.service import refused_views, service
from tasks.flattening.tables import OUTPUT
from tasks.flattening.views import GroupView, no_views, views
from tasks.shared.errors import SluiceError
from tasks.shared.fhir.crtdl import crtdl_in, read_content
from tasks.shared.fhir.crtdl_preprocessing import effective_file, enrich
from tasks.shared.step import CheckContext, Step

_GROWTH = 4
"""Tables are about three times as large as compressed input, and one exists twice while its parts are joined."""


def checks(context: CheckContext) -> Iterator[SluiceError]:
    """Yield the errors of the lookup file and of its relation to the query."""
    lookup, made = _read(context)
    yield from lookup.findings
    if made is not None and not made[0]:
        yield no_views()


def warnings(context: CheckContext) -> Iterator[str]:
    """Yield the warnings about the lookup file, alone and with the query."""
    lookup, made = _read(context)
    yield from (*lookup.warnings, *(made[1] if made is not None else ()))


def trials(context: CheckContext) -> Iterator[SluiceError]:
    """Yield the views that the service refuses."""
    _, made = _read(context)
    yield from refused_views(context.config, made[0]) if made is not None else ()


def _read(context: CheckContext) -> tuple[LookupFile, tuple[Sequence[GroupView], Sequence[str]] | None]:
    """Return the lookup file, and the views of the enriched query's groups with their warnings; ``None`` if one of the
    files is unusable, which is a separate finding."""
    path, query = context.config.services.flattening.lookup_path, context.given.crtdl
    if path is None:
        return LookupFile(), None
    lookup = read_lookup(path)
    if query is None or lookup.findings:
        return lookup, None
    own = effective_file(context.job_dir) if context.job_dir is not None else None
    try:
        rules = () if own else enrichment_rules(context.config.services.crtdl_preprocessing)
        enriched = enrich(read_content(own or query), rules, query).content
        return lookup, views(crtdl_in(enriched, query), lookup.tables)
    except (SluiceError, ConfigError):
        return lookup, None


STEP = Step(
    name="flattening",
    run=run,
    output=OUTPUT,
    tables=True,
    folders=(DEFINITIONS, STATE),
    takes={"crtdl": None},
    needs=lambda _: ("crtdl",),
    services=lambda config: [service(config)],
    checks=checks,
    warnings=warnings,
    trials=trials,
    space=lambda context, read: read * (_GROWTH if context.config.compression.enabled else 1),
)
