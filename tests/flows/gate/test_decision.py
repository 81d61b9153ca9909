"""What becomes of a job after an answer at a wait, and what an approval is bound to."""

from __future__ import annotations

from typing import Any

import pytest

from config import PipelineConfig
from flows.gate.decision import judge
from flows.gate.reviewed import destination
from flows.job.waiting import Answer, Reviewed, Shown

BUCKET = {"mode": "s3_upload", "bucket": "study"}
SHOWN = Shown(files="f1", destination=BUCKET, page="report.html")
STOPS = SHOWN.model_copy(update={"stops": 3})
FAILED = SHOWN.model_copy(update={"page": None, "failed": "the disk is full"})
SAME = Reviewed(files="f1", destination=BUCKET)


def yes(comment: str = "") -> Answer:
    return Answer(approved=True, by="Anna", comment=comment, when="now")


NO = Answer(approved=False, by="Bo", when="now")


@pytest.mark.parametrize(
    ("answer", "shown", "now", "reason"),
    [
        (yes(), SHOWN, SAME, None),
        (NO, SHOWN, SAME, None),
        (NO, STOPS, Reviewed(files="f2"), None),
        (yes("why"), STOPS, SAME, None),
        (yes("why"), FAILED, SAME, None),
        (yes(), STOPS, SAME, "the release report has stops (3), and the approval has no comment"),
        (yes(" \n"), STOPS, SAME, "the release report has stops (3), and the approval has no comment"),
        (yes(), FAILED, SAME, "the release report could not be made, and the approval has no comment"),
        (
            yes("why"), SHOWN, Reviewed(files="f2", destination=BUCKET),
            "the files are not those that were shown: changed: import/a.ndjson",
        ),
        (
            yes("why"), SHOWN, Reviewed(files="f1", destination=BUCKET | {"bucket": "other", "prefix": "x"}),
            "the destination is not the one that was shown: bucket study → other, prefix none → x",
        ),
        (
            yes(), Shown(), SAME,
            "the files are not those that were shown: changed: import/a.ndjson",
        ),
    ],
)  # fmt: skip
def test_an_answer_is_judged_by_what_was_shown(answer: Answer, shown: Shown, now: Reviewed, reason: str | None) -> None:
    assert judge(answer, shown, now, ["changed: import/a.ndjson"]) == reason


S3 = {
    "bucket": "study",
    "secret_access_key": "secret",
    "endpoint": "https://store.example/x",
    "prefix": "a/b",
    "region": "eu",
}
TRANSFER = {"project_identifier": "p1", "organization_identifier": "o1"}


@pytest.mark.parametrize(
    ("send", "expected"),
    [
        (
            {"send_as": "direct_resource_load", "url": "http://fhir.example:8080/"},
            {"mode": "direct_resource_load", "url": "http://fhir.example:8080"},
        ),
        (
            {"send_as": "transfer_load", "url": "http://fhir.example", "transfer": TRANSFER, "s3": S3},
            {"mode": "transfer_load", "url": "http://fhir.example", "project": "p1", "organization": "o1"},
        ),
        (
            {"send_as": "s3_upload", "url": "http://not.used", "s3": S3},
            {
                "mode": "s3_upload",
                "endpoint": "https://store.example/x",
                "region": "eu",
                "bucket": "study",
                "prefix": "a/b",
            },
        ),
        ({}, {}),
    ],
)
def test_an_approval_is_bound_to_the_destination_without_credentials(
    send: dict[str, Any], expected: dict[str, str]
) -> None:
    steps = ["local_import", "wait", "send"]
    config = PipelineConfig.model_validate({"services": {"send": send}, "pipeline": {"enabled_steps": steps}})
    found = destination(config)
    assert found == expected


def test_a_job_that_sends_nothing_has_no_destination() -> None:
    services = {"send": {"send_as": "s3_upload", "s3": S3}}
    config = {"services": services, "pipeline": {"enabled_steps": ["local_import", "wait"]}}
    assert destination(PipelineConfig.model_validate(config)) == {}
