"""The step ``flattening``, and its checks of the lookup file before there is a job (document 3 §5)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tasks.flattening.flattening import STATE, run
from tasks.flattening.lookup import Lookup, read_lookup
from tasks.flattening.probe import service
from tasks.flattening.tables import DEFINITIONS, OUTPUT
from tasks.flattening.views import GroupView, no_views, views
from tasks.shared.errors import SluiceError
from tasks.shared.fhir.crtdl import load_crtdl
from tasks.shared.files.named_file import file_findings
from tasks.shared.step import CheckContext, GivenInputs, Step, same_as_input


def needs(_given: GivenInputs) -> Collection[str]:
    """Return the groups of the query, whatever was imported."""
    return ("crtdl",)


def checks(context: CheckContext) -> Iterator[SluiceError]:
    """Yield the errors of the lookup file and of its relation to the query."""
    lookup, findings, _ = _read(context)
    yield from findings
    made = _made(context, lookup)
    if made is not None and not made[0]:
        yield no_views()


def warnings(context: CheckContext) -> Iterator[str]:
    """Yield the warnings about the lookup file, alone and with the query."""
    lookup, _, odd = _read(context)
    yield from odd
    made = _made(context, lookup)
    yield from made[1] if made is not None else ()


def _read(context: CheckContext) -> tuple[Lookup | None, Sequence[SluiceError], Sequence[str]]:
    """Return the lookup file if it is usable, its errors, and its warnings."""
    path = context.config.services.flattening.lookup_path
    if path is None:
        return None, (), ()
    unreadable = list(file_findings("services.flattening.lookup_path", path))
    return (None, unreadable, ()) if unreadable else read_lookup(path)


def _made(context: CheckContext, lookup: Lookup | None) -> tuple[Sequence[GroupView], Sequence[str]] | None:
    """Return the views of the query's groups and their warnings; ``None`` if the query or the lookup file is unusable,
    which is a separate finding."""
    query = context.given.crtdl
    if lookup is None or query is None:
        return None
    try:
        return views(load_crtdl(query), lookup)
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
