"""The page of a job in the Prefect UI: Markdown of the record, in which text stays text."""

from __future__ import annotations

import re
from typing import Any

from markdown_it import MarkdownIt

from flows.job.waiting import Decision
from flows.reports.page import page_of
from flows.reports.waiting import form_text
from tasks.shared.report import StepReport
from tests.flows.reports.test_status import ERROR, JOB, SHOWN, STEPS, WAITING, record

HOSTILE = "<img src=x> [a](http://h) `b` *c* | d ~~e~~ http://h/x\n# f"


def tags(markdown: str) -> set[str]:
    """Return the tags that the UI would show: HTML, links and images must not be among them."""
    found = set()
    for token in MarkdownIt("gfm-like", {"linkify": False}).parse(markdown):
        found |= {token.type, *(child.type for child in token.children or ())}
    return found


def page(state: Any, **more: Any) -> str:
    return page_of(record(state, **more))[1]


def test_the_page_says_what_went_wrong_and_how_to_go_on() -> None:
    shown = page("failed", error=ERROR)
    assert "The job is **failed**." in shown
    assert "`validation-findings` in step validation: 5 errors" in shown
    assert re.search(f"Continue on its machine with `.*pipeline continue /c.yaml {JOB}`", shown)
    assert f"The files of the job are in `/jobs/{JOB}`" in shown


def test_the_steps_are_a_table_with_exact_numbers_and_their_warnings_a_list() -> None:
    shown = page("completed")
    assert "| 1 | local\\_import | completed | 4 | 1,234 |" in shown.replace("local_import", "local\\_import")
    assert shown.count("skipped") == 2
    timed = StepReport(position=1, name="send", state="completed", files=2, seconds=21.6)
    assert "| 1 | send | completed | 2 | 21.6 s |" in page("completed", steps=(timed,))


def test_a_waiting_jobs_page_is_its_form_and_both_need_a_comment_with_stops() -> None:
    waits = record("waiting", waiting=WAITING, shown={3: SHOWN})
    form = form_text(waits, WAITING, "sluice pipeline continue c.yaml JOB")
    for said in (
        "The job waits at step 3 of 4 for your decision.", "**It waits again**: files", "**The data are in** `import`",
        "put a complete set of files into `import_wait`", f"in `/jobs/{JOB}`", "**Destination**: `mode s3_upload`",
        "**An approval needs a comment**", "the job goes on with `send`", "continued on its machine",
    ):  # fmt: skip
        assert said in form
    assert form_text(waits, WAITING, None) in page("waiting", waiting=WAITING, shown={3: SHOWN})


def test_what_people_and_services_wrote_is_shown_as_it_is() -> None:
    decision = Decision(approved=True, by=HOSTILE, comment=HOSTILE, when="now")
    error = ERROR.model_copy(update={"message": HOSTILE, "context": HOSTILE})
    step = STEPS[1].model_copy(update={"warnings": (HOSTILE,)})
    shown = page("failed", error=error, decisions={3: decision}, steps=(step,), name=HOSTILE)
    assert not tags(shown) & {"html_inline", "html_block", "link_open", "image", "s_open"}
    assert "em_open" not in tags(shown)
