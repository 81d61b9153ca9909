"""HL7's validator in server mode: its findings appear at their places, and nothing else does (docs/services.md)."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tasks.validation.step import STEP
from tests.peers.data import bundle, observation, patient, write
from tests.peers.job import configuration, context, probed
from tests.real.conftest import Start

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

NARRATIVE = {"status": "generated", "div": '<div xmlns="http://www.w3.org/1999/xhtml">made up</div>'}


def person(identifier: str, **more: Any) -> dict[str, Any]:
    return patient(identifier, text=NARRATIVE, **more)


def value(identifier: str, **more: Any) -> dict[str, Any]:
    known = {"status": "final", "code": {"text": "made up"}, "effectiveDateTime": "2026-03-02", "text": NARRATIVE}
    return observation(identifier, **known | {"performer": [{"reference": "Practitioner/x"}]} | more)


def test_findings_are_where_the_resources_are(start: Start, tmp_path: Path) -> None:
    url = start("validator")
    settings = {"url": url, "max_concurrent_requests": 4}
    config = configuration({"validation": settings})
    (service,) = STEP.services(config)
    assert probed(service, config) == []

    inner = bundle(person("p", gender="female"), value("o1", status="no such"), value("o2", valueTim="x"))
    write(tmp_path / "import" / "a.ndjson", person("q", gender="female", birthDate="1980-02-03"), inner)
    write(tmp_path / "import" / "b.ndjson", person("r", birthDate="yesterday"), person("s"))
    write(tmp_path / "import" / "c.ndjson", *(value(f"c{number}") for number in range(200)))
    report = STEP.run(context(tmp_path, "validation", config, source=tmp_path / "import"))
    with (tmp_path / "validation" / "summary.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["severity"] in {"error", "fatal"}]
    assert {(row["file"], row["line"], row["resource"], row["location"]) for row in rows} == {
        ("a.ndjson", "2", "Observation/o1", "Observation.status"),
        ("a.ndjson", "2", "Observation/o2", "Observation"),
        ("b.ndjson", "1", "Patient/r", "Patient.birthDate"),
    }
    assert report.details["resources_with_findings"] == 3
    assert report.resources_in == 206
