"""What the sandbox is asked to be: options of the command and of the library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from deployments.sandbox.data import DATA
from deployments.sandbox.extraction.app import ExtractionOptions
from deployments.sandbox.fhir.app import FhirOptions
from deployments.sandbox.flattening.app import FlatteningOptions
from deployments.sandbox.pseudonymization.app import PseudonymizationOptions
from deployments.sandbox.validation.app import ValidationOptions

USERNAME = "SLUICE_SANDBOX_USERNAME"
PASSWORD = "SLUICE_SANDBOX_PASSWORD"  # noqa: S105 - the name of a variable
TOKEN = "SLUICE_SANDBOX_TOKEN"  # noqa: S105 - the name of a variable
API_KEY = "SLUICE_SANDBOX_API_KEY"
API_KEY_HEADER = "SLUICE_SANDBOX_API_KEY_HEADER"
"""Environment variables with the credentials that the services ask for: process arguments can be read by others."""


class OptionError(Exception):
    """An option that cannot be used; the message says why."""


@dataclass(frozen=True)
class SandboxOptions:
    """How to run the sandbox."""

    data: Path = DATA
    """Directory of FHIR NDJSON that the configuration names as input, and that the extraction server extracts from."""
    port: int = 0
    """Port of the first service, the next one takes the next; 0 = free ones."""
    state: Path | None = None
    """Where the services keep their state over restarts; None: in a temporary directory that goes with the sandbox."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """``--set``: names and values as in ``SETTINGS``."""
    ready_file: Path | None = None
    """Written when every service answers: JSON with ``configuration``, ``urls`` and ``pid``."""
    parent: int | None = None
    """Process id with which the sandbox ends."""


@dataclass(frozen=True)
class ServiceSettings:
    """The options of the services, with what was set. Where their data and state are is the host's to add."""

    fhir: FhirOptions = field(default_factory=FhirOptions)
    extraction: ExtractionOptions = field(default_factory=ExtractionOptions)
    pseudonymizer: PseudonymizationOptions = field(default_factory=PseudonymizationOptions)
    validation: ValidationOptions = field(default_factory=ValidationOptions)
    flattening: FlatteningOptions = field(default_factory=FlatteningOptions)


def read_settings(values: Mapping[str, str]) -> ServiceSettings:
    """Read what ``--set`` gave. Raises ``OptionError`` with the known names, or the expected values."""
    settings = ServiceSettings()
    for name, text in values.items():
        if name not in SETTINGS:
            raise OptionError(f"unknown setting {name!r}; known are {', '.join(sorted(SETTINGS))}")
        service, option = SETTINGS[name]
        options: Any = getattr(settings, service)
        kind = get_type_hints(type(options), include_extras=True)[option]
        try:
            value = TypeAdapter(kind).validate_python(text)
        except ValidationError as error:
            raise OptionError(f"setting {name}: {error.errors()[0]['msg']}") from None
        settings = replace(settings, **{service: replace(options, **{option: value})})
    return settings


SETTINGS: dict[str, tuple[str, str]] = {
    "manners": ("fhir", "manners"),
    "references": ("fhir", "references"),
    "numeric_ids": ("fhir", "numeric_ids"),
    "max_body": ("fhir", "max_body"),
    "batchsize": ("extraction", "batchsize"),
    "maxconcurrency": ("extraction", "maxconcurrency"),
    "batch_delay": ("extraction", "batch_delay"),
    "retry_delay": ("extraction", "retry_delay"),
    "availability_delay": ("extraction", "availability_delay"),
    "result_urls": ("extraction", "result_urls"),
    "public_url": ("extraction", "public_url"),
    "bad_lines": ("extraction", "bad_lines"),
    "ignore_config": ("pseudonymizer", "ignore_config"),
    "pseudonymizer_max_body": ("pseudonymizer", "max_body"),
    "validation_serial": ("validation", "serial"),
    "validation_max_body": ("validation", "max_body"),
    "flattening_errors_500": ("flattening", "errors_500"),
    "flattening_exact_accept": ("flattening", "exact_accept"),
    "flattening_null_columns": ("flattening", "null_columns"),
    "flattening_max_body": ("flattening", "max_body"),
}
"""What ``--set`` takes: the service, and the name of its option."""
