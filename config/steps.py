"""The catalogue of pipeline steps (document 1, "pipeline"), and the only list of them.

A new step is one entry here, its package ``tasks/<name>/``, and its section in ``docs/steps.md``. This module imports
nothing of ours, so that ``config`` and ``tasks`` can both read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal


class Role(StrEnum):
    """The part a step plays in a job. Rules and reports that depend on a step ask for its role, not for its name."""

    EXTRACT = "extract"
    """An import that answers a query."""
    IMPORT = "import"
    """Any other import."""
    PSEUDONYMIZE = "pseudonymize"
    WAIT = "wait"
    """Parks the job until a person decides."""
    VALIDATE = "validate"
    FLATTEN = "flatten"
    """Writes tables."""
    SEND = "send"
    """Sends data to the recipient."""
    OTHER = "other"


@dataclass(frozen=True)
class StepEntry:
    """Facts about a step that the configuration needs before the package of the step is imported.

    Key names are relative to the step's block of the configuration, ``services.<name>``; a step without keys has no
    block. ``requires`` are the keys that must be set, ``suggests`` those that ``config init`` writes although the step
    works without them, ``address`` the one that says where the credentials of its ``auth`` block go. ``signs_in``:
    its service usually asks for a user name. ``repeats``: it may occur more than once in a job. ``reads_tables``: it
    can read the output of a step that writes tables. ``by_default``: ``config init`` uses it when no steps are named.
    """

    name: str
    summary: str
    role: Role = Role.OTHER
    needs_crtdl: bool = False
    requires: tuple[str, ...] = ()
    suggests: tuple[str, ...] = ()
    address: str | None = None
    signs_in: bool = False
    repeats: bool = False
    reads_tables: bool = True
    by_default: bool = False

    @property
    def block(self) -> str:
        """Return the path of the step's block in the configuration."""
        return f"services.{self.name}"

    def keys(self, which: Literal["requires", "suggests"]) -> tuple[str, ...]:
        """Return the full paths of the keys that one of the two fields names."""
        names: tuple[str, ...] = getattr(self, which)
        return tuple(f"{self.block}.{name}" for name in names)

    @property
    def imports(self) -> bool:
        """Return whether the step brings data into the job. Exactly one such step comes first."""
        return self.role in {Role.EXTRACT, Role.IMPORT}


_ENTRIES = (
    StepEntry(
        "extractor",
        "Import through the extraction server (requires a CRTDL)",
        Role.EXTRACT,
        needs_crtdl=True,
        requires=("base_url",),
        address="base_url",
        signs_in=True,
    ),
    StepEntry("local_import", "Import from a local directory", Role.IMPORT, suggests=("dir",), by_default=True),
    StepEntry("http_import", "Import from HTTP URLs", Role.IMPORT, suggests=("urls",)),
    StepEntry(
        "pseudonymizer",
        "Pseudonymize through the pseudonymization service",
        Role.PSEUDONYMIZE,
        requires=("url",),
        address="url",
        reads_tables=False,
    ),
    StepEntry("wait", "Pause for manual inspection", Role.WAIT, repeats=True, by_default=True),
    StepEntry(
        "flattening",
        "Transform to CSV (requires a CRTDL)",
        Role.FLATTEN,
        needs_crtdl=True,
        requires=("service_url", "lookup_path"),
    ),
    StepEntry(
        "send",
        "Upload to the destination",
        Role.SEND,
        requires=("send_as",),
        address="url",
        signs_in=True,
        by_default=True,
    ),
    StepEntry(
        "validation",
        "Validate FHIR data against profiles",
        Role.VALIDATE,
        requires=("url",),
        repeats=True,
        reads_tables=False,
    ),
)

STEPS: Mapping[str, StepEntry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""Every step by its name, in the order of document 1's table."""


def has_role(step: str | None, *roles: Role) -> bool:
    """Return whether ``step`` names a step that has one of these roles; false for ``None`` and unknown names."""
    return step is not None and step in STEPS and STEPS[step].role in roles
