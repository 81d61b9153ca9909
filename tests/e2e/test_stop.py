"""Signals, kill -9, cancel: how a run ends before its time."""

import contextlib
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.conftest import ask_prefect, started, wait_until
from tests.peers.project import allowed

pytestmark = pytest.mark.e2e

HANGS = {"action": "delay", "seconds": 600, "path": "/fhir*", "method": "POST", "times": 1}
"""The first transaction is answered later than any test ends."""


def started_and_sending(sluice, project, fhir):
    config = project / "config.yaml"
    config.write_text(config.read_text().replace("wait, ", ""))
    fhir.faults(HANGS)
    child = sluice.start("pipeline", "start", "config.yaml")
    job = started(child)
    log = project / "jobs" / job / "job.log"
    wait_until(lambda: log.exists() and "step 2 send begins" in log.read_text(), 150)
    return job, child


def test_a_signal_stops_within_ten_seconds_and_the_job_continues_later(sluice, project, fhir):
    job, child = started_and_sending(sluice, project, fhir)
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=120)
    assert time.monotonic() - began < allowed(10)
    assert child.returncode == 130
    assert "Ctrl-C: stopping after this file, within 7 s" in err
    assert f"config.yaml {job}" in err
    assert json.loads(sluice.here("job", "list", "config.yaml", "--json").out)[0]["state"] == "stopped"
    fhir.faults()
    assert sluice.here("pipeline", "continue", "config.yaml", job).code == 0
    assert fhir.total() == 19


def test_a_cancel_in_the_ui_reaches_a_local_run(sluice, project, fhir, prefect_api):
    job, child = started_and_sending(sluice, project, fhir)
    state = {"state": {"type": "CANCELLING", "name": "Cancelling"}, "force": False}
    ask_prefect("POST", f"{prefect_api}/flow_runs/{job}/set_state", state)
    began = time.monotonic()
    _, err = child.communicate(timeout=120)
    assert time.monotonic() - began < allowed(15)
    assert child.returncode == 1, err
    assert "is cancelled" in err
    assert sluice.status(job)["state"] == "cancelled"


def test_a_stop_ends_in_ten_seconds_although_the_prefect_server_hangs(sluice_alone, project, fhir):
    _, child = started_and_sending(sluice_alone, project, fhir)
    server = json.loads((project / "jobs/.prefect/server.json").read_text())["pid"]
    os.kill(server, signal.SIGSTOP)
    try:
        began = time.monotonic()
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=120)
        assert time.monotonic() - began < allowed(11)
        assert child.returncode == 143
        assert "SIGTERM: stopping after this file, within 7 s" in err
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGCONT)
            os.kill(server, signal.SIGTERM)


def catches(child, number) -> bool:
    """Return whether the process has a handler for a signal."""
    status = Path(f"/proc/{child.pid}/status").read_text()
    (caught,) = re.findall(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(int(caught, 16) & 1 << number - 1)


@pytest.mark.parametrize("after", [0.0, 0.7, 1.6])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_at_any_moment_of_the_start_has_its_exit_code_and_no_traceback(sluice, project, number, code, after):
    child = sluice.start("pipeline", "start", "config.yaml")
    # Before that it is Python that starts, not yet the command. SIGINT has a handler of Python's then.
    wait_until(lambda: catches(child, signal.SIGTERM))
    time.sleep(after)
    child.send_signal(number)
    out, err = child.communicate(timeout=120)
    assert "Traceback" not in err
    if child.returncode != 0:  # the run was quicker
        assert child.returncode == code, out + err
