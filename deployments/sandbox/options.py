"""What the sandbox is asked to be: options of the command and of the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from deployments.sandbox.data import DATA
from deployments.sandbox.extraction.app import ExtractionOptions
from deployments.sandbox.extraction.files import UrlStyle
from deployments.sandbox.extraction.index import BadLines
from deployments.sandbox.fhir.app import FhirOptions
from deployments.sandbox.fhir.manners import MANNERS, MannersName
from deployments.sandbox.flattening.app import FlatteningOptions
from deployments.sandbox.pseudonymization.app import MAX_BODY, PseudonymizationOptions
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
    """The services' settings, read."""

    manners: MannersName = "hapi"
    references: bool = True
    numeric_ids: bool | None = None
    max_body: int | None = None
    batchsize: int = 500
    maxconcurrency: int = 4
    batch_delay: float = 0.0
    retry_delay: float = 5.0
    availability_delay: int = 0
    result_urls: UrlStyle = UrlStyle.ABSOLUTE
    public_url: str | None = None
    ignore_config: bool = False
    pseudonymizer_max_body: int = MAX_BODY
    bad_lines: BadLines = BadLines.REFUSE
    validation_serial: bool = False
    validation_max_body: int | None = None
    flattening_errors_500: bool = True
    flattening_exact_accept: bool = True
    flattening_null_columns: bool = False
    flattening_max_body: int | None = None

    def extraction(self, data: Path, state: Path) -> ExtractionOptions:
        """The options of the extraction server."""
        return ExtractionOptions(
            data=data,
            state=state / "extraction",
            batchsize=self.batchsize,
            maxconcurrency=self.maxconcurrency,
            batch_delay=self.batch_delay,
            retry_delay=self.retry_delay,
            availability_delay=self.availability_delay,
            result_urls=self.result_urls,
            public_url=self.public_url,
            bad_lines=self.bad_lines,
        )

    def validation(self) -> ValidationOptions:
        """The options of the validation service."""
        return ValidationOptions(serial=self.validation_serial, max_body=self.validation_max_body)

    def flattening(self) -> FlatteningOptions:
        """The options of the flattening service."""
        return FlatteningOptions(
            errors_500=self.flattening_errors_500,
            exact_accept=self.flattening_exact_accept,
            null_columns=self.flattening_null_columns,
            max_body=self.flattening_max_body,
        )

    def fhir(self, state: Path) -> FhirOptions:
        """The options of the FHIR server."""
        return FhirOptions(
            state=state / "fhir",
            manners=self.manners,
            references=self.references,
            numeric_ids=self.numeric_ids,
            max_body=self.max_body,
        )

    def pseudonymizer(self) -> PseudonymizationOptions:
        """The options of the pseudonymization service."""
        return PseudonymizationOptions(ignore_config=self.ignore_config, max_body=self.pseudonymizer_max_body)


def read_settings(values: Mapping[str, str]) -> Settings:
    """Read what ``--set`` gave. Raises ``OptionError`` with the known names, or the expected values."""
    read: dict[str, object] = {}
    for name, text in values.items():
        if name not in SETTINGS:
            raise OptionError(f"unknown setting {name!r}; known are {', '.join(sorted(SETTINGS))}")
        try:
            read[name] = SETTINGS[name](text)
        except ValueError as error:
            raise OptionError(f"setting {name}: {error}") from None
    return Settings(**read)  # type: ignore[arg-type]


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


def _bytes(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise ValueError("expected a number of bytes above 0")
    return int(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise ValueError("expected a whole number from 1")
    return int(text)


def _checks(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("expected a whole number from 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3600:
        raise ValueError("expected seconds from 0 to 3600")
    return value


def _url_style(text: str) -> UrlStyle:
    try:
        return UrlStyle(text)
    except ValueError:
        raise ValueError(f"expected one of {', '.join(UrlStyle)}") from None


def _bad_lines(text: str) -> BadLines:
    try:
        return BadLines(text)
    except ValueError:
        raise ValueError(f"expected one of {', '.join(BadLines)}") from None


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise ValueError("expected an http or https URL")
    return text.rstrip("/")


SETTINGS: dict[str, Callable[[str], object]] = {
    "manners": _manners,
    "references": _flag,
    "numeric_ids": _flag,
    "max_body": _bytes,
    "batchsize": _count,
    "maxconcurrency": _count,
    "batch_delay": _seconds,
    "retry_delay": _seconds,
    "availability_delay": _checks,
    "result_urls": _url_style,
    "ignore_config": _flag,
    "pseudonymizer_max_body": _bytes,
    "public_url": _url,
    "bad_lines": _bad_lines,
    "validation_serial": _flag,
    "validation_max_body": _bytes,
    "flattening_errors_500": _flag,
    "flattening_exact_accept": _flag,
    "flattening_null_columns": _flag,
    "flattening_max_body": _bytes,
}
"""What ``--set`` takes, and how each value is read."""
