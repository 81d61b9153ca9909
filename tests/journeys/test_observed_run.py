"""Content of ``events.ndjson`` and ``summary.json`` after whole runs: all that happened, and none of the data."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from flows.reports import events, summary
from tasks.shared.publication import technical
from tests.conftest import Commands, wait_until
from tests.peers.extraction import PatientExtraction, extraction_server
from tests.peers.extraction import project as extraction_project
from tests.peers.project import Fhir
from tests.peers.server import Reply, SeenRequest

PERSON = "Canaryperson"
PASSWORD = "canary-password-7f3a"


def checked_events(directory: Path) -> list[dict[str, Any]]:
    """Return the events of a job, every one checked against the schema."""
    schema = Draft202012Validator(events.schema())
    lines = [json.loads(line) for line in (directory / "events.ndjson").read_text(encoding="utf-8").splitlines()]
    for line in lines:
        schema.validate(line)
    assert len({line["job"] for line in lines}) == 1
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    return lines


def summed_up(directory: Path) -> dict[str, Any]:
    """Return the summary of a job, checked against the schema."""
    document: dict[str, Any] = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    Draft202012Validator(summary.schema()).validate(document)
    return document


def course(lines: list[dict[str, Any]]) -> list[str]:
    """Return the events in short."""
    return [" ".join(str(line[key]) for key in ("run", "step", "event", "state") if line.get(key)) for line in lines]


@pytest.mark.slow
def test_an_import_a_wait_a_failure_and_a_send_that_repeats_a_request(
    sluice: Commands, project: Path, fhir: Fhir
) -> None:
    config = (project / "config.yaml").read_text()
    auth = f'url: "{fhir.url}", auth: {{username: loader, password: "${{LOADER_PASSWORD}}"}}}}'
    (project / "config.yaml").write_text(config.replace(f'url: "{fhir.url}"}}', auth))
    for file in (project / "data").glob("batch-*.ndjson"):
        file.write_text(file.read_text().replace("Umläut", PERSON))
    env = {"LOADER_PASSWORD": PASSWORD}

    started = sluice("pipeline", "start", "config.yaml", env=env)
    assert started.code == 0, started.err
    job = project / "jobs" / started.job
    waiting = summed_up(job)
    assert (waiting["state"], waiting["waiting"]["directory"]) == ("waiting", str(job / "import_wait"))

    fhir.faults({"action": "status", "status": 403, "path": "/fhir*", "method": "POST", "times": 1, "body": PERSON})
    comment = f"{PERSON} is fine"
    failed = sluice("pipeline", "continue", "config.yaml", started.job, "--approve", "--comment", comment, env=env)
    assert failed.code == 1, failed.err
    failure = summed_up(job)
    assert (failure["state"], failure["run"], failure["error"]["step"]) == ("failed", 2, "send")

    fhir.faults({"action": "status", "status": 503, "path": "/fhir*", "method": "POST", "times": 1, "body": PERSON})
    done = sluice("pipeline", "continue", "config.yaml", started.job, env=env)
    assert done.code == 0, done.err

    lines = checked_events(job)
    assert course(lines) == [
        "1 job created", "1 job started", "1 local_import step running", "1 local_import step completed",
        "1 wait step running", "1 wait step waiting", "1 wait wait asked", "1 wait job waiting",
        "2 job resumed", "2 wait wait decided", "2 wait step running", "2 wait step completed",
        "2 send step running", *["2 send status"] * 3, "2 send step failed", "2 send job failed",
        "3 job resumed", "3 send step running", *["3 send status"] * 3, "3 send request-retry", "3 send step completed",
        "3 send export",
        "3 job completed",
    ]  # fmt: skip
    by_name = dict(zip(course(lines), lines, strict=True))
    assert by_name["2 wait wait decided"]["approved"] is True
    assert by_name["2 send step failed"]["error"] == by_name["2 send job failed"]["error"]
    assert by_name["2 send step failed"]["error"] == failure["error"]["reference"]
    assert by_name["3 send request-retry"]["status"] == 503
    assert by_name["1 local_import step completed"]["files"] == 3
    assert by_name["3 send export"]["resources"] == 19

    complete = summed_up(job)
    assert (complete["state"], complete["run"], complete["error"]) == ("completed", 3, None)
    assert complete["created"] == waiting["created"] == lines[0]["time"]
    assert [step["state"] for step in complete["steps"]] == ["completed"] * 3
    assert complete["reconciliation"] == [{"position": 3, "name": "send", "written": 7, "read": 7, "agrees": True}]
    assert complete["steps"][2]["retries"] == 1
    assert complete["inputs"]["config"] == "config.yaml"
    assert all(complete["versions"].values())

    for name in ("events.ndjson", "summary.json"):
        assert (job / name).stat().st_mode & 0o777 == 0o600
        for canary in (PERSON, PASSWORD, "Klinik", "p1"):
            assert canary not in (job / name).read_text(encoding="utf-8")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PatientExtraction]:
    with extraction_server(PatientExtraction()) as running:
        extraction_project(tmp_path, running.url)
        yield running


@pytest.mark.e2e
def test_an_extraction_that_is_killed_while_it_is_polled_and_continued(
    sluice: Commands, server: PatientExtraction, tmp_path: Path
) -> None:
    still_running = True

    def busy(seen: SeenRequest) -> Reply | None:
        return Reply(202) if still_running and "/__status/" in seen.target else None

    server.override = busy
    child = sluice.start("pipeline", "start", "config.yaml", "query.json")
    wait_until(lambda: any("/__status/" in seen.target for seen in server.seen), 90)
    child.send_signal(signal.SIGKILL)
    out, _ = child.communicate()
    job = tmp_path / "jobs" / out.split()[1]
    killed = checked_events(job)
    assert course(killed)[:3] == ["1 job created", "1 job started", "1 extractor step running"]
    (extraction,) = server.tasks
    assert [line["extraction"] for line in killed if line["event"] == "kickoff"] == [extraction]
    assert not (job / "summary.json").exists()
    # As a power cut leaves it.
    with (job / "events.ndjson").open("ab") as log:
        log.write(b'{"time":"2026-')

    still_running = False
    done = sluice("pipeline", "continue", "config.yaml", job.name)
    assert done.code == 0, done.err
    lines = checked_events(job)
    assert lines[: len(killed)] == killed
    assert [line["event"] for line in lines].count("kickoff") == 1
    assert course(lines)[len(killed)] == "2 job resumed"
    assert course(lines)[-1] == "2 job completed"
    said = [line["message"] for line in lines[len(killed) :] if line["event"] == "status"]
    assert "extracting" in said
    assert [one for one in said if "what leaves" not in one][-1] == "downloading"
    assert summed_up(job)["run"] == 2
    files = {line["file"]: line for line in lines if line["event"] == "download"}
    for name, content in server.files.items():
        stored = (job / "import" / f"{name}.zst").read_bytes()
        download = files.pop(f"{name}.zst")
        assert (download["bytes"], download["lines"]) == (len(content), technical(content.count(b"\n")))
        assert download["sha256"] == hashlib.sha256(stored).hexdigest()
    assert files == {}


@pytest.mark.slow
def test_a_job_that_is_rejected_while_nobody_runs_it(sluice: Commands, project: Path) -> None:
    job = project / "jobs" / sluice("pipeline", "start", "config.yaml").job
    comment = f"{PERSON} has two ids"
    ran = sluice("pipeline", "continue", "config.yaml", job.name, "--reject", "--comment", comment)
    assert ran.code == 0, ran.err
    lines = checked_events(job)
    assert course(lines)[-3:] == ["1 wait job waiting", "1 wait wait decided", "1 wait job cancelled"]
    assert (lines[-2]["approved"], lines[-1]["error"]) == (False, "rejected")
    document = summed_up(job)
    assert (document["state"], document["waiting"]) == ("cancelled", None)
    for name in ("events.ndjson", "summary.json"):
        assert PERSON not in (job / name).read_text(encoding="utf-8")
