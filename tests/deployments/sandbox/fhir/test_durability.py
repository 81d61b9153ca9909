"""Acknowledged changes survive ``kill -9``; others are complete or absent."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import httpx
import pytest

from deployments.sandbox.child import start_child
from deployments.sandbox.common.serve import SandboxStartError
from deployments.sandbox.options import SandboxOptions
from tests.deployments.sandbox.conftest import SandboxClient, Start


def patients(round_number: int, count: int = 20) -> list[tuple[str, str, str]]:
    keys = [f"r{round_number}-{number}" for number in range(count)]
    return [("PUT", f"Patient/{key}", f'{{"resourceType":"Patient","id":"{key}"}}') for key in keys]


@pytest.mark.slow
def test_kill_9_keeps_every_acknowledged_transaction_and_no_half_one(tmp_path: Path) -> None:
    acknowledged: set[int] = set()
    number = 0
    for delay in (0.01, 0.05, 0.12):
        with start_child(SandboxOptions(state=tmp_path)) as child, SandboxClient(child.urls["fhir"]) as client:
            number += 1
            assert client.bundle(*patients(number)).status_code == 200
            acknowledged.add(number)
            timer = threading.Timer(delay, os.kill, (child.pid, signal.SIGKILL))
            timer.start()
            with contextlib.suppress(httpx.TransportError):
                while True:
                    number += 1
                    if client.bundle(*patients(number)).status_code == 200:
                        acknowledged.add(number)
            timer.join()
    with start_child(SandboxOptions(state=tmp_path)) as child, SandboxClient(child.urls["fhir"]) as client:
        lines = client.get("/_sandbox/resources").text.splitlines()
    rounds: dict[int, int] = {}
    for line in lines:
        found = int(line.split('"id":"r')[1].split("-")[0])
        rounds[found] = rounds.get(found, 0) + 1
    assert acknowledged <= rounds.keys()
    assert set(rounds.values()) == {20}


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
