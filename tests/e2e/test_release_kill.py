"""``kill -9``, signals, a cancel and a suspend while the release report is made: the job is neither lost nor released
(document 5, promise 9), and ends within ten seconds (``4-product.md`` §4, "Stop")."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.data import bundles
from tests.conftest import Commands, ask_prefect, kill, started, wait_until
from tests.peers.gate import HANGING, SLOW
from tests.peers.project import Fhir, allowed


@pytest.mark.e2e
@pytest.mark.parametrize("steps", ["local_import, wait, send", "local_import, send"])
def test_killed_in_the_report_nothing_has_left_and_the_job_goes_on_with_a_report(
    sluice: Commands, project: Path, fhir: Fhir, steps: str
) -> None:
    config = project / "config.yaml"
    text = config.read_text().replace("report: {enabled: false}", "report: {on_stop: tell}")
    config.write_text(text.replace("local_import, wait, send", steps))
    there = project / "there"
    child = subprocess.Popen(
        [sys.executable, "-c", HANGING, str(there), "pipeline", "start", "config.yaml"], cwd=project,
        env=sluice.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with child:
        job = started(child)
        wait_until(there.exists, 120)
        kill(child.pid)
    assert fhir.posts() == []
    status = sluice.status(job)
    assert (status["state"], status["report"]) == ("interrupted", None)
    waits = "wait" in steps
    refused = sluice.here("pipeline", "continue", "config.yaml", job, *(["--approve"] if waits else []))
    assert refused.code == (2 if waits else 0), refused.err
    if waits:
        assert "error[not-waiting]" in refused.err
        assert sluice.here("pipeline", "continue", "config.yaml", job).code == 0
        assert fhir.posts() == []
        assert sluice.status(job)["state"] == "waiting"
        done = sluice.here("pipeline", "continue", "config.yaml", job, "--approve", "--despite", "names are made up")
        assert done.code == 0, done.err
    assert fhir.total() == 19
    assert (project / "jobs" / job / "report/release-report.html").is_file()


Running = tuple[str, "subprocess.Popen[str]"]
MUCH = 10
"""MB of input: 130 lines, whose report takes a good ten seconds in a ``SLOW`` process, on every machine."""


@pytest.fixture
def measuring(sluice: Commands, project: Path) -> Iterator[Running]:
    """Yield a job, and its process, which measures much data for the report before the wait."""
    config = project / "config.yaml"
    config.write_text(config.read_text().replace("report: {enabled: false}", "report: {on_stop: tell}"))
    lines, left = bundles(MUCH), MUCH * 1e6
    with (project / "data/much.ndjson").open("wb") as file:
        while left > 0 and (line := next(lines, None)) is not None:
            left -= file.write(line + b"\n")
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW, "pipeline", "start", "config.yaml"], cwd=project, env=sluice.environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        job = started(child)
        wait_until((project / "jobs" / job / ".report").exists, 120)
        yield job, child
    finally:
        if child.poll() is None:
            kill(child.pid)
        child.communicate()


@pytest.mark.e2e
@pytest.mark.parametrize("how", ["signal", "cancel", "suspend"])
def test_a_job_stopped_in_the_report_ends_within_ten_seconds_without_a_report(
    sluice: Commands,
    project: Path,
    fhir: Fhir,
    prefect_api: str,
    measuring: tuple[str, subprocess.Popen[str]],
    how: str,
) -> None:
    job, child = measuring
    began = time.monotonic()
    if how == "signal":
        child.send_signal(signal.SIGINT)
    else:
        state = (
            {"type": "CANCELLING", "name": "Cancelling"} if how == "cancel" else {"type": "PAUSED", "name": "Paused"}
        )
        ask_prefect("POST", f"{prefect_api}/flow_runs/{job}/set_state", {"state": state, "force": False})
    _, err = child.communicate(timeout=120)
    assert time.monotonic() - began < allowed(10), err
    assert child.returncode == (1 if how == "cancel" else 130), err
    directory = project / "jobs" / job
    assert not (directory / ".report").exists()
    assert list(directory.rglob("release-report.*")) == []
    assert fhir.posts() == []
    status = sluice.status(job)
    assert status["state"] == ("cancelled" if how == "cancel" else "stopped")
    if how != "cancel":
        assert sluice.here("pipeline", "continue", "config.yaml", job).code == 0
        status = sluice.status(job)
        assert (status["state"], Path(status["report"]).is_file()) == ("waiting", True)
