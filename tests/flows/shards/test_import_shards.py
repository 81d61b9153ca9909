"""The downloads of an import in shards of one machine (6-scale-out.md)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.conftest import Commands
from tests.flows.shards.site import directory_of
from tests.peers.extraction import PatientExtraction, extraction_server, project

pytestmark = pytest.mark.e2e


def imported(job: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (job / "import").iterdir()}


def test_an_extraction_is_submitted_once_and_each_file_is_downloaded_once(sluice_process: Commands) -> None:
    sluice, found = sluice_process, []
    for shards in (1, 3):
        with extraction_server(PatientExtraction()) as server:
            project(sluice.cwd, server.url)
            ran = sluice("pipeline", "start", "config.yaml", "query.json", "--shards", str(shards))
            assert ran.code == 0, ran.err
            assert server.count("POST", "$extract-data") == 1
            found.append((imported(directory_of(sluice, ran)), server.count("GET", "/out/")))
            (step,) = sluice.status(ran.job)["steps"]
            assert step["shards"] == (None if shards == 1 else {"total": 3, "done": 3, "running": 0, "failed": 0})
    assert found[0] == found[1]
    assert len(found[0][0]) == 6
