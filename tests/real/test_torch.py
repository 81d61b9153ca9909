"""Extraction with a TORCH that one brings: it gives what the sandbox gives of the same data (documents 1, 2 and 3 §2).

``SLUICE_REAL_TORCH`` is the URL of a running server, without ``/fhir``, ``SLUICE_REAL_TORCH_STORE`` that of the FHIR
server it reads, which gets the sandbox's data; ``SLUICE_REAL_TORCH_QUERIES`` a directory of CRTDL files (``*.crtdl``)
instead of the demo's query. docs/development.md has the recipe.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tasks.extractor.client import extraction_client, service_client
from tasks.extractor.extraction import run

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.data import DATA, DEMO_CRTDL
from deployments.sandbox.extraction.app import ExtractionOptions, extraction_service
from tasks.send.step import run as send_data
from tasks.shared.files.data_directory import data_files
from tasks.shared.report import StepReport
from tests.peers import job
from tests.peers.extraction import RecordingStore, configuration
from tests.peers.lines import read_lines
from tests.real import job as sent
from tests.real.conftest import Measure

pytestmark = [pytest.mark.real("torch"), pytest.mark.timeout(600)]

HOW = "bring a TORCH: docs/development.md, TORCH"
_GIVEN = os.environ.get("SLUICE_REAL_TORCH_QUERIES")
QUERIES = sorted(Path(_GIVEN).glob("*.crtdl")) if _GIVEN else [DEMO_CRTDL]


def resources() -> Iterator[dict[str, Any]]:
    """Yield the resources of the demo's data."""
    for path in data_files(DATA):
        for line in read_lines(path):
            yield from (entry["resource"] for entry in json.loads(line)["entry"])


@pytest.fixture(scope="module")
def torch(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its URL; the store behind it has the demo's data."""
    urls = [os.environ.get(name) for name in ("SLUICE_REAL_TORCH", "SLUICE_REAL_TORCH_STORE")]
    if urls[0] is None or urls[1] is None:
        pytest.skip(f"SLUICE_REAL_TORCH and SLUICE_REAL_TORCH_STORE are not set; {HOW}")
    directory = tmp_path_factory.mktemp("load")
    (directory / "import").mkdir()
    for path in data_files(DATA):
        shutil.copy(path, directory / "import")
    send_data(sent.job(directory, {"send": {"send_as": "direct_resource_load", "url": urls[1]}}))
    return urls[0]


class TorchExtraction:
    """The step in a directory of its own."""

    def __init__(self, directory: Path, url: str, query: Path, patients: Path | None) -> None:
        directory.mkdir()
        self.directory = directory
        self.store = RecordingStore()
        self.config = configuration(url, polling_interval="1s", max_polling_interval="5s", file_ready_interval="1s")
        self._given = {"crtdl": query, "patients": patients, "handle": self.store}

    def run(self) -> StepReport:
        return run(job.context(self.directory, "extractor", self.config, **self._given))

    def found(self) -> dict[str, set[str]]:
        """The ids of what was imported, by type. Each server makes Provenances of its own."""
        found: dict[str, set[str]] = {}
        for path in data_files(self.directory / "import"):
            for line in read_lines(path):
                for one in (entry["resource"] for entry in json.loads(line)["entry"]):
                    found.setdefault(one["resourceType"], set()).add(one["id"])
        found.pop("Provenance", None)
        return found


@pytest.mark.parametrize("named", [True, False], ids=["patients named", "cohort asked for"])
@pytest.mark.parametrize("query", QUERIES, ids=lambda path: path.stem)
def test_it_extracts_what_the_sandbox_extracts(
    torch: str, tmp_path: Path, figure: Measure, query: Path, named: bool
) -> None:
    patients = None
    if named:
        patients = tmp_path / "patients.txt"
        patients.write_text("".join(f"{one['id']}\n" for one in resources() if one["resourceType"] == "Patient"))
    theirs = TorchExtraction(tmp_path / "torch", torch, query, patients)
    figure("torch", f"{query.stem}, {'patients named' if named else 'cohort asked for'}", theirs.run)
    with serve_in_thread(extraction_service(ExtractionOptions(data=DATA))) as served:
        ours = TorchExtraction(tmp_path / "sandbox", served.url, query, patients)
        ours.run()
    assert theirs.found() == ours.found()


def test_its_task_says_that_the_job_is_complete_and_a_deleted_one_is_gone(torch: str, tmp_path: Path) -> None:
    made = TorchExtraction(tmp_path / "torch", torch, QUERIES[0], None)
    made.run()
    handle = made.store.load()
    assert handle is not None
    context = job.context(made.directory, "extractor", made.config)
    with service_client(made.config, context) as http:
        client = extraction_client(made.config, http)
        task = client.task(handle.job_id)
        assert task is not None
        assert task.id == handle.job_id
        client.delete(handle.job_id)
        assert handle.job_id not in {one.id for one in client.tasks()}
