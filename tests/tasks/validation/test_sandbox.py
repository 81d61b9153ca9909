"""The step against the validation service of the sandbox, over the data of the demo and some that is wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import deployments.sandbox.data
from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.validation.app import ValidationOptions, validation_service
from tests.peers.data import bundle
from tests.peers.validation import ValidationJob

DATA = Path(deployments.sandbox.data.__file__).parent


def test_findings_of_the_sandbox_service_are_mapped_to_their_resources(tmp_path: Path) -> None:
    job = ValidationJob(tmp_path)
    good = {"resourceType": "Patient", "id": "good", "gender": "female"}
    bad = {"resourceType": "Patient", "id": "bad", "gender": "x"}
    job.write("a.ndjson", good, bundle(good | {"id": "other"}, {"resourceType": "Observation", "id": "o1"}), bad)
    with serve_in_thread(validation_service(ValidationOptions(serial=True))) as served:
        result = job.validate(served.url)
    found = [
        (row["line"], row["entry"], row["resource"], row["location"])
        for row in job.summary()
        if row["severity"] == "error"
    ]
    assert ("3", "", "Patient/bad", "Patient.gender") in found
    assert ("2", "1", "Observation/o1", "Observation.status") in found
    assert {row[2] for row in found} == {"Patient/bad", "Observation/o1"}
    assert result.details["resources_with_findings"] == 2


@pytest.mark.slow
def test_the_data_of_the_demo_is_validated_whole_whatever_the_service_takes_at_once(tmp_path: Path) -> None:
    results = []
    for name, options in (("all", ValidationOptions()), ("pieces", ValidationOptions(max_body=20_000))):
        job = ValidationJob(tmp_path / name)
        for file in DATA.glob("*.ndjson"):
            shutil.copy(file, job.input)
        with serve_in_thread(validation_service(options)) as served:
            result = job.validate(served.url)
        assert result.resources_in is not None
        assert result.resources_in > 200
        results.append(
            [(row["file"], row["resource"], row["location"]) for row in job.summary() if row["severity"] == "error"]
        )
    assert results[0] == results[1]
