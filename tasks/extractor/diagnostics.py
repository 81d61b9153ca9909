"""The progress text of a running job, from what a status poll answered (document 3 §2).

The last ``informational`` issue of the OperationOutcome holds four lines: job id, status, batch progress in percent,
cohort size; the header ``X-Progress`` a short phrase. Services quote data in ``diagnostics``, so only what has a known
form is taken out of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tasks.extractor.json_values import parse_json
from tasks.extractor.task import JobStatus
from tasks.shared.http.answer import Answer
from tasks.shared.publication import people

_PERCENT = re.compile(r"(\d{1,3})(?:[.,]\d+)?\s?%", re.ASCII)
_STATUS = re.compile(rf"\b({'|'.join(JobStatus)})\b")
_COHORT = re.compile(r"cohort[^\d\n]{0,40}(\d{1,9})\b", re.IGNORECASE | re.ASCII)
_PHRASE = re.compile(
    r"(Getting cohort|Processing batches(?: \(\d{1,3}\s?%\))?|Processing core resources|Pending|Paused)\Z", re.ASCII
)


@dataclass(frozen=True)
class Told:
    """What an answer says of a running job: a line for a person, the fraction done where a percentage is given, and
    the job's state where it is named."""

    text: str
    fraction: float | None = None
    state: str = ""


def progress_text(answer: Answer, k: int) -> Told:
    """What a 202 says about the job. The cohort is said as a number of patients is (document 5, R3): not all of them
    may arrive."""
    text = _last_informational(parse_json(answer.body))
    parts: list[str] = []
    phrase = _PHRASE.match(answer.headers.get("x-progress", "").strip())
    status = _STATUS.search(text)
    if phrase is not None:
        parts.append(phrase[1])
    elif status is not None:
        parts.append(status[1])
    percent = _PERCENT.search(text) or (_PERCENT.search(phrase[1]) if phrase is not None else None)
    fraction = min(100, int(percent[1])) / 100 if percent is not None else None
    if fraction is not None and "%" not in "".join(parts):
        parts.append(f"{fraction:.0%}")
    cohort = _COHORT.search(text)
    if cohort is not None:
        parts.append(f"{people(int(cohort[1]), k)} patients")
    state = JobStatus.PAUSED if phrase is not None and phrase[1] == "Paused" else ""
    return Told(", ".join(parts) or "running", fraction, status[1] if status is not None else state)


def _last_informational(outcome: Any) -> str:
    issues = outcome.get("issue") if isinstance(outcome, dict) else None
    texts = [
        issue["diagnostics"]
        for issue in (issues if isinstance(issues, list) else ())
        if isinstance(issue, dict)
        and isinstance(issue.get("diagnostics"), str)
        and (issue.get("code") == "informational" or issue.get("severity") == "information")
    ]
    return texts[-1] if texts else ""
