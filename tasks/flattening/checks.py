"""What can be wrong with the flattening before there is a job: lookup file, formats (document 3 §5), the service."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from config import PipelineConfig
from tasks.flattening.lookup import lookup_findings, lookup_warnings
from tasks.flattening.parquet import format_findings
from tasks.flattening.probe import PROBE
from tasks.shared.errors import SluiceError
from tasks.shared.files.named_file import file_findings
from tasks.shared.service import Service
from tasks.shared.step import CheckContext, Given


def service(config: PipelineConfig) -> Service:
    """``services.flattening``: it has no credentials."""
    return Service("flattening", config.services.flattening.service_url, probe=PROBE)


def needs(_given: Given) -> Collection[str]:
    """The groups of the query, whatever was imported."""
    return ("crtdl",)


def checks(context: CheckContext) -> Iterator[SluiceError]:
    """The lookup file, and what the formats take."""
    settings = context.config.services.flattening
    if settings.lookup_path is not None:
        unreadable = list(file_findings("services.flattening.lookup_path", settings.lookup_path))
        yield from unreadable or lookup_findings(settings.lookup_path)
    yield from format_findings(settings)


def warnings(context: CheckContext) -> Iterator[str]:
    """What is odd about the lookup file."""
    path = context.config.services.flattening.lookup_path
    if path is not None and not list(file_findings("", path)):
        yield from lookup_warnings(path)
