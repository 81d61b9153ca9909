"""Makes the demo data; the same bytes on every machine.

``python -m tests.tools.demo_data.generate [DIRECTORY]`` writes the files, into the package by default. Nobody in
them exists: the names say so, the postal codes do not exist either. One transaction Bundle per patient and line, as
the extraction server writes them (document 3 §2), and ``core.ndjson`` with what belongs to no patient.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from deployments.sandbox.data import DATA
from tests.tools.demo_data import codes as c
from tests.tools.demo_data.patient import PEOPLE, DemoPatient, Resource, concept, resource

_FILES = ("patients-a.ndjson", "patients-b.ndjson", "patients-c.ndjson")


def _core() -> list[Resource]:
    hospital = {
        "resourceType": "Organization",
        "id": "demo-hospital",
        "active": True,
        "name": "Universitätsklinikum Nirgendwo",
    }
    ward = {
        "resourceType": "Organization",
        "id": "demo-ward",
        "active": True,
        "name": "Station für Erfundene Medizin",
        "partOf": {"reference": "Organization/demo-hospital"},
    }
    doctors: list[Resource] = [
        {
            "resourceType": "Practitioner",
            "id": f"demo-doctor-{number}",
            "active": True,
            "name": [{"family": family, "given": [given], "prefix": ["Dr."]}],
        }
        for number, (given, family) in enumerate((("Ölaf", "Attest"), ("Rosa", "Kittelmüller"), ("Ümit", "Visite")), 1)
    ]
    drugs = [
        resource(
            "Medication",
            f"demo-{drug.code.lower()}",
            "core/modul-medikation/StructureDefinition/Medication",
            code=concept(c.ATC, drug),
            status="active",
        )
        for drug in c.DRUGS
    ]
    return [*sorted(drugs, key=lambda drug: str(drug["id"])), hospital, ward, *doctors]


def _line(identity: str, resources: Iterable[Resource]) -> bytes:
    entries = [
        {"resource": item, "request": {"method": "PUT", "url": f"{item['resourceType']}/{item['id']}"}}
        for item in resources
    ]
    bundle = {"resourceType": "Bundle", "id": identity, "type": "transaction", "entry": entries}
    return msgspec.json.encode(bundle) + b"\n"


def files() -> dict[str, bytes]:
    """Content of every file of the demo data by name."""
    people = [DemoPatient(number) for number in range(1, len(PEOPLE) + 1)]
    share = len(people) // len(_FILES)
    content = {"core.ndjson": _line("demo-core", _core())}
    for index, name in enumerate(_FILES):
        part = people[index * share : (index + 1) * share]
        content[name] = b"".join(_line(f"bundle-{person.key}", person.resources()) for person in part)
    return content


def main(directory: Path = DATA) -> None:
    """Write the files into a directory."""
    for name, content in files().items():
        (directory / name).write_bytes(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
