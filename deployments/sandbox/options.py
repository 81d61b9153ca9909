"""What the sandbox is asked to be: options of the command and of the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deployments.sandbox.data import DATA
from deployments.sandbox.extraction.app import ExtractionOptions
from deployments.sandbox.extraction.files import UrlStyle
from deployments.sandbox.extraction.index import BadLines
from deployments.sandbox.fhir.app import FhirOptions
from deployments.sandbox.fhir.manners import MANNERS, MannersName
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
class Settings:
    """The options of the services, with what was set. Where their data and state are is the host's to add."""

    fhir: FhirOptions = field(default_factory=FhirOptions)
    extraction: ExtractionOptions = field(default_factory=ExtractionOptions)
    pseudonymizer: PseudonymizationOptions = field(default_factory=PseudonymizationOptions)
    validation: ValidationOptions = field(default_factory=ValidationOptions)
    flattening: FlatteningOptions = field(default_factory=FlatteningOptions)


def read_settings(values: Mapping[str, str]) -> Settings:
    """Read what ``--set`` gave. Raises ``OptionError`` with the known names, or the expected values."""
    settings = Settings()
    for name, text in values.items():
        if name not in SETTINGS:
            raise OptionError(f"unknown setting {name!r}; known are {', '.join(sorted(SETTINGS))}")
        service, option, read = SETTINGS[name]
        try:
            changed: Any = replace(getattr(settings, service), **{option: read(text)})
        except ValueError as error:
            raise OptionError(f"setting {name}: {error}") from None
        settings = replace(settings, **{service: changed})
    return settings


def _manners(text: str) -> MannersName:
    for name, manners in MANNERS.items():
        if name == text:
            return manners.name
    raise ValueError(f"expected one of {', '.join(MANNERS)}")


def _flag(text: str) -> bool:
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("false", "no", "off", "0"):
        return False
    raise ValueError("expected true or false")


def _whole(least: int, what: str = "a whole number") -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise ValueError(f"expected {what} from {least}")
        return int(text)

    return read


_bytes = _whole(1, "a number of bytes")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3600:
        raise ValueError("expected seconds from 0 to 3600")
    return value


def _one_of(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    def read(text: str) -> StrEnum:
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"expected one of {', '.join(kind)}") from None

    return read


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise ValueError("expected an http or https URL")
    return text.rstrip("/")


SETTINGS: dict[str, tuple[str, str, Callable[[str], object]]] = {
    "manners": ("fhir", "manners", _manners),
    "references": ("fhir", "references", _flag),
    "numeric_ids": ("fhir", "numeric_ids", _flag),
    "max_body": ("fhir", "max_body", _bytes),
    "batchsize": ("extraction", "batchsize", _whole(1)),
    "maxconcurrency": ("extraction", "maxconcurrency", _whole(1)),
    "batch_delay": ("extraction", "batch_delay", _seconds),
    "retry_delay": ("extraction", "retry_delay", _seconds),
    "availability_delay": ("extraction", "availability_delay", _whole(0)),
    "result_urls": ("extraction", "result_urls", _one_of(UrlStyle)),
    "public_url": ("extraction", "public_url", _url),
    "bad_lines": ("extraction", "bad_lines", _one_of(BadLines)),
    "ignore_config": ("pseudonymizer", "ignore_config", _flag),
    "pseudonymizer_max_body": ("pseudonymizer", "max_body", _bytes),
    "validation_serial": ("validation", "serial", _flag),
    "validation_max_body": ("validation", "max_body", _bytes),
    "flattening_errors_500": ("flattening", "errors_500", _flag),
    "flattening_exact_accept": ("flattening", "exact_accept", _flag),
    "flattening_null_columns": ("flattening", "null_columns", _flag),
    "flattening_max_body": ("flattening", "max_body", _bytes),
}
"""What ``--set`` takes: whose option it is, its name there, and how the value is read."""
