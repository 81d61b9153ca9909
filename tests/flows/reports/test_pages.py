"""Artifacts as a person reads them in the Prefect UI (4-product.md §4 and §5)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from flows.engine.artifacts import Artifacts as Published
from flows.job.record import JobRecord, JobState
from flows.reports.pages import best_effort, failure_table, job_page, step_table, wait_description
from tasks.shared.errors import DataError
from tasks.shared.report import Approval, Problem, StepReport, Waiting
from tests.peers.prefect import Prefect, prefect_in_memory

JOB = "0b2c4a5e-1111-4222-8333-444455556666"
SEND = StepReport(
    position=3, name="send", state="completed", files=2, resources_in=1234, resources_out=1234, bytes_in=5_000_000,
    bytes_out=6_000_000, seconds=2.0, requests=13, retries=1, p50=0.021, p95=0.4,
)  # fmt: skip
RECORD = JobRecord(
    id=JOB, name="heart-study 2026-11-21 18:55", state=JobState.RUNNING, config="/etc/sluice/heart.yaml",
    directory=f"/jobs/{JOB}", step_names=("local_import", "wait", "send"),
    steps=(
        StepReport(position=1, name="local_import", state="completed", files=2, resources_out=13, seconds=90.0),
        StepReport(position=2, name="wait", state="completed"),
        SEND,
    ),
    approvals={2: Approval(approved=True, comment="fine", by="amy@host", when="2026-11-21T18:56:00+00:00")},
)  # fmt: skip
WAITING = Waiting(position=2, step="wait", directory=f"/jobs/{JOB}/import_wait", looked_at=f"/jobs/{JOB}/import",
                  since="2026-11-21T18:56:00+00:00")  # fmt: skip


@pytest.fixture
def prefect() -> Iterator[Prefect]:
    with prefect_in_memory() as known:
        yield known


def page(prefect: Prefect, record: JobRecord = RECORD, state: Any = "completed") -> str:
    job_page(Published(prefect.api, JOB), record, state=state)
    (key,) = prefect.artifacts
    assert key == f"job-{JOB}"
    return str(prefect.artifacts[key]["data"])


def test_the_page_says_what_happened_to_every_step_and_what_it_took(prefect: Prefect) -> None:
    text = page(prefect)
    assert "# heart-study 2026-11-21 18:55" in text
    assert "The job is **completed**." in text
    assert "| 3 | send | completed | 2 | 1,234 | 1,234 | 5.0 MB | 6.0 MB |" in text
    assert "| 3 | send | 2.0 s | 2.5 MB/s | 13 | 1 | 21 ms | 400 ms |" in text
    assert "| 1 | local_import | 1 min 30 s |" in text
    assert f"Step 2 (wait) was approved by amy\\@host on the command line at {RECORD.approvals[2].when}: fine" in text
    assert f"- job `{JOB}`" in text
    assert "- configuration `/etc/sluice/heart.yaml`" in text


def test_no_table_of_the_page_is_wider_than_the_page(prefect: Prefect) -> None:
    rows = re.findall(r"^\|.*\|$", page(prefect), re.MULTILINE)
    assert max(row.count(" | ") + 1 for row in rows) == 8


def test_a_slow_rate_is_not_shown_as_nothing(prefect: Prefect) -> None:
    slow = SEND.model_copy(update={"bytes_in": 5_500, "seconds": 1.0})
    assert "| 5.5 kB/s |" in page(prefect, RECORD.model_copy(update={"steps": (*RECORD.steps[:2], slow)}))


def test_the_page_shows_where_the_counts_of_two_steps_agree_and_where_not(prefect: Prefect) -> None:
    read = {2: 1300, 3: 1299}
    steps = tuple(
        step.model_copy(update={"lines_expected": 1300, "lines_in": read[step.position]} if step.position > 1 else {})
        for step in RECORD.steps
    )
    text = page(prefect, RECORD.model_copy(update={"steps": steps}), "failed")
    assert "| 2 | wait | 1,300 | 1,300 | agrees |" in text
    assert "| 3 | send | 1,300 | 1,299 | differs |" in text


def test_the_page_of_a_failed_job_says_where_and_what_to_do(prefect: Prefect) -> None:
    error = Problem(reference="not-json", message="a line is no JSON", context="a.ndjson:2", hint="<mend> it",
                        step="send")  # fmt: skip
    text = page(prefect, RECORD.model_copy(update={"error": error}), "failed")
    assert "`not-json` in step send: a line is no JSON" in text
    assert "a.ndjson:2" in text
    assert "\\<mend\\> it" in text


def test_the_error_of_an_earlier_run_is_not_on_the_page_of_one_that_goes_on(prefect: Prefect) -> None:
    error = Problem(reference="not-json", message="a line is no JSON")
    assert "not-json" not in page(prefect, RECORD.model_copy(update={"error": error}), "running")


def test_the_page_is_one_artifact_however_often_it_is_written(prefect: Prefect) -> None:
    page(prefect, RECORD, "running")
    assert "The job is **completed**." in page(prefect)
    assert prefect.artifacts[f"job-{JOB}"]["description"] == "The page of the job: completed"


def test_the_form_of_a_wait_says_where_it_waits_what_to_look_at_and_what_is_next() -> None:
    text = wait_description(WAITING, RECORD.step_names)
    assert "waits at step 2 of 3" in text
    assert f"`{WAITING.looked_at}`" in text
    assert f"`{WAITING.directory}`" in text
    assert "*release*, the job goes on with `send`; *reject*, it ends as cancelled" in text


def test_the_form_of_a_wait_names_who_reads_what_leaves_as_the_record_does() -> None:
    waiting = WAITING.model_copy(update={"reads": WAITING.directory, "leaves": True, "reader": "archive"})
    assert "**What leaves**: `archive` reads the corrected files" in wait_description(waiting, RECORD.step_names)


def test_the_form_of_a_wait_at_the_end_says_that_the_job_is_complete_then() -> None:
    assert "*release*, the job is complete" in wait_description(WAITING, RECORD.step_names[:2])


def test_the_table_of_a_step_is_named_after_it_and_has_its_counts_and_details_in_words(prefect: Prefect) -> None:
    details = {
        "content_bytes": 152_956, "own_rules": True, "unrouted": {}, "median_seconds": {"FETCH": 0.25},
        "reports": ["a.csv", "b.json"], "resources_with_findings": 12_000, "empty": None,
    }  # fmt: skip
    step_table(
        Published(prefect.api, JOB), JOB, SEND.model_copy(update={"details": details, "warnings": ("see <this>",)})
    )
    rows = prefect.rows(f"step-3-send-{JOB[:8]}")
    facts = {row["what"]: row["value"] for row in rows}
    assert "#" not in facts
    assert facts["resources out"] == "1,234"
    assert facts["content bytes"] == "153.0 kB"
    assert facts["own rules"] == "yes"
    assert facts["unrouted"] == facts["empty"] == "none"
    assert facts["median seconds: FETCH"] == "0.25 s"
    assert facts["reports"] == "a.csv, b.json"
    assert facts["resources with findings"] == "12,000"
    assert facts["warning"] == r"see \<this\>"


def test_a_table_among_the_details_is_an_artifact_of_its_own(prefect: Prefect) -> None:
    groups = [{"group": "![x](http://outside.example/a.png)", "rows": 1200, "bytes": 1855, "empty_columns": ""}]
    step_table(Published(prefect.api, JOB), JOB, SEND.model_copy(update={"details": {"groups": groups}}))
    (row,) = prefect.rows(f"step-3-send-{JOB[:8]}-groups")
    assert row == {
        "group": r"\!\[x\](http\://outside.example/a.png)", "rows": "1,200", "bytes": "1.9 kB", "empty columns": "",
    }  # fmt: skip
    assert prefect.artifacts[f"step-3-send-{JOB[:8]}-groups"]["description"] == "Step 3, send: groups"


def test_a_failed_step_shows_what_its_error_counted(prefect: Prefect) -> None:
    error = DataError("some", "did not get in")
    error.details = {"failed": {"422 invalid": 3}}
    failure_table(Published(prefect.api, JOB), JOB, 1, "local_import", error)
    assert prefect.rows(f"step-1-local-import-{JOB[:8]}") == [{"what": "failed: 422 invalid", "value": "3"}]


def test_an_artifact_that_somebody_removed_is_made_anew(prefect: Prefect) -> None:
    published = Published(prefect.api, JOB)
    for text in ("one", "two"):
        published.publish("job", "markdown", text, "")
    assert prefect.artifacts["job"]["data"] == "two"
    prefect.artifacts.clear()
    published.publish("job", "markdown", "three", "")
    assert prefect.artifacts["job"]["data"] == "three"
    posted = [path for method, path in prefect.asked if method == "POST" and path == "/artifacts/"]
    assert len(posted) == 2


def test_what_cannot_be_written_for_a_person_is_said_and_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with best_effort("the table of send"):
        raise DataError("prefect-refused", "no")
    assert caplog.messages == ["the table of send is not written: no"]
