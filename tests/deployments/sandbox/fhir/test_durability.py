"""Acknowledged changes survive ``kill -9``; others are complete or absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.sandbox.child import start_child
from deployments.sandbox.common.serve import SandboxStartError
from deployments.sandbox.options import SandboxOptions
from tests.deployments.sandbox.conftest import SandboxClient, Start


@pytest.mark.slow
def test_state_survives_an_orderly_restart_with_versions_and_counters(tmp_path: Path) -> None:
    made = []
    for _ in range(2):
        with start_child(SandboxOptions(state=tmp_path)) as child, SandboxClient(child.urls["fhir"]) as client:
            made.append(client.post("/fhir/Patient", content='{"resourceType":"Patient"}').json()["id"])
            client.put("/fhir/Binary/b", content=b"raw", headers={"content-type": "text/plain"})
            assert client.get("/fhir/Binary/b").content == b"raw"
            counts = client.counts()
    assert len(set(made)) == 2
    assert counts == {"Binary": 1, "Patient": 2}


@pytest.mark.slow
def test_a_second_server_on_the_same_state_is_refused(start: Start, tmp_path: Path) -> None:
    start(state=tmp_path / "fhir")
    with pytest.raises(SandboxStartError, match="in use"):
        start_child(SandboxOptions(state=tmp_path))
