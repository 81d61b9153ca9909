"""200 MB through the sandbox extraction server and flattening, from the command line (issue "Flattening", "Show").

The client process stays below 300 MB with ``batch_size_mb`` 50 (performance.md). The peak is that of the command's own
process, as the kernel keeps it; services and Prefect server are others.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.data import DEMO_CRTDL
from deployments.sandbox.extraction.app import ExtractionOptions, extraction_service
from deployments.sandbox.flattening.app import FlatteningOptions, flattening_service
from tasks.shared.files.data_directory import data_files
from tests.bench.data import bundles
from tests.conftest import Commands
from tests.e2e.test_large_data import LIMIT, MB, measured
from tests.peers.lines import read_lines

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1800)]

FILES = 8
BASE = "http://hl7.org/fhir/StructureDefinition/"
ELEMENTS = {
    "Patient": ("identifier", "name", "gender", "birthDate"),
    "Observation": (
        "identifier", "status", "category", "code", "effective[x]", "issued", "value[x]", "referenceRange",
    ),
}  # fmt: skip
COLUMNS: dict[str, list[dict[str, Any]]] = {
    "Patient.gender": [{"name": "gender", "path": "gender", "type": "code"}],
    "Patient.birthDate": [{"name": "birth_date", "path": "birthDate", "type": "date"}],
    "Observation.status": [{"name": "status", "path": "status", "type": "code"}],
    "Observation.code": [
        {"name": "code", "path": "code.coding.first().code", "type": "code"},
        {"name": "display", "path": "code.coding.first().display", "type": "string"},
    ],
    "Observation.effective[x]": [{"name": "effective", "path": "effective.ofType(dateTime)", "type": "dateTime"}],
    "Observation.value[x]": [
        {"name": "value", "path": "value.ofType(Quantity).value", "type": "decimal"},
        {"name": "unit", "path": "value.ofType(Quantity).unit", "type": "string"},
    ],
}


def write(directory: Path, megabytes: float) -> tuple[int, int]:
    """That much data of a hospital; how many patients and other resources."""
    (directory / "hospital").mkdir()
    patients = observations = 0
    for number in range(FILES):
        with (directory / "hospital" / f"{number}.ndjson").open("wb") as file:
            for line in bundles(megabytes / FILES, seed=number + 1):
                file.write(line + b"\n")
                patients += 1
                observations += line.count(b'"resourceType":"Observation"')
    return patients, observations


def configure(directory: Path, extraction: str, flattening: str) -> None:
    """Query, lookup file and configuration."""
    query = json.loads(DEMO_CRTDL.read_text())
    query["cohortDefinition"]["inclusionCriteria"] = [
        [
            {
                "context": {"system": "fdpg.mii.cds", "code": "Patient"},
                "termCodes": [{"system": "http://snomed.info/sct", "code": "263495000", "display": "Gender"}],
                "valueFilter": {
                    "type": "concept",
                    "selectedConcepts": [
                        {"system": "http://hl7.org/fhir/administrative-gender", "code": gender}
                        for gender in ("male", "female", "other")
                    ],
                },
            }
        ]
    ]
    query["dataExtraction"]["attributeGroups"] = [
        {
            "id": f"g-{kind}", "name": kind, "groupReference": BASE + kind,
            "attributes": [{"attributeRef": f"{kind}.{name}", "mustHave": False} for name in names],
        }
        for kind, names in ELEMENTS.items()
    ]  # fmt: skip
    (directory / "query.json").write_text(json.dumps(query))
    lookup = [
        {
            "url": BASE + kind,
            "resourceType": kind,
            "elements": {
                key: {"viewDefinition": {"column": columns}}
                for key, columns in COLUMNS.items()
                if key.startswith(f"{kind}.")
            },
        }
        for kind in ELEMENTS
    ]
    (directory / "lookup.json").write_text(json.dumps(lookup))
    (directory / "config.yaml").write_text(f"""
services:
  extractor: {{base_url: "{extraction}", polling_interval: 1s}}
  flattening:
    service_url: "{flattening}"
    lookup_path: lookup.json
    formats: [csv, parquet]
    batch_size_mb: 50
pipeline: {{enabled_steps: [extractor, flattening]}}
jobs_dir: jobs
""")


def test_200_mb_are_extracted_and_flattened_in_less_than_300_mb(sluice: Commands, tmp_path: Path) -> None:
    patients, observations = write(tmp_path, 220)
    with ExitStack() as stack:
        options = ExtractionOptions(data=tmp_path / "hospital", state=tmp_path / "state", batchsize=200)
        extraction = stack.enter_context(serve_in_thread(extraction_service(options))).url
        flattening = stack.enter_context(serve_in_thread(flattening_service(FlatteningOptions()))).url
        configure(tmp_path, extraction, flattening)
        run = measured(sluice, "pipeline", "start", "config.yaml", "query.json")
    assert run.code == 0, run.err
    (job,) = (path for path in (tmp_path / "jobs").iterdir() if (path / "csv").is_dir())
    rows = {kind: (job / "csv" / f"{kind}.csv").read_bytes().count(b"\n") - 1 for kind in ELEMENTS}
    assert rows == {"Patient": patients, "Observation": observations}
    for kind, count in rows.items():
        assert parquet.ParquetFile(job / "csv" / f"{kind}.parquet").metadata.num_rows == count
    size = 0
    for path in data_files(job / "import"):
        size += sum(len(line) + 1 for line in read_lines(path))
    assert size >= 200 * MB
    assert run.peak <= LIMIT
    print(f"\n{rows}, {run.seconds:.0f} s, peak {run.peak:.0f} MB of {LIMIT}, {size / MB:.0f} MB")
