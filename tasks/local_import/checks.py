"""What can be wrong with a local import before there is a job, what it leaves out, and how much it brings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tasks.local_import import importer
from tasks.shared.errors import InputError, SluiceError
from tasks.shared.http.url_names import is_url
from tasks.shared.import_directory import stored_size
from tasks.shared.step import CheckContext


def directory(context: CheckContext) -> Path | None:
    """The directory to import: the command line's, else the configuration's."""
    named = context.given.input or context.config.services.local_import.dir
    return Path(named).absolute() if named else None


def checks(context: CheckContext) -> Iterator[SluiceError]:
    """The directory, without reading the files in it."""
    place = directory(context)
    if is_url(context.given.input or ""):
        yield InputError(
            "input-is-url", "local_import takes a directory, INPUT is a URL",
            hint="give a directory, or enable http_import instead of local_import",
        )  # fmt: skip
    elif place is None:
        yield InputError(
            "input-missing", "local_import has no directory", context="services.local_import.dir",
            hint="set it, or give --dir DIR",
        )  # fmt: skip
    else:
        yield from importer.findings(context.config, place)


def warnings(context: CheckContext) -> Iterator[str]:
    """What it leaves out; a job that goes on said so when it began."""
    place = directory(context)
    if place is not None and context.job_dir is None:
        yield from importer.warnings(context.config, place)


def space(context: CheckContext, _read: int) -> int:
    """What the importer takes, nothing else: the jobs directory may lie inside."""
    place = directory(context)
    files = importer.look(context.config, place).files if place is not None else ()
    return sum(stored_size(file.size, file.path.name, context.config.compression) for file in files)
