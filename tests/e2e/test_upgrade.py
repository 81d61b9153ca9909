"""A job that an earlier version left half done is continued by this one: its ledgers, its parts, its record.

The earlier versions come from the history of the repository. Only where there is none, in an unpacked archive or a
shallow clone, the tests are skipped; ``.ci/run`` fetches the history of a shallow clone.
"""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from deployments.sandbox.data import DEMO_CRTDL
from tests.conftest import ROOT, Commands, started, wait_until
from tests.e2e.kills import DisturbedJob, ProcessRun
from tests.e2e.test_kills import JOURNEYS, Undisturbed, place
from tests.peers.job import in_process
from tests.peers.project import Fhir
from tests.tasks.test_kills import STEPS, continues_after_kills

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

VERSIONS = (pytest.param("5ef29fe86a", marks=pytest.mark.campaign), "198a32a1e6")
CLIENT = """
import sys
from pathlib import Path
from tests.tasks.test_kills import STEPS

step = STEPS[sys.argv[1]]
step.run(step.job(Path(sys.argv[2])), sys.argv[3], max_concurrent_requests=4)
"""
"""Run a step of an earlier version with the tests of that version."""
PACKAGES = ("config", "tasks", "flows", "deployments", "tests", "pyproject.toml")


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)


@pytest.fixture(scope="module", params=VERSIONS)
def earlier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory with the files of an earlier version."""
    shallow = git("rev-parse", "--is-shallow-repository")
    if shallow.stdout.strip() != b"false":
        pytest.skip(f"no history of the repository; git fetch --unshallow gets it: {shallow.stderr.decode()}")
    packed = git("archive", request.param, *PACKAGES)
    assert packed.returncode == 0, packed.stderr
    tree = tmp_path_factory.mktemp(request.param)
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(tree, filter="data")
    return tree


@pytest.mark.parametrize("name", STEPS)
def test_a_step_goes_on_where_an_earlier_version_was_killed(tmp_path: Path, earlier: Path, name: str) -> None:
    if not (earlier / "tests/tasks/test_kills.py").exists():
        pytest.skip("this version has no table of kills")
    continues_after_kills(
        tmp_path, name, lambda name, job, url: in_process(CLIENT, name, job.directory, url, cwd=earlier)
    )


def sending(place: Path) -> bool:
    return any(file.stat().st_size for file in place.rglob("send/ledger.ndjson"))


@pytest.mark.parametrize("wait", [False, True], ids=["killed in the send", "waiting"])
def test_a_job_of_an_earlier_version_sends_what_it_had_not_sent(
    sluice_process: Commands, project: Path, fhir: Fhir, earlier: Path, wait: bool
) -> None:
    old = {"PYTHONPATH": str(earlier)}
    config = (project / "config.yaml").read_text().replace("url:", "batch_size: 2, url:")
    (project / "config.yaml").write_text(config if wait else config.replace(", wait", ""))
    if not wait:
        delay = {"action": "delay", "at": "applied", "seconds": 2, "path": "/fhir*", "method": "POST", "times": None}
        fhir.faults(delay)
    child = sluice_process.start("pipeline", "start", "config.yaml", env=old)
    job = started(child)
    place = project / "jobs" / job
    if not wait:
        wait_until(lambda: sending(place) and fhir.total() > 0)
        child.kill()
    child.communicate(timeout=60)
    imported = {path.name: path.stat().st_mtime_ns for path in (place / "import").iterdir()}
    sent = fhir.total()
    assert wait == (sent == 0)
    fhir.faults()
    ran = sluice_process.here("pipeline", "continue", "config.yaml", job, *(["--approve"] if wait else []))
    assert ran.code == 0, ran.err
    assert fhir.total() == 19
    assert {path.name: path.stat().st_mtime_ns for path in (place / "import").iterdir()} == imported
    assert sluice_process.status(job)["state"] == "completed"


def test_an_extraction_of_an_earlier_version_is_submitted_once(
    sluice_process: Commands, tmp_path: Path, earlier: Path
) -> None:
    journey = JOURNEYS["extraction"]
    with place(tmp_path, journey) as services:
        whole = Undisturbed(sluice_process, services, journey)
        run = ProcessRun(sluice_process)
        job = DisturbedJob(tmp_path / "jobs", run, services)
        for moment in (journey.moments[0], journey.moments[2]):  # submitted, and fetching files
            services.hold(moment)
            run.launch(*(["continue", job.id] if job.id else ["start", DEMO_CRTDL]), env={"PYTHONPATH": str(earlier)})
            job.id = job.id or run.started()
            job.dies_at(moment)
        run.go_on(job.id)
        job.complete(journey.steps)
        whole.check(sluice_process, job, journey)
