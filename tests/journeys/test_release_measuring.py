"""Measuring for the release report (document 5, section 3): during the steps, once, and again after a change."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deployments.sandbox.data import ANONYMIZATION_RULES
from deployments.sandbox.pseudonymization.app import PseudonymizationOptions, pseudonymization_service
from flows.gate import release
from tasks.release_report.measure.beside import BesideProcess
from tasks.release_report.measure.delivery import MEASURED, Delivery, Measures
from tests.conftest import Commands, kill, started, wait_until
from tests.peers.project import Fhir
from tests.peers.sandbox import sandboxed

pytestmark = pytest.mark.slow

DESPITE = ("--approve", "--despite", "names are made up")


@pytest.fixture
def directory(project: Path, fhir: Fhir) -> Iterator[Path]:
    """Yield a project whose data are pseudonymized before a person is asked."""
    (project / "rules.yaml").write_text(ANONYMIZATION_RULES.read_text())
    with sandboxed(pseudonymizer=pseudonymization_service(PseudonymizationOptions())) as served:
        config = project / "config.yaml"
        service = f"  pseudonymizer: {{url: '{served['pseudonymizer'].url}', anonymization_config: rules.yaml}}\n"
        text = config.read_text().replace("pipeline:", f"{service}pipeline:").replace("report: {enabled: false}", "")
        config.write_text(text.replace("local_import, wait", "local_import, pseudonymizer, wait"))
        yield project


class Counted:
    """Counts the processes that measure, and the reports that read the data themselves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.beside = self.here = 0
        begin, measure = BesideProcess.__init__, release.measure_delivery

        def beginning(process: BesideProcess, *words: object) -> None:
            self.beside += 1
            begin(process, *words)  # type: ignore[arg-type]

        def measuring(delivery: Delivery) -> Measures:
            self.here += 1
            return measure(delivery)

        monkeypatch.setattr(BesideProcess, "__init__", beginning)
        monkeypatch.setattr(release, "measure_delivery", measuring)


def test_files_are_measured_once_in_the_life_of_a_job(
    sluice: Commands, directory: Path, fhir: Fhir, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    job = sluice("pipeline", "start", "config.yaml").job
    assert (counted.beside, counted.here) == (1, 0)
    report = directory / "jobs" / job / "report"
    assert len(list((report / MEASURED.name).iterdir())) == 1
    done = sluice("pipeline", "continue", "config.yaml", job, *DESPITE)
    assert done.code == 0, done.err
    assert (counted.beside, counted.here) == (1, 0)
    assert fhir.total() == 19
    both = [json.loads((report / place / "release-report.json").read_text())["tiles"] for place in ("step-3", "")]
    assert both[0]["resources"] == both[1]["resources"]
    (report / "release-report.html").unlink()
    assert sluice("job", "report", "config.yaml", job).code == 0
    assert (counted.beside, counted.here) == (1, 0)


def test_a_corrected_file_is_measured_again(sluice: Commands, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    job = sluice("pipeline", "start", "config.yaml").job
    place = directory / "jobs" / job
    for source in (place / "pseudonymized").glob("*.ndjson*"):
        (place / "pseudonymized_wait" / source.name).write_bytes(source.read_bytes())
    assert sluice("pipeline", "continue", "config.yaml", job).code == 0
    assert counted.here == 1
    files = json.loads((place / "report/step-3/release-report.json").read_text())["files"]
    assert sluice("pipeline", "continue", "config.yaml", job, *DESPITE).code == 0
    assert json.loads((place / "report/release-report.json").read_text())["files"] == files
    assert (counted.beside, counted.here) == (1, 1)


@pytest.mark.parametrize("which", [0, 1], ids=["imported", "leaving"])
def test_what_was_measured_of_a_file_that_is_another_now_is_not_used(
    sluice: Commands, directory: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    counted, result = Counted(monkeypatch), BesideProcess.result

    def of_another_file(process: BesideProcess, delivery: Delivery) -> Measures | None:
        found = result(process, delivery)
        assert found is not None
        both = list(found)
        measured = both[which]
        assert measured is not None
        first, *rest = measured.files
        both[which] = replace(measured, files=[replace(first, sha256="0" * 64), *rest])
        return both[0], both[1]  # type: ignore[return-value]

    monkeypatch.setattr(BesideProcess, "result", of_another_file)
    sluice("pipeline", "start", "config.yaml")
    assert counted.here == 1


def test_a_process_beside_that_fails_costs_the_job_nothing(
    sluice: Commands, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.release_report.measure.beside.COMMAND", (sys.executable, "-c", "raise SystemExit(1)"))
    counted = Counted(monkeypatch)
    job = sluice("pipeline", "start", "config.yaml").job
    assert counted.here == 1
    assert (directory / "jobs" / job / "report/step-3/release-report.html").is_file()


HANGING = """
import sys
from tasks.release_report.measure import beside
beside.COMMAND = (sys.executable, "-c", "import time; time.sleep(600)")
from flows.run import main
sys.exit(main(sys.argv[1:]))
"""
"""A command whose process beside the steps never answers."""


@pytest.mark.e2e
def test_killed_while_it_is_measured_a_job_goes_on_with_a_whole_report(
    sluice: Commands, directory: Path, fhir: Fhir
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HANGING, "pipeline", "start", "config.yaml"], cwd=directory,
        env=sluice.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with child:
        job = started(child)
        place = directory / "jobs" / job
        wait_until(lambda: _is_measured(place), 120)
        kill(child.pid)
    assert fhir.posts() == []
    assert not (place / MEASURED).exists()
    assert sluice.here("pipeline", "continue", "config.yaml", job).code == 0
    assert sluice.status(job)["state"] == "waiting"
    found = json.loads((place / "report/step-3/release-report.json").read_text())
    assert found["tiles"]["files"] == len(list((place / "pseudonymized").glob("*.ndjson*")))
    assert len(list((place / MEASURED).iterdir())) == 1
    assert sluice.here("pipeline", "continue", "config.yaml", job, *DESPITE).code == 0
    assert fhir.total() == 19


def _is_measured(place: Path) -> bool:
    log = place / "job.log"
    return log.exists() and "pseudonymizer is complete" in log.read_text()
