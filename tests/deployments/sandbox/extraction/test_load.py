"""Thousands of patients load in seconds, with little memory (issue 3, item 4). A campaign: ``pytest -m campaign``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.deployments.sandbox.extraction.conftest import ICD, LOINC, concept, patient, resource

MEASURE = """
import sys, time
from pathlib import Path
from deployments.sandbox.extraction.index import ResourceIndex
from tests.bench.memory import peak
before = peak()
index = ResourceIndex(Path(sys.argv[1]), Path(sys.argv[2]))
started = time.process_time()
index.build()
seconds = time.process_time() - started
grown = peak() - before
with index.reader() as reader:
    print(len(reader.patients()), seconds, grown / 2**20)
"""


def hospital(directory: Path, patients: int, each: int) -> Path:
    """Patients with observations, one resource per line."""
    directory.mkdir()
    with (directory / "data.ndjson").open("w", encoding="utf-8") as file:
        for number in range(patients):
            owner = f"patient-{number}"
            file.write(json.dumps(patient(owner, gender="female", birthDate="1970-01-01")) + "\n")
            file.write(json.dumps(resource("Condition", f"c-{number}", owner, code=concept(ICD, "I10.90"))) + "\n")
            for count in range(each):
                measured = resource(
                    "Observation", f"o-{number}-{count}", owner, code=concept(LOINC, f"{count}-1"),
                    effectiveDateTime="2025-03-01T08:00:00Z", valueQuantity={"value": 7, "unit": "mg"},
                )  # fmt: skip
                file.write(json.dumps(measured) + "\n")
    return directory


@pytest.mark.campaign
def test_6000_patients_load_in_seconds_and_ten_times_the_data_in_the_same_memory(tmp_path: Path) -> None:
    grown: list[float] = []
    for each in (5, 50):
        data = hospital(tmp_path / f"data-{each}", 6000, each)
        words = [sys.executable, "-c", MEASURE, str(data), str(tmp_path / f"index-{each}")]
        answer = subprocess.run(words, capture_output=True, text=True, check=True, timeout=240, cwd=ROOT)
        patients, seconds, memory = answer.stdout.split()
        assert int(patients) == 6000
        assert float(seconds) < (4 if each == 5 else 30)
        grown.append(float(memory))
    assert grown[0] < 60  # MiB
    assert grown[1] < grown[0] + 40
