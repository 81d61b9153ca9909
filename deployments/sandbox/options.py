"""Options of the sandbox, for the command and for Python programs."""

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
"""Environment variables with the services' credentials: other users can read process arguments."""


class OptionError(Exception):
    """An option is invalid. The message states the reason."""


@dataclass(frozen=True)
class SandboxOptions:
    """Options of the sandbox."""

    data: Path = DATA
    """Directory of FHIR NDJSON that is the configuration's input and the extraction server's data."""
    port: int = 0
    """Port of the first service; the others use the following ports. 0: free ports."""
    state: Path | None = None
    """State directory that is kept over restarts; None: a temporary directory, deleted at the end."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Names and values of ``--set``, as in ``SETTINGS``."""
    ready_file: Path | None = None
    """File to write when every service answers: JSON with ``configuration``, ``urls`` and ``pid``."""
    parent: int | None = None
    """Id of the process with which the sandbox ends."""


@dataclass(frozen=True)
class ServiceSettings:
    """Options of the services with the ``--set`` values. The host adds the data and state directories."""

    fhir: FhirOptions = field(default_factory=FhirOptions)
    extraction: ExtractionOptions = field(default_factory=ExtractionOptions)
    pseudonymizer: PseudonymizationOptions = field(default_factory=PseudonymizationOptions)
    validation: ValidationOptions = field(default_factory=ValidationOptions)
    flattening: FlatteningOptions = field(default_factory=FlatteningOptions)


def read_settings(values: Mapping[str, str]) -> ServiceSettings:
    """Read the values of ``--set``. Raises ``OptionError`` with the known names, or the expected values."""
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
"""Names for ``--set``: the service, and the name of its option."""
