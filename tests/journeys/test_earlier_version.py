"""A job that the version before began is gone on with: its record, its results and its files as that one left them.

``job_of_0_1_0.zip`` holds a job that was approved at its wait and whose send was refused: ``run.json`` is its flow run,
the rest its directory.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.conftest import Commands, ask_prefect
from tests.peers.project import Fhir

KEPT = Path(__file__).parent / "job_of_0_1_0.zip"


@pytest.fixture
def job(sluice: Commands, project: Path, prefect_api: str) -> str:
    """Add the job as a run of this server and a directory of this project; return its id."""
    with zipfile.ZipFile(KEPT) as kept:
        run = kept.read("run.json").decode().replace("/srv/sluice", str(project))
        before = json.loads(run)
        flow = ask_prefect("POST", f"{prefect_api}/flows/", {"name": "pipeline"})["id"]
        known = {key: before[key] for key in ("name", "parameters", "tags")} | {"flow_id": flow}
        here = str(ask_prefect("POST", f"{prefect_api}/flow_runs/", known)["id"])
        labels = {name: _of(value, before["id"], here) for name, value in before["labels"].items() if "job." in name}
        ask_prefect("PATCH", f"{prefect_api}/flow_runs/{here}/labels", labels)
        failed = {"state": {"type": before["state_type"], "name": before["state_name"]}, "force": True}
        ask_prefect("POST", f"{prefect_api}/flow_runs/{here}/set_state", failed)
        directory = project / "jobs" / here
        for name in kept.namelist():
            if name != "run.json":
                target = directory / name
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                content = kept.read(name)
                if target.suffix != ".zst":
                    content = _of(content.decode(), before["id"], here).replace("/srv/sluice", str(project)).encode()
                target.write_bytes(content)
                target.chmod(0o600)
    return here


def _of(text: str, before: str, here: str) -> str:
    return text.replace(before, here)


def test_it_is_shown_and_gone_on_with_from_where_it_stopped(
    sluice: Commands, project: Path, fhir: Fhir, job: str
) -> None:
    shown = sluice.status(job)
    assert [step["state"] for step in shown["steps"]] == ["completed", "completed", "failed"]
    assert (shown["state"], shown["error"]["reference"]) == ("failed", "service-forbidden")
    assert shown["approvals"][0]["approved"] is True

    ran = sluice("pipeline", "continue", "config.yaml", job)
    assert ran.code == 0, ran.err
    assert "1 local_import: was complete" in ran.out
    assert "2 wait: was complete" in ran.out
    assert fhir.total() == 19
    events = [json.loads(line) for line in (project / "jobs" / job / "events.ndjson").read_text().splitlines()]
    begun = [(event["run"], event["state"]) for event in events if event["event"] == "job"]
    assert [state for _, state in begun[-2:]] == ["resumed", "completed"]
    assert begun[-1][0] > 1
    summary = json.loads((project / "jobs" / job / "summary.json").read_text())
    assert summary["reconciliation"] == [{"position": 3, "name": "send", "written": 7, "read": 7, "agrees": True}]
    assert summary["steps"][0]["details"] == {"content_bytes": 4666}


@pytest.mark.slow
def test_a_step_of_it_can_be_run_again(sluice: Commands, project: Path, fhir: Fhir, job: str) -> None:
    again = sluice("job", "run", "config.yaml", job, "--step", "local_import", "--force")
    assert again.code == 0, again.err
    assert "1 local_import: complete" in again.out


def test_it_ends_everywhere_when_it_waits_and_is_rejected(
    sluice: Commands, project: Path, prefect_api: str, job: str
) -> None:
    directory = project / "jobs" / job
    waiting = {
        "position": 2, "step": "wait", "directory": str(directory / "import_wait"), "since": "2026-11-22T17:57",
        "looked_at": str(directory / "import"), "leaves": str(directory / "import"), "reads": str(directory / "import"),
    }  # fmt: skip
    waits = {
        "job.waiting": json.dumps(waiting), "job.approval.2": "", "job.step.3": "", "job.error": "",
        "job.step.2": json.dumps({"position": 2, "name": "wait", "state": "waiting", "directory": "import_wait"}),
    }  # fmt: skip
    ask_prefect("PATCH", f"{prefect_api}/flow_runs/{job}/labels", waits)
    paused = {"state": {"type": "PAUSED", "name": "Paused"}, "force": True}
    ask_prefect("POST", f"{prefect_api}/flow_runs/{job}/set_state", paused)
    (directory / ".results/2-wait.json").unlink()

    assert "send will read" in sluice("pipeline", "status", "config.yaml", job).out
    ran = sluice("pipeline", "continue", "config.yaml", job, "--reject", "--comment", "no")
    assert ran.code == 0, ran.err
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["state"], summary["waiting"], summary["error"]["reference"]) == ("cancelled", None, "rejected")
    assert summary["steps"][0]["lines_out"] == 7
    last = json.loads((directory / "events.ndjson").read_text().splitlines()[-1])
    assert (last["event"], last["state"], last["step"]) == ("job", "cancelled", "wait")
