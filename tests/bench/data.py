"""Synthetic FHIR NDJSON for measurements: made up, seeded, the same arguments give the same bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

_NAMES = ("Albers", "Böhm", "Claßen", "Dörfler", "Ehlers", "Fröhlich", "Günther", "Hübner", "Jäger", "Krüger", "Möbius")
_CODES = ("2345-7", "718-7", "2160-0", "2951-2", "2823-3", "6690-2", "777-3", "1988-5", "4548-4", "2524-7")
_UCUM = "http://unitsofmeasure.org"
_PROFILE = "https://www.medizininformatik-initiative.de/fhir/core/modul-labor/StructureDefinition/ObservationLab"


def bundles(megabytes: float, *, seed: int = 1, kilobytes: int = 79) -> Iterator[bytes]:
    """Transaction Bundles, one patient and line each, of about ``kilobytes``; about ``megabytes`` in all."""
    draw = random.Random(seed)
    left = megabytes * 1e6
    number = 0
    while left > 0:
        number += 1
        entries = [_entry(_patient(draw, number, seed))]
        size = 0
        while size < kilobytes * 1000 * draw.uniform(0.3, 1.7):
            entry = _entry(_observation(draw, number, seed, len(entries)))
            size += 1150
            entries.append(entry)
        bundle = {"resourceType": "Bundle", "id": f"b{seed}-{number}", "type": "transaction", "entry": entries}
        line = json.dumps(bundle, ensure_ascii=False, separators=(",", ":")).encode()
        left -= len(line) + 1
        yield line


def write_files(directory: Path, megabytes: float, files: int, lines: Sequence[bytes] = ()) -> int:
    """That much data in that many files, the ``lines`` over and over: by default 64 MB, so that only a window of that
    size would notice. Returns the bytes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    more = cycle(lines or [*bundles(min(megabytes, 64.0))])
    total = 0
    for number in range(files):
        with (directory / f"batch-{number:05}.ndjson").open("wb") as file:
            while total < megabytes * 1e6 * (number + 1) / files:
                total += file.write(next(more) + b"\n")
    return total


def as_input(data: Path, job: Path) -> Path:
    """Link the data as the output of a job's import."""
    job.mkdir(parents=True, exist_ok=True)
    (job / "import").symlink_to(data)
    return job / "import"


def _entry(resource: dict[str, Any]) -> dict[str, Any]:
    place = f"{resource['resourceType']}/{resource['id']}"
    request = {"method": "PUT", "url": place}
    return {"fullUrl": f"http://bench.example/fhir/{place}", "resource": resource, "request": request}


def _patient(draw: random.Random, number: int, seed: int) -> dict[str, Any]:
    return {
        "resourceType": "Patient",
        "id": f"p{seed}-{number}",
        "identifier": [{"system": "http://bench.example/sid", "value": f"{draw.getrandbits(60):x}"}],
        "name": [{"family": draw.choice(_NAMES), "given": [draw.choice(_NAMES).lower().title()]}],
        "gender": draw.choice(("male", "female", "other")),
        "birthDate": f"{draw.randint(1930, 2015)}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}",
    }


def _observation(draw: random.Random, number: int, seed: int, index: int) -> dict[str, Any]:
    code = draw.choice(_CODES)
    day = f"202{draw.randint(0, 6)}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"
    moment = f"{day}T{draw.randint(0, 23):02}:15:00+01:00"
    return {
        "resourceType": "Observation",
        "id": f"o{seed}-{number}-{index}",
        "meta": {"profile": [_PROFILE], "source": "#bench"},
        "identifier": [{"system": "http://bench.example/lab", "value": f"{draw.getrandbits(60):x}"}],
        "status": "final",
        "category": [{"coding": [{"system": "http://loinc.org", "code": "26436-6"}]}],
        "code": {"coding": [{"system": "http://loinc.org", "code": code, "display": "Meßgröße im Serum"}]},
        "subject": {"reference": f"Patient/p{seed}-{number}"},
        "effectiveDateTime": moment,
        "issued": moment,
        "valueQuantity": {"value": round(draw.uniform(1, 300), 2), "unit": "mg/dL", "system": _UCUM, "code": "mg/dL"},
        "referenceRange": [{"low": {"value": 60, "unit": "mg/dL"}, "high": {"value": 260, "unit": "mg/dL"}}],
    }
