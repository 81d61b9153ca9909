"""Artifacts as a person reads them in the Prefect UI (4-product.md §4 and §5)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.engine.flow_runs import Page
from flows.job.record import JobRecord
from flows.job.state import JobState
from flows.reports.pages import best_effort, code, job_page, literal, table, wait_description
from tasks.shared.errors import DataError
from tasks.shared.report import Approval, Problem, StepReport, Waiting
from tests.peers.prefect import FakePrefect, facts, prefect_in_memory

JOB = "0b2c4a5e-1111-4222-8333-444455556666"
SEND = StepReport(
    position=3, name="send", state="completed", files=2, resources_in=1234, resources_out=1234, bytes_in=5_000_000,
    bytes_out=6_000_000, content=5_000_000, seconds=2.0, requests=13, retries=1, p50=0.021, p95=0.4,
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
def prefect() -> Iterator[FakePrefect]:
    with prefect_in_memory() as known:
        yield known


def page(prefect: FakePrefect, record: JobRecord = RECORD, state: Any = "completed") -> str:
    job_page(Page(prefect.api, JOB), record, state=state)
    assert prefect.page["description"] == f"**The page of the job**: {state}"
    return str(prefect.page["data"])


def step_facts(prefect: FakePrefect, step: StepReport) -> dict[str, str]:
    """Return the table of the last step on the page."""
    return facts(page(prefect, RECORD.model_copy(update={"steps": (*RECORD.steps[:2], step)})), 3)


def test_the_page_says_what_happened_to_every_step_and_what_it_took(prefect: FakePrefect) -> None:
    text = page(prefect)
    assert "# heart-study 2026-11-21 18:55" in text
    assert "The job is **completed**." in text
    assert "| 3 | send | completed | 2 | 1,234 | 1,234 | 5.0 MB | 6.0 MB |" in text
    assert "| 3 | send | 2.0 s | 2.5 MB/s | 13 | 1 | 21 ms | 400 ms |" in text
    assert "| 1 | local_import | 1 min 30 s |" in text
    assert f"Step 2 (wait) was approved by amy\\@host on the command line at {RECORD.approvals[2].when}: fine" in text
    assert f"- job `{JOB}`" in text
    assert "- configuration `/etc/sluice/heart.yaml`" in text


def test_no_table_of_the_page_is_wider_than_the_page(prefect: FakePrefect) -> None:
    rows = re.findall(r"^\|.*\|$", page(prefect), re.MULTILINE)
    assert max(row.count(" | ") + 1 for row in rows) == 8


def test_a_slow_rate_is_not_shown_as_nothing(prefect: FakePrefect) -> None:
    slow = SEND.model_copy(update={"content": 5_500, "seconds": 1.0})
    assert "| 5.5 kB/s |" in page(prefect, RECORD.model_copy(update={"steps": (*RECORD.steps[:2], slow)}))


def test_the_page_shows_where_the_counts_of_two_steps_agree_and_where_not(prefect: FakePrefect) -> None:
    read = {2: 1300, 3: 1299}
    steps = tuple(
        step.model_copy(update={"lines_expected": 1300, "lines_in": read[step.position]} if step.position > 1 else {})
        for step in RECORD.steps
    )
    text = page(prefect, RECORD.model_copy(update={"steps": steps}), "failed")
    assert "| 2 | wait | 1,300 | 1,300 | agrees |" in text
    assert "| 3 | send | 1,300 | 1,299 | differs |" in text


def test_the_page_says_at_which_paths_persons_can_still_be_recognized(prefect: FakePrefect) -> None:
    assert "Still identifying" not in page(prefect)
    left = StepReport(
        position=4, name="pseudonymizer", identifying={"Patient.name.family": "3 lines"},
        kept_identifiers={"Patient.identifier.value": "1,200 lines"},
    )  # fmt: skip
    text = page(prefect, RECORD.model_copy(update={"steps": (*RECORD.steps, left)}))
    assert "## Still identifying" in text
    assert "| 4 | Patient.name.family | 3 lines | came back unchanged |" in text
    assert "| 4 | Patient.identifier.value | 1,200 lines | kept on purpose |" in text


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_the_page_says_what_validation_found_whether_that_stops_the_job_or_not(
    prefect: FakePrefect, state: Any
) -> None:
    assert "## Findings" not in page(prefect)
    report = StepReport(position=4, name="validation", findings=1235, details={"reports": "validation"})
    text = page(prefect, RECORD.model_copy(update={"steps": (*RECORD.steps, report)}), state)
    assert "| 4 | validation | 1,235 | each is listed in validation/summary.csv |" in text


def test_the_page_of_a_failed_job_says_where_and_what_to_do(prefect: FakePrefect) -> None:
    error = Problem(reference="not-json", message="a line is no JSON", context="a.ndjson:2", hint="<mend> it",
                        step="send")  # fmt: skip
    text = page(prefect, RECORD.model_copy(update={"error": error}), "failed")
    assert "`not-json` in step send: a line is no JSON" in text
    assert "a.ndjson:2" in text
    assert "\\<mend\\> it" in text


def test_the_error_of_an_earlier_run_is_not_on_the_page_of_one_that_goes_on(prefect: FakePrefect) -> None:
    error = Problem(reference="not-json", message="a line is no JSON")
    assert "not-json" not in page(prefect, RECORD.model_copy(update={"error": error}), "running")


def test_the_page_is_one_artifact_however_often_it_is_written(prefect: FakePrefect) -> None:
    page(prefect, RECORD, "running")
    assert "The job is **completed**." in page(prefect)
    assert [path for method, path in prefect.asked if method == "POST"].count("/artifacts/") == 1


def test_the_tables_of_the_steps_are_on_the_page_in_their_order(prefect: FakePrefect) -> None:
    """A list of artifacts would be in the order of ids, which come by chance."""
    assert re.findall("^## Step (.*)$", page(prefect), re.MULTILINE) == ["1, local_import", "3, send"]


def test_the_form_of_a_wait_says_where_it_waits_what_to_look_at_and_what_is_next() -> None:
    text = wait_description(WAITING, RECORD.step_names)
    assert "waits at step 2 of 3" in text
    assert f"`{WAITING.looked_at}`" in text
    assert f"`{WAITING.directory}`" in text
    assert "*release*: the job goes on with `send`; *reject*: the job is cancelled" in text


def test_the_form_of_a_wait_names_who_reads_what_leaves_as_the_record_does() -> None:
    waiting = WAITING.model_copy(update={"reads": WAITING.directory, "leaves": True, "reader": "archive"})
    assert "**To be sent**: `archive` reads the corrected files" in wait_description(waiting, RECORD.step_names)


def test_the_form_of_a_wait_at_the_end_says_that_the_job_is_complete_then() -> None:
    assert "*release*: the job is complete" in wait_description(WAITING, RECORD.step_names[:2])


def test_the_table_of_a_step_has_its_name_counts_and_details_in_words(prefect: FakePrefect) -> None:
    details = {
        "content_bytes": 152_956, "own_rules": True, "unrouted": {}, "median_seconds": {"FETCH": 0.25},
        "reports": ["a.csv", "b.json"], "resources_with_findings": 12_000, "empty": None,
    }  # fmt: skip
    found = step_facts(prefect, SEND.model_copy(update={"details": details, "warnings": ("see <this>",)}))
    assert "#" not in found
    assert found["resources out"] == "1,234"
    assert found["content bytes"] == "153 kB"
    assert found["own rules"] == "yes"
    assert found["unrouted"] == found["empty"] == "none"
    assert found["median seconds: FETCH"] == "250 ms"
    assert found["reports"] == "a.csv, b.json"
    assert found["resources with findings"] == "12,000"
    assert found["warning"] == r"see \<this\>"


def test_a_table_among_the_details_is_a_row_for_each_of_its_lines(prefect: FakePrefect) -> None:
    groups = [
        {"group": "![x](http://outside.example/a.png)", "rows": 1200, "bytes": 1855, "empty_columns": ""},
        {"group": "Labor", "rows": 0, "bytes": 9, "empty_columns": "unit, code"},
    ]
    found = step_facts(prefect, SEND.model_copy(update={"details": {"groups": groups}}))
    assert found[r"groups: \!\[x\](http\://outside.example/a.png)"] == "rows 1,200, bytes 1.9 kB"
    assert found[r"groups: Labor"] == "rows 0, bytes 9 B, empty columns unit, code"


def test_a_failed_step_shows_what_its_error_counted(prefect: FakePrefect) -> None:
    failed = SEND.model_copy(update={"state": "failed"})
    error = Problem(reference="some", message="did not get in", step="send")
    record = RECORD.model_copy(update={"steps": (*RECORD.steps[:2], failed), "error": error})
    job_page(Page(prefect.api, JOB), record, state="failed", counted={"failed": {"422 invalid": 3}})
    assert facts(prefect.page["data"], 3)["failed: 422 invalid"] == "3"
    assert "failed: 422 invalid" not in facts(prefect.page["data"], 1)


def test_a_page_that_waits_or_failed_has_the_command_that_goes_on(prefect: FakePrefect) -> None:
    for state, there in (("waiting", True), ("failed", True), ("stopped", True), ("completed", False)):
        job_page(Page(prefect.api, JOB), RECORD, state=state, continued_with="go on 'with this'")  # type: ignore[arg-type]
        assert ("`go on 'with this'`" in prefect.page["data"]) is there


def test_an_artifact_that_somebody_removed_is_made_anew(prefect: FakePrefect) -> None:
    published = Page(prefect.api, JOB)
    for text in ("one", "two"):
        published.publish("", text)
    published.publish("title")
    assert (prefect.page["description"], prefect.page["data"]) == ("title", "two")
    prefect.artifacts.clear()
    published.publish("", "three")
    assert prefect.page["data"] == "three"
    posted = [path for method, path in prefect.asked if method == "POST" and path == "/artifacts/"]
    assert len(posted) == 2


def test_what_cannot_be_written_for_a_person_is_said_and_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with best_effort("the table of send"):
        raise DataError("prefect-refused", "no")
    assert caplog.messages == ["the table of send is not written: no"]


# --- Text that stands there as it is. ---


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("plain words, 1.5 s, 2026-11-21, a-b, a_b_c", "plain words, 1.5 s, 2026-11-21, a-b, a_b_c"),
        ("# step", r"\# step"),
        ("1. one", r"1\. one"),
        ("- a", r"\- a"),
        ("<Type>", r"\<Type\>"),
        ("![x](http://outside.example/a.png)", r"\!\[x\](http\://outside.example/a.png)"),
        ("__init__", r"\_\_init\_\_"),
        ("a|b", r"a\|b"),
        ("a&lt;b & c", r"a\&lt;b & c"),
    ],
)
def test_a_text_is_escaped_where_markdown_would_read_it_and_nowhere_else(text: str, markdown: str) -> None:
    assert literal(text) == markdown


@settings(deadline=None)
@given(st.text())
def test_nothing_of_a_text_is_lost(text: str) -> None:
    assert re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", literal(text)) == text


@settings(deadline=None)
@given(st.text(alphabet="<>![]()`*_#|&;:/aw. \n-"))
def test_no_image_no_link_and_no_html_survives(text: str) -> None:
    # Something stays where an escaped sign was: else what stands before and behind it would be a link.
    bare = re.sub(r"\\[!-/:-@\[-`{-~]", "§", literal(text))
    assert not set(bare) & set("<>![]`*|")
    assert "://" not in bare or not re.search(r"\w://", bare)


@pytest.mark.parametrize(("text", "markdown"), [("/a/b_c*", "`/a/b_c*`"), ("a`b", "`` a`b ``")])
def test_code_shows_a_path_as_it_is(text: str, markdown: str) -> None:
    assert code(text) == markdown


def test_a_table_leaves_columns_without_any_value_out_except_the_first_two() -> None:
    text = table(("a", "b", "c", "d"), [["", "", "", "x|y"], ["", "1", "", "two\nlines"]])
    assert text.splitlines() == ["| a | b | d |", "|---|---|---|", r"|  |  | x\|y |", "|  | 1 | two lines |"]
