"""``kill -9`` at any moment of an import → wait → send run, then ``pipeline continue`` (``4-product.md`` §4).

After a kill anywhere: no resource lost, none changed, no step that had finished runs again, the files as an undisturbed
run makes them, no server process left, and the job refuses a second process. Moments are random; the seed is printed.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deployments.sandbox.child import start_child
from deployments.sandbox.options import SandboxOptions
from tests.conftest import Commands, processes_with, seed, wait_until
from tests.peers.sandbox import Sandboxed

SEED = int(os.environ.get("KILL_SEED", "20250907"))
DECIMALS = ("1.50", "0.10", "100", "1E2", "-0.0", "2.000000000000000001", "1e-7")
BATCH, WORKERS = 20, 2


def resource(kind: str, name: str, patient: int, number: int = 0) -> bytes:
    """Return one resource as text, with spellings that a parser would lose."""
    value = DECIMALS[(patient + number) % len(DECIMALS)]
    subject = f'"subject": {{"reference":"Patient/p{patient}"}},' if kind == "Observation" else ""
    status = '"status":"final","code":{"text":"K\\u00e4se \\/ Käse"},' if kind == "Observation" else ""
    amount = f'"valueQuantity":{{"value":{value},"unit":"mg"}}' if kind == "Observation" else '"active":true'
    return f'{{"resourceType":"{kind}","id":"{name}", {subject}{status}{amount}}}'.encode()


def write_input(directory: Path, *, files: int, observations: int) -> dict[str, bytes]:
    """Files of one Bundle with one patient, and ``core.ndjson``; every resource's text by ``Type/id``."""
    directory.mkdir()
    core = [b'{"resourceType":"Organization","id":"org%d","name":"Klinik"}' % n for n in range(30)]
    (directory / "core.ndjson").write_bytes(b"\n".join(core) + b"\n")
    texts = {f"Organization/org{n}": text for n, text in enumerate(core)}
    for patient in range(files):
        own = {f"Patient/p{patient}": resource("Patient", f"p{patient}", patient)}
        for n in range(observations):
            own[f"Observation/o{patient}-{n}"] = resource("Observation", f"o{patient}-{n}", patient, n)
        texts |= own
        entries = b",".join(
            b'{"resource":' + text + b',"request":{"method":"POST","url":"x"}}' for text in own.values()
        )
        line = b'{"resourceType":"Bundle","type":"transaction","entry":[' + entries + b"]}\n"
        (directory / f"batch-{patient:04}.ndjson").write_bytes(line)
    return texts


class CampaignFhir(Sandboxed):
    """The sandbox FHIR server in a process of its own."""

    def slow(self, seconds: float) -> None:
        """Let every transaction take so long, once it was applied (half of the kills then hit an unanswered one)."""
        rule = {"action": "delay", "at": "applied", "seconds": seconds, "path": "/fhir*", "method": "POST"}
        self.faults(rule | {"times": None})


def identity(path: Path) -> tuple[int, int]:
    """Return the identity of a file, which changes when the file is written again."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


@dataclass
class CampaignTrial:
    """One working directory with its server and what was seen in it."""

    directory: Path
    sluice: Commands
    server: CampaignFhir
    kills: int = 0
    finished: dict[Path, tuple[int, int]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)

    @property
    def job(self) -> Path | None:
        """The job's directory, once there is one."""
        found = [path for path in (self.directory / "jobs").iterdir() if len(path.name) == 36]
        assert len(found) < 2
        return found[0] if found else None

    @property
    def log(self) -> str:
        job = self.job
        return (job / "job.log").read_text() if job and (job / "job.log").exists() else ""

    def words(self) -> list[str]:
        """Return the next command: start, or continue."""
        words = ["start", "config.yaml"] if (name := self.job_id()) is None else ["continue", "config.yaml", name]
        if "step 2 wait: waiting" in self.log and "step 2 wait is complete" not in self.log:
            words += ["--approve", "--despite", "made up"] if self.state() == "waiting" else []
        return words

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the command in a process group of its own."""
        words = self.words()
        with (self.directory / "stdout.txt").open("wb") as out, (self.directory / "stderr.txt").open("ab") as err:
            return subprocess.Popen(
                [sys.executable, "-m", "flows.run", "pipeline", *words, "--json"],
                cwd=self.directory, env=self.sluice.environment, stdin=subprocess.DEVNULL,
                stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip

    def begin(self, step: str) -> subprocess.Popen[bytes]:
        """Launch, and wait until the step begins or continues."""
        before = self.begins(step)
        child = self.launch()
        wait_until(lambda: self.begins(step) > before or child.poll() is not None, 90)
        return child

    def refuses_a_second_process(self, step: str) -> dict[str, Any]:
        """Assert that the step continues and that a second continue is refused with exit code 4.

        From then on the server takes no time.
        """
        child = self.begin(step)
        # It holds still in the middle of its work: however busy the machine is, it does not end too early.
        os.killpg(child.pid, signal.SIGSTOP)
        assert self.job is not None
        second = self.sluice("pipeline", "continue", "config.yaml", self.job.name)
        self.server.faults()
        os.killpg(child.pid, signal.SIGCONT)
        assert second.code == 4, second.err
        assert "error[job-busy]" in second.err
        return self.finish(child)

    def job_id(self) -> str | None:
        """Return the job's id: from its directory, or, when it was killed before it had one, from the list."""
        if self.job is not None:
            return self.job.name
        listed = self.listed() if self.kills else []
        return str(listed[0]["id"]) if listed else None

    def listed(self) -> list[dict[str, str]]:
        listed = json.loads(self.sluice("job", "list", "config.yaml", "--json").out)
        assert len(listed) < 2
        return listed

    def state(self) -> str | None:
        listed = self.listed()
        return str(listed[0]["state"]) if listed else None

    def kill(self, child: subprocess.Popen[bytes]) -> bool:
        """``kill -9`` of the process group; whether it still ran. Nothing of it is left afterwards."""
        if child.poll() is not None:
            return False
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        self.kills += 1
        wait_until(lambda: not processes_with(str(self.directory / "jobs")), 60)
        if (job := self.job) is not None:
            for result in job.glob(".results/*.json"):
                # Before the record says that it is complete, a step begins again and answers from its result.
                if f"step {result.stem.replace('-', ' ', 1)} is complete" in self.log:
                    self.steps.setdefault(result.stem, self.begins(result.stem))
            # A file with its final name stays the one it is; a step that ran again would have another result.
            imported = (path for path in job.glob("import/*") if not path.name.endswith(".part"))
            for path in (*imported, *job.glob(".results/*.json")):
                self.finished.setdefault(path, identity(path))
            self.assert_finished_files_are_the_same()
        return True

    def assert_finished_files_are_the_same(self) -> None:
        assert [path for path, before in self.finished.items() if identity(path) != before] == []

    def assert_undamaged(self) -> None:
        """A complete job has the files that were finished before a kill, and nothing unfinished."""
        self.assert_finished_files_are_the_same()
        assert self.job is not None
        assert [path for path in self.job.rglob("*") if path.name.endswith((".part", ".tmp"))] == []

    def where(self) -> str:
        """Return the progress of the job, for a person."""
        if self.job is None:
            return "there is no job yet"
        last = [line.partition(" INFO ")[2] for line in self.log.splitlines() if " INFO " in line]
        complete = sum(1 for path in self.job.glob("import/*") if not path.name.endswith(".part"))
        return f"{last[-1][:60] if last else 'no log yet'}; {complete} files, {len(self.server.posts())} transactions"

    def begins(self, step: str) -> int:
        """Count the starts of a step (``1-local_import``)."""
        return self.log.count(f"step {step.replace('-', ' ', 1)} begins")

    def finish(self, child: subprocess.Popen[bytes], seconds: float = 150) -> dict[str, Any]:
        """Return the job's status as printed by a command that is left alone and succeeds."""
        assert child.wait(timeout=seconds) == 0, (self.directory / "stderr.txt").read_text()
        status: dict[str, Any] = json.loads((self.directory / "stdout.txt").read_text())
        return status

    def complete(self) -> dict[str, Any]:
        """Continue until the job is complete: at most the wait is in between."""
        status = self.finish(self.launch())
        return status if status["state"] == "completed" else self.finish(self.launch())


def imported(trial: CampaignTrial) -> dict[str, str]:
    """Return the names and digests of the imported files."""
    assert trial.job is not None
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (trial.job / "import").iterdir()}


def check(trial: CampaignTrial, status: dict[str, Any], texts: dict[str, bytes], files: dict[str, str] | None) -> None:
    """Everything that must hold after the job is complete."""
    held = trial.server.resources()
    assert held.keys() == texts.keys()
    assert [name for name, text in texts.items() if held[name] != text] == []
    trial.assert_undamaged()
    for step, count in trial.steps.items():
        assert trial.begins(step) == count, f"step {step} ran again after it had finished"
    assert files is None or imported(trial) == files
    assert status["state"] == "completed"
    assert [step["state"] for step in status["steps"]] == ["completed"] * 3
    assert status["steps"][0]["resources_in"] == len(texts)
    assert status["steps"][2]["resources_out"] == len(texts)
    posts = trial.server.posts()
    assert max(post["entries"] or 0 for post in posts) <= BATCH
    # Sent again is only what no answer had come for.
    assert sum(post["entries"] or 0 for post in posts) <= len(texts) + trial.kills * WORKERS * BATCH


@contextlib.contextmanager
def trial(
    directory: Path, database: Path, *, files: int, observations: int, api: str | None = None
) -> Iterator[tuple[CampaignTrial, dict[str, bytes]]]:
    """Yield a job and the texts of its resources; an embedded Prefect server unless there is ``api``."""
    directory.mkdir(exist_ok=True)
    texts = write_input(directory / "data", files=files, observations=observations)
    seed(directory / "jobs", database)
    commands = Commands(directory, api)
    with start_child(SandboxOptions(state=directory / "fhir")) as sandbox:
        fhir = CampaignFhir(sandbox.urls["fhir"])
        (directory / "config.yaml").write_text(
            f"""
services:
  local_import: {{dir: data}}
  send:
    {{send_as: direct_resource_load, url: "{fhir.url}", batch_size: {BATCH}, max_concurrent_requests: {WORKERS}}}
pipeline: {{enabled_steps: [local_import, wait, send]}}
jobs_dir: jobs
"""
        )
        try:
            yield CampaignTrial(directory, commands, fhir), texts
        finally:
            commands.close()


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_job_killed_in_import_start_or_send_ends_as_if_undisturbed(tmp_path, migrated_database, prefect_api):
    draw = random.Random(SEED)
    moments = [draw.uniform(0.0, 0.3), draw.uniform(0.3, 2.5), draw.uniform(0.0, 0.8)]
    print(f"seed {SEED}, moments {moments}")
    with trial(tmp_path, migrated_database, files=60, observations=40, api=prefect_api) as (job, texts):
        child = job.launch()
        wait_until(lambda: "step 1 local_import begins" in job.log, 90)
        time.sleep(moments[0])
        assert job.kill(child)

        child = job.launch()
        time.sleep(moments[1])
        job.kill(child)

        # Slow enough that it is still sending when it is to be killed, however late this process has its turn.
        job.server.slow(0.2)
        if job.state() != "waiting":  # the second run may have come that far
            assert job.finish(job.launch())["state"] == "waiting"
        assert job.server.posts() == []
        child = job.launch()
        wait_until(lambda: "step 3 send begins" in job.log, 90)
        time.sleep(moments[2])
        assert job.kill(child)

        check(job, job.refuses_a_second_process("3-send"), texts, None)


@pytest.mark.campaign
@pytest.mark.timeout(7200)
def test_kill_9_at_thirty_random_moments(tmp_path, migrated_database):
    """Thirty kills, each of a run of its own, at random moments between its start and its expected end."""
    shape = {"files": 1500, "observations": 2}
    wanted = int(os.environ.get("KILL_TRIALS", "30"))
    draw = random.Random(SEED)
    with trial(tmp_path / "undisturbed", migrated_database, **shape) as (job, texts):
        job.server.slow(0.02)
        spans = [0.0, 0.0]  # seconds that start and continue take; a busy machine changes them
        for part in (0, 1):
            status, spans[part] = timed(job)
        check(job, status, texts, None)
        files = imported(job)
    print(f"seed {SEED}; undisturbed: start {spans[0]:.1f} s, continue {spans[1]:.1f} s, {len(texts)} resources")
    kills = 0
    for number in range(2 * wanted):
        if kills == wanted:
            break
        moment = draw.uniform(0.0, sum(spans))
        with trial(tmp_path / f"trial-{number}", migrated_database, **shape) as (job, texts):
            job.server.slow(0.02)
            if part := int(moment > spans[0]):
                _, spans[0] = timed(job)
                moment = draw.uniform(0.0, spans[1])
            began = time.monotonic()
            child = job.launch()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(moment)
            if job.kill(child):
                kills += 1
            else:
                spans[part] = time.monotonic() - began
            state = job.state()
            print(f"{kills:2}. {'continue' if part else 'start'} + {moment:4.1f} s: {state}; {job.where()}", flush=True)
            check(job, last_of_it(job, state, watched=number % 5 == 0), texts, files)
    assert kills == wanted


def timed(job: CampaignTrial) -> tuple[dict[str, Any], float]:
    """Return the status at the end of an undisturbed command, and its seconds."""
    began = time.monotonic()
    return job.finish(job.launch()), time.monotonic() - began


def last_of_it(job: CampaignTrial, state: str | None, *, watched: bool) -> dict[str, Any]:
    """Go on until the job is complete; ``watched`` tries a second process on the way, if the job was in its send."""
    if state == "completed":
        assert job.job is not None
        return job.sluice.status(job.job.name)
    if watched and job.begins("3-send") and state == "interrupted" and len(job.server.posts()) < 200:
        job.server.slow(0.2)
        return job.refuses_a_second_process("3-send")
    return job.complete()
