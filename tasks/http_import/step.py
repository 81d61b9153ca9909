"""The step ``http_import``: its declaration, and the checks before a job exists."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from tasks.http_import.run import findings, run
from tasks.shared.errors import InputError, SluiceError
from tasks.shared.http.url_names import is_url
from tasks.shared.import_directory import IMPORT, stored_size
from tasks.shared.step import CheckContext, Step, nothing


def checks(context: CheckContext) -> Iterator[SluiceError]:
    """Check each URL with one request; keep the reported sizes for ``space``."""
    given = context.given.input
    if given is not None and not is_url(given):
        yield InputError(
            "input-is-directory", "http_import takes a URL, INPUT is a directory",
            hint="give a URL, or enable local_import instead of http_import",
        )  # fmt: skip
    else:
        yield from findings(context)


def space(context: CheckContext, _read: int) -> int:
    """Return the sum of the reported sizes and the existing files; an unknown size counts as 0."""
    offered = context.sizes.items()
    wanted = sum(stored_size(size, urlsplit(url).path, context.config.compression) for url, size in offered)
    return wanted + context.held(IMPORT)


STEP = Step(
    name="http_import",
    run=run,
    reads=nothing,
    output=IMPORT,
    takes={"input": None},
    checks=checks,
    space=space,
)
