"""Whole runs from the command line: start, wait, continue, and what a job leaves."""

import fcntl
import json
import re
from types import SimpleNamespace

import pytest

from tests.conftest import ask_prefect, without_waiting
from tests.peers.project import write_input


@pytest.mark.slow
def test_import_wait_send_with_an_approval_in_between(sluice, project, fhir):
    first = sluice("pipeline", "start", "config.yaml")
    assert first.code == 0, first.err
    assert first.out.splitlines()[0] == f"job {first.job}"
    status = sluice.status(first.job)
    assert status["state"] == "waiting"
    assert status["step"] == "wait"
    directory = project / "jobs" / first.job
    assert status["waiting"] == {"step": "wait", "directory": str(directory / "import_wait"), "reason": None}
    assert list((directory / "import_wait").iterdir()) == []
    assert fhir.total() == 0

    second = sluice("pipeline", "continue", "config.yaml", first.job, "--approve", "--comment", "looks good")
    assert second.code == 0, second.err
    assert fhir.total() == 19
    status = sluice.status(first.job)
    assert status["state"] == "completed"
    assert [step["state"] for step in status["steps"]] == ["completed"] * 3
    assert status["steps"][0]["files"] == 3
    assert status["steps"][2]["resources_out"] == 19


def test_a_continue_says_which_job_it_took(sluice, project):
    job = sluice("pipeline", "start", "config.yaml").job
    for same in (job[:4], "latest", job):
        assert sluice("pipeline", "continue", "config.yaml", same).out.splitlines()[0] == f"job {job}"
    as_json = sluice("pipeline", "continue", "config.yaml", "latest", "--json")
    assert json.loads(as_json.out)["id"] == job
    assert f"job {job}" in as_json.err.splitlines()


def test_a_job_is_found_by_its_beginning_and_listed_by_state_and_age(sluice, project):
    job = sluice("pipeline", "start", "config.yaml").job
    status = sluice.status(job)
    assert re.fullmatch(r"config \d{4}-\d\d-\d\d \d\d:\d\d", status["name"])
    for same in (job[:4], job[:13].upper(), "latest"):
        assert sluice.status(same)["id"] == job
    assert [key for key in ("extraction", "progress", "error", "findings", "report") if status[key] is not None] == []
    (listed,) = json.loads(sluice("job", "list", "config.yaml", "--json").out)
    ours = ["--state", listed["state"], "--since", "1h"]
    assert json.loads(sluice("job", "list", "config.yaml", "--json", *ours).out) == [listed]
    for others in (["--state", "failed"], ["--since", "P0D"]):
        assert sluice("job", "list", "config.yaml", *others).out == "no such jobs\n"
    told = sluice("-v", "job", "list", "config.yaml").err
    assert re.search(r"^POST http://\S+/flow_runs/filter: 200, ", told, re.MULTILINE)
    assert listed["id"] == job


def test_a_watched_status_is_shown_until_the_job_ends(sluice, project, prefect_api, monkeypatch):
    job = sluice("pipeline", "start", "config.yaml").job

    def becomes(kind):
        ask_prefect("POST", f"{prefect_api}/flow_runs/{job}/set_state", {"state": {"type": kind}, "force": True})

    becomes("RUNNING")
    monkeypatch.setattr("flows.commands.pipeline.time", SimpleNamespace(sleep=lambda _: becomes("COMPLETED")))
    with (project / "jobs" / job / ".lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        shown = sluice.here("pipeline", "status", "config.yaml", job, "--watch").out
    assert re.findall(rf"job {job}: (\w+)", shown) == ["running", "completed"]


@pytest.mark.slow
def test_with_json_the_job_line_goes_to_stderr_and_stdout_is_one_object(sluice, project):
    ran = sluice("pipeline", "start", "config.yaml", "--json")
    assert without_waiting(ran.err).splitlines()[0].startswith("job ")
    document = json.loads(ran.out)
    assert document == sluice.status(document["id"])


@pytest.mark.slow
def test_a_wait_does_not_ask_again_after_a_later_failure(sluice, project, fhir):
    job = sluice("pipeline", "start", "config.yaml").job
    fhir.faults({"action": "status", "status": 503, "path": "/fhir*", "method": "POST", "times": 100})
    failed = sluice("pipeline", "continue", "config.yaml", job, "--approve")
    assert failed.code == 3, failed.err
    status = sluice.status(job)
    assert status["state"] == "failed"
    assert status["error"]["transient"] is True
    assert status["error"]["hint"]
    fhir.faults()
    assert sluice("pipeline", "continue", "config.yaml", job).code == 0
    assert fhir.total() == 19


@pytest.mark.slow
def test_continue_is_refused_when_enabled_steps_differ_from_the_jobs(sluice, project):
    job = sluice("pipeline", "start", "config.yaml").job
    text = (project / "config.yaml").read_text()
    (project / "config.yaml").write_text(text.replace("[local_import, wait, send]", "[local_import, send]"))
    ran = sluice("pipeline", "continue", "config.yaml", job)
    assert ran.code == 2
    assert "error[steps-changed]" in ran.err


@pytest.mark.slow
def test_overrides_of_the_start_hold_for_continue(sluice, project, tmp_path):
    write_input(tmp_path / "other", patients=2, files=1)
    started = sluice(
        "pipeline", "start", "config.yaml", "--dir", "other", "--set", "pipeline.enabled_steps=[local_import, wait]"
    )
    assert started.code == 0, started.err
    done = sluice("pipeline", "continue", "config.yaml", started.job, "--approve")
    assert done.code == 0, done.err


def test_everything_in_a_job_is_private(sluice, project):
    job = sluice("pipeline", "start", "config.yaml").job
    directory = project / "jobs" / job
    for path in (directory, *directory.rglob("*")):
        mode = path.stat().st_mode & 0o777
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_delete_removes_directory_and_record_and_nothing_behind_links(sluice, project):
    job = sluice("pipeline", "start", "config.yaml").job
    (project / "target").mkdir()
    (project / "target" / "file").write_bytes(b"precious")
    for link in ("import/folder", "send"):
        (project / "jobs" / job / link).symlink_to(project / "target")
    assert sluice("pipeline", "continue", "config.yaml", job, "--reject").code == 0
    assert sluice("job", "delete", "config.yaml", job, "--yes").code == 0
    assert not (project / "jobs" / job).exists()
    assert (project / "target" / "file").read_bytes() == b"precious"
    gone = sluice("pipeline", "status", "config.yaml", job)
    assert gone.code == 2
    assert "error[job-unknown]" in gone.err
    assert sluice("job", "list", "config.yaml").out == "no jobs\n"


@pytest.mark.slow
def test_from_a_step_discards_it_and_all_later_ones_and_goes_on(sluice, project, fhir):
    job = sluice("pipeline", "start", "config.yaml").job
    corrected = project / "jobs" / job / "import_wait" / "fixed.ndjson"
    corrected.write_text(json.dumps({"resourceType": "Patient", "id": "only-this"}) + "\n")
    assert [sluice("pipeline", "continue", "config.yaml", job, "--approve").code for _ in range(2)] == [5, 0]
    refused = sluice("pipeline", "continue", "config.yaml", job, "--from", "local_import")
    assert (refused.code, "add --yes" in refused.err) == (2, True)
    write_input(project / "more", patients=8)
    (project / "data" / "batch-0.ndjson").write_bytes((project / "more" / "batch-0.ndjson").read_bytes())
    ran = sluice("pipeline", "continue", "config.yaml", job, "--from", "local_import", "--yes")
    assert ran.code == 0, ran.err
    # The wait asks again, and what was put into its directory is kept beside it.
    status = sluice.status(job)
    assert [step["state"] for step in status["steps"]] == ["completed", "waiting", "pending"]
    assert not (project / "jobs" / job / "send").exists()
    assert list(corrected.parent.iterdir()) == []
    assert (project / "jobs" / job / "import_wait.old" / "fixed.ndjson").exists()
    # A waiting job, too; then the send loads what the new import brought.
    assert sluice("pipeline", "continue", "config.yaml", job, "--from", "wait", "--yes").code == 0
    assert sluice("pipeline", "continue", "config.yaml", job, "--approve").code == 0
    assert fhir.count("Patient") == 8


@pytest.mark.slow
def test_from_a_step_is_refused_for_a_cancelled_job_and_behind_open_steps(sluice, project):
    job = sluice("pipeline", "start", "config.yaml").job
    early = sluice("pipeline", "continue", "config.yaml", job, "--from", "send", "--yes")
    assert (early.code, "error[step-order]" in early.err) == (2, True)
    assert sluice("pipeline", "continue", "config.yaml", job, "--reject").code == 0
    cancelled = sluice("pipeline", "continue", "config.yaml", job, "--from", "1", "--yes")
    assert (cancelled.code, "error[job-cancelled]" in cancelled.err) == (1, True)


@pytest.mark.slow
def test_from_a_step_removes_nothing_when_its_preflight_fails(sluice, project, fhir):
    job = sluice("pipeline", "start", "config.yaml").job
    assert sluice("pipeline", "continue", "config.yaml", job, "--approve").code == 0
    text = (project / "config.yaml").read_text()
    (project / "config.yaml").write_text(text.replace(fhir.url, "http://127.0.0.1:9"))
    assert sluice("pipeline", "continue", "config.yaml", job, "--from", "send", "--yes").code == 3
    assert (project / "jobs" / job / "send").is_dir()
    assert [step["state"] for step in sluice.status(job)["steps"]] == ["completed"] * 3
    (project / "config.yaml").write_text(text)
    assert "is complete" in sluice("pipeline", "continue", "config.yaml", job).out


@pytest.mark.slow
def test_a_later_steps_reset_keeps_what_an_earlier_wait_was_given(sluice, project, fhir):
    text = (
        (project / "config.yaml").read_text().replace("[local_import, wait, send]", "[local_import, wait, send, wait]")
    )
    (project / "config.yaml").write_text(text)
    job = sluice("pipeline", "start", "config.yaml").job
    corrected = project / "jobs" / job / "import_wait" / "fixed.ndjson"
    corrected.write_text(json.dumps({"resourceType": "Patient", "id": "only-this"}) + "\n")
    # The corrected files are shown first, then approved; then the second wait.
    assert [sluice("pipeline", "continue", "config.yaml", job, "--approve").code for _ in range(3)] == [5, 0, 0]
    assert (project / "jobs" / job / "import_wait_wait").is_dir()
    assert sluice("pipeline", "continue", "config.yaml", job, "--from", "4", "--yes").code == 0
    assert corrected.exists()
    assert sluice.status(job)["waiting"]["directory"].endswith("import_wait_wait")


@pytest.mark.e2e
def test_a_reader_that_goes_away_does_not_fail_the_run(sluice, project):
    child = sluice.start("pipeline", "start", "config.yaml")
    assert child.stdout
    job = child.stdout.readline().split()[1]
    child.stdout.close()
    child.stdout = None
    child.wait(timeout=120)
    assert child.returncode == 0
    assert sluice.status(job)["state"] == "waiting"


def test_a_terminal_without_the_signs_does_not_fail_the_run(sluice_process, project):
    ran = sluice_process("pipeline", "start", "config.yaml", env={"PYTHONIOENCODING": "ascii"})
    assert ran.code == 0, ran.err
    assert "19 ? 19 resources" in ran.out


def test_a_run_of_another_flow_is_no_job(sluice, project, prefect_api):
    flow = ask_prefect("POST", f"{prefect_api}/flows/", {"name": "foreign"})
    run = ask_prefect("POST", f"{prefect_api}/flow_runs/", {"flow_id": flow["id"]})
    for command in (["pipeline", "continue"], ["job", "delete", "--yes"]):
        ran = sluice(*command, "config.yaml", run["id"])
        assert ran.code == 2
        assert "error[job-unknown]" in ran.err


@pytest.mark.slow
def test_a_run_with_foreign_parameters_is_refused_without_naming_a_command(sluice, project, prefect_api):
    flow = ask_prefect("POST", f"{prefect_api}/flows/", {"name": "pipeline"})
    parameters = {"config": str(project / "config.yaml"), "crtdls": "x"}
    state = {"type": "FAILED", "name": "Failed", "message": "Validation of flow parameters failed"}
    body = {"flow_id": flow["id"], "parameters": parameters, "state": state}
    run = ask_prefect("POST", f"{prefect_api}/flow_runs/", body)["id"]
    text = sluice("pipeline", "status", "config.yaml", run).out
    assert "error[run-not-begun]" in text
    assert "continue" not in text
    ran = sluice("pipeline", "continue", "config.yaml", run)
    assert (ran.code, "error[run-parameters]" in ran.err) == (2, True), ran.err


def test_a_parked_run_cancelled_in_the_ui_is_cancelled(sluice, project, prefect_api):
    job = sluice("pipeline", "start", "config.yaml").job
    state = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
    ask_prefect("POST", f"{prefect_api}/flow_runs/{job}/set_state", state)
    assert sluice.status(job)["state"] == "cancelled"
    assert "error[job-cancelled]" in sluice("pipeline", "continue", "config.yaml", job).err
