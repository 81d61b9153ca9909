"""A disk that is full while the release report is made neither loses nor releases the job (document 5, promise 9)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.release_report.measure import account, spill
from tasks.release_report.measure.delivery import MEASURED
from tasks.release_report.page import files
from tests.conftest import Commands
from tests.journeys.test_release import ReleaseGate
from tests.peers.gate import Maker
from tests.peers.project import Fhir

pytestmark = pytest.mark.slow

WHY = "names are made up"
STRAIGHT = ("--set", "pipeline.enabled_steps=[local_import, send]")

Full = Callable[[str], None]


@pytest.fixture
def gate(sluice: Commands, project: Path, fhir: Fhir, prefect_api: str) -> ReleaseGate:
    """With a report that is measured."""
    return ReleaseGate(sluice, project, fhir, prefect_api, Maker())


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Full:
    """Let the disk be full for files whose path has this in it, after their first bytes; for none with nothing."""
    monkeypatch.setattr(spill, "HELD", 1)
    monkeypatch.setattr(account, "_LINES", 1)  # else so few rows stay in memory
    write, about = os.write, [""]

    def limited(handle: int, data: bytes) -> int:
        if not about[0] or about[0] not in str(Path(f"/proc/self/fd/{handle}").readlink()):
            return write(handle, data)
        if os.fstat(handle).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, data[:1])

    def fill(where: str) -> None:
        about[0] = where

    monkeypatch.setattr(os, "write", limited)
    return fill


def leftover_files(gate: ReleaseGate) -> list[str]:
    """Return the files of a failed report in the job's directory, without its measurements."""
    found = (path for path in (gate.directory / "report").rglob("*") if path.is_file())
    return [path.name for path in found if path.parent != gate.directory / MEASURED]


@pytest.mark.parametrize(
    "where", ["/.report/", "files.csv", "report.html", "report.json", "report.recipient.html", "report.recipient.json"]
)
def test_a_full_disk_neither_loses_nor_releases_a_job_and_the_report_follows(
    gate: ReleaseGate, full: Full, where: str
) -> None:
    full(where)
    started = gate.start()
    said = "the release report is missing: no space is left on the device"
    assert said in started.out
    assert said in gate.text()
    assert "**The release report is missing**: no space is left on the device" in gate.form()
    assert leftover_files(gate) == []
    assert not (gate.directory / ".report").exists()
    assert said in gate.go_on("--approve").out  # it is made again first, and fails again
    gate.answer(decision="release", by="Anna")
    gate.go_on()
    gate.waits()
    assert "no reason is given" in gate.form()
    assert leftover_files(gate) == []

    full("")
    gate.answer(decision="release", by="Anna")  # made anew, and looked at first
    gate.go_on()
    gate.waits()
    assert gate.status()["report"] == str(files.page(gate.directory, 2))
    gate.go_on("--approve", "--despite", WHY)
    assert gate.fhir.total() == 19


def test_a_full_disk_takes_the_report_of_other_files_with_it(gate: ReleaseGate, full: Full) -> None:
    gate.start()
    (gate.directory / "import_wait/fixed.ndjson").write_text('{"resourceType":"Patient","id":"only-this"}\n')
    full("report.json")
    gate.go_on("--approve", "--despite", WHY)
    gate.waits()
    assert "missing: no space" in gate.text()
    assert leftover_files(gate) == ["files.csv"]  # of before: nothing reads it
    assert gate.status()["report"] is None


def test_a_full_disk_where_nobody_is_asked_is_as_strict_as_the_configuration(gate: ReleaseGate, full: Full) -> None:
    gate.configure(on_stop="fail")
    full("report.html")
    assert "error[report-missing]" in gate.start(*STRAIGHT, code=5).err
    assert gate.fhir.posts() == []
    full("")
    assert "error[report-stops]" in gate.go_on(code=5).err  # names are left
    assert gate.fhir.posts() == []


def test_a_full_disk_at_the_end_fails_no_job_and_keeps_the_report_of_the_decision(
    gate: ReleaseGate, full: Full
) -> None:
    gate.start()
    full("/report/release-report.")
    gate.go_on("--approve", "--despite", WHY)
    assert gate.status()["state"] == "completed"
    assert gate.fhir.total() == 19
    assert [one.by for one in (files.read(gate.directory, 2) or pytest.fail("gone")).decisions]


def test_a_full_disk_at_the_decision_keeps_the_decision_and_the_report_as_it_was(gate: ReleaseGate, full: Full) -> None:
    gate.start()
    before = files.page(gate.directory, 2).read_bytes()
    full("/step-2/release-report.")
    gate.go_on("--approve", "--by", "Anna", "--despite", WHY)
    assert gate.fhir.total() == 19
    assert files.page(gate.directory, 2).read_bytes() == before
    assert gate.status()["approvals"][0]["by"] == "Anna"
    assert "the decision in the release report is not written" in (gate.directory / "job.log").read_text()
    assert [path for path in gate.directory.rglob("*.part") if "report" in path.name] == []


def test_a_full_disk_of_the_copy_costs_the_copy_alone(gate: ReleaseGate, full: Full) -> None:
    (gate.project / "site").mkdir()
    gate.configure(copy_to="site", link="https://intranet.example/")
    full("/site/")
    gate.start()
    assert list((gate.project / "site").iterdir()) == []
    assert "the copy of the release report could not be written" in (gate.directory / "job.log").read_text()
    assert "intranet.example" not in gate.form()
    assert gate.status()["report"] == str(files.page(gate.directory, 2))
    gate.waits()
    full("")
    gate.go_on("--approve", "--despite", WHY)
    assert gate.fhir.total() == 19


def test_a_full_disk_where_measurements_are_kept_costs_these_alone(gate: ReleaseGate, full: Full) -> None:
    full(f"/{MEASURED}/")
    gate.start()
    assert not list((gate.directory / MEASURED).iterdir())
    assert (gate.directory / "report/step-2/release-report.html").is_file()
    gate.go_on("--approve", "--despite", WHY)
    assert gate.status()["report"] == str(files.page(gate.directory, None))
