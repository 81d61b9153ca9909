"""The Task of an extraction job and its progress (document 2; document 3 §2)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.extractor.polling import progress_text
from tasks.extractor.task import STAGES, JobProgress, JobStatus, Priority, parse_json, parse_task, parse_tasks
from tasks.shared.http.answer import Answer
from tests.peers.services import JOB, task


def test_the_status_is_the_business_status_unchanged() -> None:
    for status in JobStatus:
        parsed = parse_task(task(status=status))
        assert parsed is not None
        assert parsed.status == status
        assert parsed.version == "3"


@pytest.mark.parametrize(
    ("code", "priority"),
    [("asap", "high"), ("stat", "high"), ("urgent", "high"), ("routine", "normal"), (None, "normal"), (7, "normal")],
)
def test_priorities_are_mapped_as_the_table_says(code: Any, priority: str) -> None:
    assert Priority.of(code) == priority


@pytest.mark.parametrize("resource", [None, [], "Task", {"resourceType": "Patient"}, {"resourceType": "Task"}])
def test_what_is_no_task_is_none(resource: Any) -> None:
    assert parse_task(resource) is None


def test_text_that_a_terminal_would_obey_is_not_read() -> None:
    parsed = parse_task(task(status="\x1b[2J", authoredOn="\x1b]0;CANARY\x07"))
    assert parsed is not None
    assert (parsed.status, parsed.authored) == ("", None)
    assert parse_task(task("\x1b[2J")) is None


def extension(prefix: str, base: str = "https://example.org/fhir/") -> dict[str, Any]:
    active = {
        "url": "activeBatch",
        "extension": [{"url": "batchId", "valueString": "b"}, {"url": "stage", "valueString": "DIRECT_LOAD"}],
    }
    counts = {"cohortSize": 12, "batchSize": 5, "batchesTotal": 3, "batchesCompleted": 1}
    parts = [{"url": name, "valueInteger": count} for name, count in counts.items()]
    return {"url": f"{base}{prefix}job-progress", "extension": [*parts, active]}


@pytest.mark.parametrize("prefix", ["extractor-", "torch-"])
@pytest.mark.parametrize("base", ["", "https://example.org/fhir/", "https://example.org/StructureDefinition/"])
def test_extensions_are_matched_by_their_last_segment_in_both_spellings(prefix: str, base: str) -> None:
    parsed = parse_task(task(extension=[{"url": "https://other"}, extension(prefix, base)]))
    assert parsed is not None
    assert parsed.progress == JobProgress(12, 5, 3, 1, ("DIRECT_LOAD",))


def test_stages_are_recognized_as_deployed_servers_spell_them_and_others_counted() -> None:
    def active(stage: str) -> dict[str, Any]:
        parts = [{"url": "batchId", "valueString": "COPY_REDACT"}, {"url": "stage", "valueString": stage}]
        return {"url": "activeBatch", "extension": parts}

    total = {"url": "batchesTotal", "valueInteger": 4}
    progress = {"url": "torch-job-progress", "extension": [total, active("CONSENT"), active("CANARY")]}
    parsed = parse_task(task(extension=[progress]))
    assert parsed is not None
    assert parsed.progress is not None
    assert parsed.progress.stages == ("CONSENT_FETCH", "(other)")
    assert parsed.progress.fraction == 0.0
    assert parsed.progress.describe() == "0/4 batches, 1 in CONSENT_FETCH, 1 in another stage"


@pytest.mark.parametrize(
    ("progress", "fraction"),
    [
        (JobProgress(batches_total=4, batches_completed=1), 0.25),
        (JobProgress(batches_total=4, batches_completed=1, stages=("CONSENT_FETCH",)), 1 / 4),
        (
            JobProgress(batches_total=4, batches_completed=1, stages=("COPY_REDACT", "DIRECT_LOAD")),
            2 / 4,
        ),
        (JobProgress(batches_total=1, stages=("COPY_REDACT",)), 4 / 5),  # not a full bar at "0/1 batches"
        (JobProgress(batches_total=2, batches_completed=2, stages=STAGES), 1.0),
        (JobProgress(batches_total=0), None),
        (JobProgress(), None),
    ],
)
def test_the_fraction_is_batches_plus_fifths_of_completed_stages(progress: JobProgress, fraction: float | None) -> None:
    assert progress.fraction == (pytest.approx(fraction) if fraction is not None else None)


def test_consent_audit_files_are_the_outputs_of_that_type() -> None:
    outputs = [
        {"type": {"text": "Consent audit NDJSON"}, "valueUrl": "https://h/1_consent.ndjson"},
        {"type": {"text": "Something else"}, "valueUrl": "https://h/2"},
        {"type": {"text": "Consent audit NDJSON"}},
        None,
    ]
    parsed = parse_task(task(output=outputs))
    assert parsed is not None
    assert parsed.consent_urls == ("https://h/1_consent.ndjson",)


def test_a_searchset_keeps_its_order_and_anything_else_is_none() -> None:
    bundle = {"resourceType": "Bundle", "entry": [{"resource": task("a")}, {}, {"resource": task("b")}]}
    assert [one.id for one in parse_tasks(bundle) or ()] == ["a", "b"]
    assert parse_tasks({"resourceType": "Bundle"}) == []
    assert parse_tasks({"resourceType": "OperationOutcome"}) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["Task", "job-progress"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["extension", "url", "id", "meta", "businessStatus", "coding", "output", "code", "status"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_whatever_a_task_holds_it_is_read_without_an_exception(value: Any) -> None:
    parse_task({"resourceType": "Task", "id": "x"} | (value if isinstance(value, dict) else {"extension": value}))


def test_json_is_a_small_object_whose_keys_are_never_left_out() -> None:
    bare, full = parse_task(task()), parse_task(task(extension=[extension("torch-")]))
    assert bare is not None
    assert full is not None
    assert bare.as_dict().keys() == full.as_dict().keys()
    assert full.as_dict()["progress"]["fraction"] == pytest.approx((1 + 1 / 5) / 3)


def answer(diagnostics: str, header: str = "") -> Answer:
    issues = [
        {"severity": "warning", "code": "processing", "diagnostics": "99% CANARY"},
        {"severity": "information", "code": "informational", "diagnostics": "CANARY 1%"},
        {"severity": "information", "code": "informational", "diagnostics": diagnostics},
    ]
    content = httpx.Response(202, json={"resourceType": "OperationOutcome", "issue": issues}).content
    return Answer(202, httpx.Headers({"X-Progress": header} if header else {}), content)


@pytest.mark.parametrize(
    ("diagnostics", "header", "text", "fraction"),
    [
        (f"Job {JOB}\nStatus: RUNNING_PROCESS_BATCH\nProgress: 45%\nCohort size: 1234", "",
         "RUNNING_PROCESS_BATCH, 45%, cohort of 1,234 patients", 0.45),
        ("Cohort size: 3", "", "cohort of 3 patients", None),
        ("Cohort size: 0", "", "empty cohort", None),
        ("", "Getting cohort", "Getting cohort", None),
        ("", "Processing batches (7%)", "Processing batches (7%)", 0.07),
        ("", "Processing core resources", "Processing core resources", None),
        ("Status: PAUSED", "Paused", "Paused", None),
        ("", "CANARY of a proxy", "running", None),
        ("Erika CANARY", "", "running", None),
        ("100.0 %", "", "100%", 1.0),
        ("900%", "", "100%", 1.0),
    ],
)  # fmt: skip
def test_the_progress_text_holds_only_what_has_a_known_form(
    diagnostics: str, header: str, text: str, fraction: float | None
) -> None:
    told = progress_text(answer(diagnostics, header))
    assert (told.text, told.fraction) == (text, fraction)


@given(st.binary(max_size=40))
def test_any_body_gives_a_text(body: bytes) -> None:
    assert progress_text(Answer(202, httpx.Headers(), body)).text
    parse_json(body)
