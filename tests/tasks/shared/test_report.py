"""The one record of a step: what of it goes where (``tasks/shared/report.py``)."""

from __future__ import annotations

import json

import pytest

from tasks.shared.report import LONGEST_LABEL, StepReport

FULL = StepReport(
    position=2, name="send", state="completed", files=2, resources_in=1234, resources_out=7, lines_in=7, lines_out=7,
    bytes_in=1500, bytes_out=2_000_000, content=15_000, seconds=2.0, requests=4, retries=1, p50=0.0123, p95=0.5,
    output="send", warnings=("odd",), details={"types": {"Patient": 6}},
)  # fmt: skip


def test_the_label_has_the_whole_report_without_what_is_not_known() -> None:
    assert "directory" not in json.loads(FULL.label())
    assert StepReport.model_validate_json(FULL.label()) == FULL


def test_a_label_is_never_longer_than_prefect_should_keep() -> None:
    long = FULL.model_copy(update={
        "warnings": tuple(f"{n}: {'x' * 900}" for n in range(300)), "details": {"files": [{"n": "y" * 50}] * 999},
        "identifying": {f"Patient.extension[{n}].valueString": "5 lines" for n in range(200)},
    })  # fmt: skip
    assert len(long.label()) <= LONGEST_LABEL
    kept = StepReport.model_validate_json(long.label())
    assert kept.warnings[-1].startswith("and ")
    assert (kept.identifying or {})["…"].endswith(" more")


def test_a_person_sees_a_cell_for_every_column_in_her_units() -> None:
    assert tuple(FULL.cells()) == (
        "#", "step", "state", "files", "resources in", "resources out", "in", "out", "time", "rate", "requests",
        "retries", "p50", "p95",
    )  # fmt: skip
    assert list(FULL.cells().values())[3:] == [
        "2", "1,234", "7", "1.5 kB", "2.0 MB", "2.0 s", "7.5 kB/s", "4", "1", "12 ms", "500 ms",
    ]  # fmt: skip
    assert set(list(StepReport().cells().values())[3:]) == {""}


def test_without_the_size_of_the_content_there_is_no_rate() -> None:
    """Stored sizes may be those of compressed files: 22 MB of content were shown as 45 kB/s."""
    assert FULL.model_copy(update={"content": None}).cells()["rate"] == ""


def test_the_line_of_a_step_says_what_still_identifies_persons() -> None:
    left = StepReport(files=2, identifying={"Patient.name.family": "5 lines", "Patient.photo.data": "5 lines"},
                      kept_identifiers={"Patient.identifier.value": "5 lines"})  # fmt: skip
    line = "2 files, still identifying: Patient.name.family and more (1), kept: Patient.identifier.value"
    assert left.summary() == line
    assert StepReport.model_validate_json(left.label()) == left


@pytest.mark.parametrize(("seconds", "shown"), [(0.04, "40 ms"), (59.9, "59.9 s"), (61, "1 min 1 s")])
def test_a_time_is_told_in_seconds_then_in_minutes(seconds: float, shown: str) -> None:
    assert StepReport(seconds=seconds).cells()["time"] == shown
