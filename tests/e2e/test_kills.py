"""A job whose process is killed with ``kill -9`` in the middle of each step ends as an undisturbed one.

``tests/tasks/test_step_kills.py`` kills single steps, at more moments. A job that is killed while ``continue --from``
resets it is reset by the next ``continue``.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, Commands, started, wait_until
from tests.peers import data, services
from tests.peers.project import Fhir, write_input
from tests.peers.server import Reply, ScriptedServer, SeenRequest

STEPS = ("extractor", "pseudonymizer", "validation", "flattening", "send")
MIDDLE: dict[str, Callable[[SeenRequest], bool]] = {
    "extractor": lambda seen: seen.method == "GET" and "batch-1" in seen.target,
    "pseudonymizer": lambda seen: b"batch-1-p1" in seen.body,
    "validation": lambda seen: b"sluice" not in seen.body and b"Observation" in seen.body,
    "flattening": lambda seen: b'"resource":"Observation"' in seen.body and b"sluice-probe" not in seen.body,
    "send": lambda seen: seen.method == "POST" and b"valueQuantity" in seen.body,
}
"""A request of each step, neither its first nor its last."""


@dataclass
class Services:
    """The services of a job, each of its own; ``store`` is what was sent."""

    store: services.FhirDouble = field(default_factory=services.FhirDouble)
    by_step: dict[str, ScriptedServer] = field(default_factory=dict)

    def configured(self, directory: Path) -> None:
        """Write a configuration, a query and a lookup file for a job over all of them."""
        (directory / "query.json").write_text(json.dumps(data.crtdl()))
        (directory / "lookup.json").write_text(json.dumps(data.lookup()))
        url = {name: server.url for name, server in self.by_step.items()}
        polling = {"polling_interval": "1s", "max_polling_interval": "1s", "file_ready_interval": "10ms"}
        document = {
            "services": {
                "extractor": {"base_url": url["extractor"], **polling},
                "pseudonymizer": {"url": url["pseudonymizer"]},
                "validation": {"url": url["validation"], "fail_on_error": False},
                "flattening": {"service_url": url["flattening"], "lookup_path": "lookup.json"},
                "send": {"send_as": "direct_resource_load", "url": url["send"], "batch_size": 5},
            },
            "pipeline": {"enabled_steps": [*STEPS]},
            "report": {"enabled": False},
            "jobs_dir": "jobs",
        }
        (directory / "config.yaml").write_text(yaml.safe_dump(document))


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Callable[[], Services]]:
    source = data.people(tmp_path / "source")
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    with ExitStack() as stack:

        def made() -> Services:
            found = Services()
            answers = (services.extraction(files), services.pseudonymization, services.validation, services.flattening)
            for name, answer in zip(STEPS, (*answers, found.store), strict=True):
                found.by_step[name] = stack.enter_context(ScriptedServer(answer))
            return found

        yield made


def results(job: Path) -> dict[str, bytes]:
    paths = [path for name in ("import", "pseudonymized", "csv") for path in (job / name).iterdir()]
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in paths}


def test_a_job_killed_in_every_step_ends_as_an_undisturbed_one(
    sluice_process: Commands, tmp_path: Path, several: Callable[[], Services]
) -> None:
    whole = several()
    whole.configured(tmp_path)
    ran = sluice_process("pipeline", "start", "config.yaml", "query.json")
    assert ran.code == 0, ran.err
    expected = results(tmp_path / "jobs" / ran.job)

    killed = several()
    killed.configured(tmp_path)
    job = ""
    for step in STEPS:
        reached: list[SeenRequest] = []

        def hold(seen: SeenRequest, step: str = step, reached: list[SeenRequest] = reached) -> Reply | None:
            if not MIDDLE[step](seen):
                return None
            reached.append(seen)
            return Reply(stall=True)

        killed.by_step[step].script = hold
        words = ("continue", "config.yaml", job) if job else ("start", "config.yaml", "query.json")
        child = sluice_process.start("pipeline", *words)
        job = job or started(child)
        wait_until(lambda reached=reached: bool(reached), 150)  # type: ignore[misc]
        child.kill()
        child.communicate()
        assert child.returncode == -signal.SIGKILL
        killed.by_step[step].script = None
    ran = sluice_process("pipeline", "continue", "config.yaml", job)
    assert ran.code == 0, ran.err
    assert results(tmp_path / "jobs" / job) == expected
    assert killed.store.resources == whole.store.resources
    assert sum("$extract-data" in seen.target for seen in killed.by_step["extractor"].seen) == 1


KILLED = """\
import os, shutil, signal
removed = shutil.rmtree
def rmtree(path, *rest, **options):
    if str(path).endswith(os.environ["KILLED_BEFORE_REMOVING"]):
        os.kill(os.getpid(), signal.SIGKILL)
    removed(path, *rest, **options)
shutil.rmtree = rmtree
"""
"""Code for the start of a process that is killed before it removes a directory."""


def test_a_reset_that_is_killed_is_repeated_by_the_next_continue(
    sluice_process: Commands, project: Path, fhir: Fhir
) -> None:
    job = sluice_process.here("pipeline", "start", "config.yaml").job
    assert sluice_process.here("pipeline", "continue", "config.yaml", job, "--approve").code == 0
    directory = project / "jobs" / job
    before = {path.name: path.read_bytes() for path in (directory / "import").iterdir()}
    shutil.rmtree(project / "data")
    write_input(project / "data", patients=8)
    (project / "killed").mkdir()
    (project / "killed/sitecustomize.py").write_text(KILLED)
    for options, removing in ((("--from", "local_import", "--yes"), ".done/1"), ((), "import")):
        env = {"PYTHONPATH": f"{project / 'killed'}:{ROOT}", "KILLED_BEFORE_REMOVING": f"{job}/{removing}"}
        killed = sluice_process("pipeline", "continue", "config.yaml", job, *options, env=env)
        assert killed.code == -signal.SIGKILL, killed.err
        assert {path.name: path.read_bytes() for path in (directory / "import").iterdir()} == before
        assert sluice_process.status(job)["state"] == "interrupted"
    ran = sluice_process("pipeline", "continue", "config.yaml", job)
    assert ran.code == 0, ran.err
    assert [step["state"] for step in sluice_process.status(job)["steps"]] == ["completed", "waiting", "pending"]
    assert not (directory / "send").exists()
    assert sluice_process.here("pipeline", "continue", "config.yaml", job, "--approve").code == 0
    assert fhir.count("Patient") == 8
