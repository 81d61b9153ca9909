"""A step in parts on a Dask cluster: the same output, also after ``kill -9`` of a worker, the job or the scheduler."""

from __future__ import annotations

import fcntl
import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import Commands, kill, started, wait_until
from tests.peers import data, services
from tests.peers.dask import Cluster
from tests.peers.server import Reply, ScriptedServer, SeenRequest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

FILES = 12
PATIENTS = 4
LIMIT = 8
TWO = ["--set", "pipeline.parts=2"]


class Service:
    """Pseudonymization and validation; what is asked when, and how much of it at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seconds = 0.0
        self.url = ""
        self.leaks: bytes | None = None
        """Resources with these bytes come back as they are."""
        self.under_way = self.most = self.held = 0
        self.holds = threading.Event()
        """Cleared, requests that come are held until it is set."""
        self.holds.set()
        self.asked: list[str] = []
        """``pseudonymizer batch-1`` for each request with data."""

    def __call__(self, seen: SeenRequest) -> Reply:
        validates = "validate" in seen.target
        found = re.search(rb"\b(batch-\d+|core-org)\b", seen.body)
        with self.lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            if found:
                self.asked.append(f"{'validation' if validates else 'pseudonymizer'} {found[1].decode()}")
        try:
            time.sleep(self.seconds)
            self.held += not self.holds.is_set()
            self.holds.wait(60)
            if self.leaks is not None and self.leaks in seen.body:
                return Reply(200, services.deidentify(seen.body)[0], services.JSON)
            return services.validation(seen) if validates else services.pseudonymization(seen)
        finally:
            with self.lock:
                self.under_way -= 1


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    with ScriptedServer(made) as server:
        made.url = server.url
        yield made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), workers=2, threads=4)
    yield made
    made.close()


def configure(directory: Path, url: str) -> None:
    """Write a configuration, and an input with a core file."""
    (directory / "data").mkdir()
    core = data.resource("Organization", "core-org")
    (directory / "data/core.ndjson").write_text(json.dumps(core) + "\n")
    for number in range(FILES):
        people = (data.person(f"batch-{number}-p{one}") for one in range(PATIENTS))
        (directory / f"data/batch-{number}.ndjson").write_text("".join(json.dumps(one) + "\n" for one in people))
    (directory / "config.yaml").write_text(
        f"""
services:
  local_import: {{dir: data}}
  pseudonymizer: {{url: "{url}", max_concurrent_requests: {LIMIT}, residual_identifiers: warn}}
  validation: {{url: "{url}", max_concurrent_requests: {LIMIT}, fail_on_error: false}}
pipeline: {{enabled_steps: [local_import, pseudonymizer, validation]}}
retry: {{max_attempts: 2, initial_backoff_ms: 10, max_backoff_ms: 20}}
report: {{enabled: false}}
jobs_dir: jobs
"""
    )


def results(job: Path) -> dict[str, bytes]:
    paths = [path for name in ("pseudonymized", "validation") for path in (job / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(job)): path.read_bytes() for path in paths}


def finished(job: Path) -> set[str]:
    return {path.stem for path in (job / ".done/2").glob("batch*.json")}


def works(job: Path) -> bool:
    """Return whether a worker does a part of the job."""
    with (job / ".parts.lock").open("r+b") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def parts(count: int, cluster: Cluster) -> list[str]:
    return ["--set", f"pipeline.parts={count}", "--set", f"pipeline.dask_address={cluster.address}"]


def test_1_2_4_and_8_parts_leave_the_same_output_within_one_limit_of_requests(
    sluice_process: Commands, tmp_path: Path, service: Service, cluster: Cluster
) -> None:
    configure(tmp_path, service.url)
    service.seconds = 0.01
    outputs, asked, steps = [], [], []
    for count in (1, 2, 4, 8):
        service.most, service.asked = 0, []
        ran = sluice_process.here("pipeline", "start", "config.yaml", *(parts(count, cluster) if count > 1 else ()))
        assert ran.code == 0, ran.err
        job = tmp_path / "jobs" / ran.job
        outputs.append(results(job))
        assert 1 < service.most <= LIMIT
        assert service.asked[0] == "pseudonymizer core-org"
        asked.append(Counter(service.asked))
        told = [
            {key: step.get(key) for key in ("files", "resources_in", "bytes_out", "requests", "warnings", "details")}
            for step in sluice_process.status(ran.job)["steps"]
        ]
        steps.append(told)
        assert {oct(path.stat().st_mode & 0o777) for path in job.rglob("*") if path.is_file()} == {"0o600"}
    assert len(outputs[0]) > 3 * FILES
    assert outputs[0] == outputs[1] == outputs[2] == outputs[3]
    assert asked[0] == asked[1] == asked[2] == asked[3]
    assert steps[1] == steps[2] == steps[3]


def test_the_error_of_a_part_ends_the_job_as_it_would_without_parts(
    sluice_process: Commands, tmp_path: Path, service: Service, cluster: Cluster
) -> None:
    configure(tmp_path, service.url)
    service.leaks = b"batch-3"
    stop = ["--set", "services.pseudonymizer.residual_identifiers=stop"]
    ran = sluice_process.here("pipeline", "start", "config.yaml", *parts(2, cluster), *stop)
    assert ran.code == 5, ran.err
    assert "error[residual-identifiers]: pseudonymizer: identifying values came back unchanged" in ran.err
    assert data.CANARY not in ran.err
    job = tmp_path / "jobs" / ran.job
    assert "batch-3" in finished(job)
    assert not (job / "validation").exists()


def test_an_address_where_no_scheduler_answers_ends_the_job_soon(
    sluice_process: Commands, tmp_path: Path, service: Service
) -> None:
    configure(tmp_path, service.url)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"pipeline.dask_address=tcp://127.0.0.1:{silent.getsockname()[1]}"
        steps = "pipeline.enabled_steps=local_import,validation"
        ran = sluice_process.here("pipeline", "start", "config.yaml", *TWO, "--set", address, "--set", steps)
    assert ran.code == 3, ran.err
    assert "error[dask-failed]: the Dask cluster failed (it does not answer)" in ran.err


def test_a_job_goes_on_after_a_kill_of_a_worker_the_job_and_the_scheduler(
    sluice_process: Commands, tmp_path: Path, service: Service, cluster: Cluster
) -> None:
    configure(tmp_path, service.url)
    whole = sluice_process.here("pipeline", "start", "config.yaml")
    assert whole.code == 0, whole.err
    service.asked, service.seconds = [], 0.2
    done: set[str] = set()

    def running(*words: str) -> tuple[subprocess.Popen[str], Path]:
        """Start a command, and wait until it has finished another file."""
        child = sluice_process.start("pipeline", *words)
        job = tmp_path / "jobs" / started(child)
        wait_until(lambda: len(finished(job)) > len(done), 150)
        done.update(finished(job))
        return child, job

    # A worker is killed: its files go to the other. A signal ends the job, and with it the parts.
    child, job = running("start", "config.yaml", *parts(4, cluster))
    kill(cluster.workers[0])
    wait_until(lambda: len(finished(job)) > len(done), 150)
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 143, err
    wait_until(lambda: not works(job), 10)
    done.update(finished(job))
    assert len(done) < FILES

    # The job is killed: the next run waits until the worker has ended.
    child, _ = running("continue", "config.yaml", job.name, *parts(2, cluster))
    service.holds.clear()
    wait_until(lambda: service.held > 0)
    kill(child.pid)
    child.communicate()
    service.held = 0
    child = sluice_process.start("pipeline", "continue", "config.yaml", job.name, *parts(2, cluster))
    assert child.stderr is not None
    assert any("waiting for workers of an earlier run" in line for line in child.stderr)
    service.most, asked = 0, len(service.asked)
    service.holds.set()

    # The scheduler is killed.
    wait_until(lambda: len(service.asked) > asked + 4)
    assert 1 < service.most <= LIMIT
    done.update(finished(job))
    service.holds.clear()  # the workers are at work when the job ends
    kill(cluster.scheduler)
    _, err = child.communicate(timeout=120)
    service.holds.set()
    assert child.returncode == 3, err
    assert "error[dask-failed]: the Dask cluster failed" in err
    assert "Traceback" not in err
    wait_until(lambda: not works(job), 10)
    done.update(finished(job))
    before = Counter(service.asked)

    # Without a cluster, processes of this machine do the rest.
    with socket.socket() as other:
        with suppress(OSError):  # somebody has the port of Dask's dashboard: good, too
            other.bind(("127.0.0.1", 8787))
            other.listen()
        ran = sluice_process("pipeline", "continue", "config.yaml", job.name, "--set", "pipeline.dask_address=", *TWO)
    assert ran.code == 0, ran.err
    assert "Warning" not in ran.err
    assert results(job) == results(tmp_path / "jobs" / whole.job)
    again = Counter(service.asked) - before
    assert again.total() > 0
    assert [base for base in done if again[f"pseudonymizer {base}"]] == []
