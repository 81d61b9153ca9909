"""FHIR data for tests: patients, Bundles, Provenances and NDJSON files, with ``CANARY`` in every text of a person."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import zstandard

CANARY = "Canary-Erika-Mustermann"
"""Stands in every free text of the data and of the services: must never be seen outside private files."""

PROFILE = "https://example.org/StructureDefinition/"
GROUPS = "https://www.medizininformatik-initiative.de/fhir/fdpg/NamingSystem/attribute_group"

Json = dict[str, Any]


def resource(kind: str, identifier: str, /, **more: Any) -> Json:
    return {"resourceType": kind, "id": identifier, **more}


def patient(identifier: str, /, **more: Any) -> Json:
    return resource("Patient", identifier, **more)


def observation(identifier: str, of: str = "p", /, **more: Any) -> Json:
    return of_patient("Observation", identifier, of, **more)


def of_patient(kind: str, identifier: str, of: str, /, **more: Any) -> Json:
    return resource(kind, identifier, subject={"reference": f"Patient/{of}"}, **more)


def bundle(*resources: Json, kind: str = "transaction", **more: Any) -> Json:
    """Return a Bundle; its ``fullUrl`` and ``request`` are those of another server."""
    entries = [
        {
            "fullUrl": f"http://old.example/fhir/{one.get('resourceType')}/{one.get('id')}",
            "resource": one,
            "request": {"method": "PUT", "url": f"{one.get('resourceType')}/{one.get('id')}"},
        }
        for one in resources
    ]
    return {"resourceType": "Bundle", "type": kind, **more, "entry": entries}


def identified(identifier: str, *resources: Json, **more: Any) -> Json:
    return bundle(*resources, id=identifier, **more)


def provenance(group: str, *targets: Json | str, system: str = GROUPS) -> Json:
    """Return what says that these resources belong to an attribute group."""
    named = [one if isinstance(one, str) else f"{one['resourceType']}/{one['id']}" for one in targets]
    return resource(
        "Provenance",
        f"{group}-{named[0].rpartition('/')[2]}",
        target=[{"reference": target} for target in named],
        recorded="2026-03-02T09:15:40Z",
        agent=[{"who": {"identifier": {"system": GROUPS.replace("attribute_group", "program"), "value": "x"}}}],
        entity=[
            {"role": "source", "what": {"identifier": {"system": system, "value": group}}},
            {"role": "source", "what": {"identifier": {"system": GROUPS.replace("attribute_group", "e")}}},
        ],
    )


def person(name: str, *, observations: int = 2, size: int = 0) -> Json:
    """Return a patient's Bundle as the extraction server writes it, each Observation with a text of ``size``."""
    one = patient(name, name=[{"family": CANARY}], gender="female", text={"div": f"<div>{CANARY}</div>"})
    values = [
        observation(
            f"{name}-o{number}", name, status="final", note=[{"text": CANARY + "x" * size}],
            valueQuantity={"value": number + 0.5},
        )
        for number in range(observations)
    ]  # fmt: skip
    return bundle(one, *values, provenance("g-pat", one), provenance("g-obs", *values), id=f"b-{name}")


def grouped_person(number: int, values: int = 3, size: int = 0, conditions: int = 1) -> Json:
    """Return a patient's Bundle with diagnoses and values, each with a text of ``size``, and their Provenances."""
    name = f"p{number}"
    one = patient(name, gender="female" if number % 2 else "male")
    diagnoses = [
        of_patient("Condition", f"{name}-c{at}", name, code={"coding": [{"system": "icd", "code": f"I{at}"}]})
        for at in range(conditions)
    ]
    observations = [
        observation(f"{name}-o{at}", name, valueQuantity={"value": at + number / 8}, note="x" * size)
        for at in range(values)
    ]
    groups = {"g-pat": [one], "g-cond": diagnoses, "g-obs": observations}
    named = [provenance(group, *members) for group, members in groups.items() if members]
    return identified(f"b{number}", one, *diagnoses, *observations, *named)


def patient_bundle(number: int, count: int, size: int = 0) -> Json:
    """Return a patient's Bundle of ``count`` entries, each with a text of ``size`` characters."""
    of = f"p{number}"
    rest = [observation(f"{of}-o{index}", of, text="x" * size) for index in range(1, count)]
    return identified(f"b{number}", patient(of), *rest)


def as_line(line: bytes | Json) -> bytes:
    return line if isinstance(line, bytes) else json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode()


def write(path: Path, *lines: bytes | Json) -> Path:
    """Write an NDJSON file, packed where its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = b"".join(as_line(line) + b"\n" for line in lines)
    path.write_bytes(zstandard.compress(content) if path.suffix == ".zst" else content)
    return path


def people(directory: Path, *, files: int = 4, persons: int = 3, observations: int = 2, size: int = 0) -> Path:
    """Fill a directory with a core file and files of persons, every second one packed.

    The name of a file is part of all ids in it.
    """
    write(directory / "core.ndjson", bundle(resource("Organization", "core-org", name=CANARY), id="core"))
    for number in range(files):
        name = f"batch-{number}"
        lines = [person(f"{name}-p{at}", observations=observations, size=size) for at in range(persons)]
        write(directory / f"{name}.ndjson{'.zst' if number % 2 else ''}", *lines)
    return directory


def crtdl() -> Json:
    """Return a query for Patients and Observations."""
    gender = {
        "context": {"system": "fdpg.mii.cds", "code": "Patient"},
        "termCodes": [{"system": "http://snomed.info/sct", "code": "263495000", "display": "Gender"}],
        "valueFilter": {
            "type": "concept",
            "selectedConcepts": [{"system": "http://hl7.org/fhir/administrative-gender", "code": "female"}],
        },
    }
    wanted = {"g-pat": ("Patient", "gender"), "g-obs": ("Observation", "value")}
    groups = [
        {
            "id": group,
            "name": kind,
            "groupReference": PROFILE + group,
            "attributes": [{"attributeRef": f"{kind}.{element}", "mustHave": False}],
        }
        for group, (kind, element) in wanted.items()
    ]
    return {
        "version": "1",
        "cohortDefinition": {"version": "2", "inclusionCriteria": [[gender]]},
        "dataExtraction": {"attributeGroups": groups},
    }


def lookup() -> list[Json]:
    """Return the lookup file of that query."""
    columns = {
        "g-pat": ("Patient", "gender", {"name": "gender", "path": "gender"}),
        "g-obs": ("Observation", "value", {"name": "value", "path": "valueQuantity.value"}),
    }
    return [
        {
            "url": PROFILE + group,
            "resourceType": kind,
            "elements": {f"{kind}.{element}": {"viewDefinition": {"column": [column]}}},
        }
        for group, (kind, element, column) in columns.items()
    ]
