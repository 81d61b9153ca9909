"""The step ``http_import``: its declaration, and what can be wrong before there is a job."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from tasks.http_import.importer import THREADS, findings, no_url, run, wanted_files
from tasks.shared.errors import InputError, SluiceError
from tasks.shared.http.url_names import is_url
from tasks.shared.import_directory import IMPORT, adopt_facts, stored_size
from tasks.shared.step import CheckContext, Splits, Step, StepContext, nothing


def checks(context: CheckContext) -> Iterator[SluiceError]:
    """Check each URL with one request; the sizes that servers report are for ``space``."""
    given = context.given.input
    if given is not None and not is_url(given):
        yield InputError(
            "input-is-directory", "http_import takes a URL, INPUT is a directory",
            hint="give a URL, or enable local_import instead of http_import",
        )  # fmt: skip
    elif given is None and not context.config.services.http_import.urls:
        yield no_url()
    elif context.online:
        yield from findings(context.config, given, job_dir=context.job_dir, sizes=context.sizes)


def space(context: CheckContext, _read: int) -> int:
    """Return the sum of the reported sizes and the existing files; an unknown size counts as 0."""
    offered = context.sizes.items()
    wanted = sum(stored_size(size, urlsplit(url).path, context.config.compression) for url, size in offered)
    return wanted + context.held(IMPORT)


def files(context: StepContext) -> list[tuple[str, int]]:
    """Return the names of the files to download. Their sizes are unknown: each counts as one byte."""
    return [(named.base, 1) for named in wanted_files(context)]


def prepare(context: StepContext) -> None:
    """Tell how many files there are in all."""
    context.meter.expect(files=len(wanted_files(context)))


STEP = Step(
    name="http_import",
    run=run,
    reads=nothing,
    output=IMPORT,
    takes={"input": None},
    checks=checks,
    space=space,
    splits=Splits(at_once=lambda _: THREADS, adopt=adopt_facts, files=files, prepare=prepare),
)
