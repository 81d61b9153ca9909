"""The table of search parameters of R4, which is made of the published definitions.

``python -m tests.tasks.shared.fhir.test_r4_search PACKAGE`` prints it; the package is ``hl7.fhir.r4.examples`` or
``hl7.fhir.r4.core`` 4.0.1 (CC0-1.0), which ``tests/real/get.py`` fetches.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tasks.shared.fhir import r4
from tests.real.programs import directory

KINDS = ("date", "token")


def made(package: Path) -> str:
    """The table, as it must be: by type, the parameters of either kind; those of every type below ``Resource``."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: {kind: set() for kind in KINDS})
    for path in package.glob("SearchParameter-*.json"):
        parameter = json.loads(path.read_bytes())
        of_r4 = parameter["url"].startswith("http://hl7.org/fhir/SearchParameter/") and "example" not in path.name
        for base in parameter.get("base", ()) if of_r4 else ():
            known = found[base]
            if parameter["type"] in KINDS:
                known[parameter["type"]].add(parameter["code"])
    lines = [
        f"  {json.dumps(base)}: " + json.dumps({kind: sorted(names) for kind, names in found[base].items() if names})
        for base in sorted(found)
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


@pytest.mark.slow
def test_the_table_is_that_of_the_published_definitions() -> None:
    package = directory("SLUICE_REAL_EXAMPLES", "SearchParameter-Resource-id.json", "python -m tests.real.get")
    assert (Path(r4.__file__).parent / "r4_search.json").read_text() == made(package)


@pytest.mark.parametrize(
    ("kind", "name", "has"),
    [
        ("token", "code", True),
        ("date", "date", True),
        ("date", "_lastUpdated", True),
        ("token", "date", False),
        ("date", "recorded-date", False),
        ("token", "CANARY", False),
    ],
)
def test_a_type_has_the_parameters_of_its_own_and_those_of_all_types(kind: str, name: str, has: bool) -> None:
    assert r4.has_parameter("Observation", kind, name) is has


@pytest.mark.parametrize(
    ("profile", "kind"),
    [
        ("http://hl7.org/fhir/StructureDefinition/Observation", "Observation"),
        ("https://example.org/fhir/modul-person/StructureDefinition/Patient|2.0", "Patient"),
        ("https://example.org/StructureDefinition/MyObservation", ""),
        ("https://example.org/StructureDefinition/DomainResource", ""),
        ("", ""),
    ],
)
def test_a_profile_that_ends_in_a_type_is_of_that_type(profile: str, kind: str) -> None:
    assert r4.type_of_profile(profile) == kind


if __name__ == "__main__":
    sys.stdout.write(made(Path(sys.argv[1])))
