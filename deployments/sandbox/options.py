"""What the sandbox is asked to be: options of the command and of the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deployments.sandbox.data import DATA
from deployments.sandbox.fhir.app import FhirOptions
from deployments.sandbox.fhir.manners import MANNERS, MannersName

USERNAME = "SLUICE_SANDBOX_USERNAME"
PASSWORD = "SLUICE_SANDBOX_PASSWORD"  # noqa: S105 - the name of a variable
TOKEN = "SLUICE_SANDBOX_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variables with the credentials that the services ask for: process arguments can be read by others."""


class OptionError(Exception):
    """An option that cannot be used; the message says why."""


@dataclass(frozen=True)
class SandboxOptions:
    """How to run the sandbox."""

    data: Path = DATA
    """Directory of FHIR NDJSON that the configuration names as input."""
    port: int = 0
    """Port of the first service, the next one takes the next; 0 = free ones."""
    state: Path | None = None
    """Where the services keep their state over restarts; None: in a temporary directory that goes with the sandbox."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """``--set``: ``manners`` (hapi, blaze), ``references``, ``numeric_ids`` (true, false), ``max_body`` (bytes)."""
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

    def fhir(self, state: Path) -> FhirOptions:
        """The options of the FHIR server."""
        return FhirOptions(
            state=state / "fhir",
            manners=self.manners,
            references=self.references,
            numeric_ids=self.numeric_ids,
            max_body=self.max_body,
        )


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


SETTINGS: dict[str, Callable[[str], object]] = {
    "manners": _manners,
    "references": _flag,
    "numeric_ids": _flag,
    "max_body": _bytes,
}
"""What ``--set`` takes, and how each value is read."""
