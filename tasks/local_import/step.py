"""The step ``local_import``: its declaration, and the checks before a job exists."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.local_import.run import run
from tasks.local_import.scan import scan_source
from tasks.shared.errors import InputError, SluiceError
from tasks.shared.http.url_names import is_url
from tasks.shared.import_directory import IMPORT, stored_size
from tasks.shared.step import CheckContext, Step, nothing


def checks(context: CheckContext) -> Iterator[SluiceError]:
    """Check the directory without reading its files."""
    if is_url(context.given.input or ""):
        yield InputError(
            "input-is-url", "local_import takes a directory, INPUT is a URL",
            hint="give a directory, or enable http_import instead of local_import",
        )  # fmt: skip
    else:
        yield from scan_source(context.config, context.given.input).problems


def warnings(context: CheckContext) -> Iterator[str]:
    """Yield the files that are left out, unless the job is continued."""
    if context.job_dir is None:
        yield from scan_source(context.config, context.given.input).warnings


def space(context: CheckContext, _read: int) -> int:
    """Return the estimated size of the imported files."""
    files = scan_source(context.config, context.given.input).files
    return sum(stored_size(file.size, file.path.name, context.config.compression) for file in files)


STEP = Step(
    name="local_import",
    run=run,
    reads=nothing,
    output=IMPORT,
    takes={"input": None},
    checks=checks,
    warnings=warnings,
    space=space,
)
