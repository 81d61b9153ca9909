"""What the sandbox knows of resource types: patients, codes, dates, and what a query can filter by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ElementPath = tuple[str, ...]
PATIENT: Final = "Patient"
CONTEXT_SYSTEM: Final = "fdpg.mii.cds"
GENDER: Final = ("http://snomed.info/sct", "263495000")
AGE: Final = ("http://snomed.info/sct", "424144002")
UNITS_OF_AGE: Final = ("a", "mo", "wk")
MEDICATION: Final = ("medicationReference",)
"""Element that refers to the Medication with the code of a medication resource."""
_DIAGNOSIS: Final = "https://www.medizininformatik-initiative.de/fhir/ext/modul-biobank/StructureDefinition/Diagnose"
IN_EXTENSIONS: Final = {"festgestellteDiagnose": _DIAGNOSIS}
"""Names of attributes that are references in an extension, with its URL."""
_TABLES: Final[dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def _paths(text: str) -> tuple[ElementPath, ...]:
    return tuple(tuple(path.split(".")) for path in text.split())


OWNERS: Final[dict[str, tuple[ElementPath, ...]]] = {
    kind: _paths(paths) for paths, kinds in _TABLES["owners"].items() for kind in kinds.split()
}
"""Types of the Patient compartment, with the elements that refer to a resource's patients."""
DATES: Final[dict[str, tuple[ElementPath, ...]]] = {kind: _paths(paths) for kind, paths in _TABLES["dates"].items()}
"""Date elements by type, the most important first."""


@dataclass(frozen=True)
class Context:
    """A context of CCDL: the resource type of its criteria, the element with the code, and the elements that attribute
    filters can name: ``plain`` ones and ``references``."""

    name: str
    type: str
    code: str = ""
    has_value: bool = False
    plain: str = ""
    references: str = ""


CONTEXTS: Final = {name: Context(name, **members) for name, members in _TABLES["contexts"].items()}
TOKEN_FILTERS: Final[dict[str, dict[str, str]]] = _TABLES["tokens"]
"""Elements by type and token search parameter."""
DATE_FILTERS: Final[dict[str, dict[str, str]]] = _TABLES["date_parameters"]
"""Elements by type and date search parameter."""


def is_patients(kind: str) -> bool:
    """Return whether resources of this type belong to patients (and so never to the core file)."""
    return kind == PATIENT or kind in OWNERS
