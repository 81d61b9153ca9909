"""Waiting for an extraction: one poll after the other, read as document 1's table says ("States and transitions").

The interval begins at ``polling_interval`` and doubles after every answer that says the job is in progress, up to
``max_polling_interval``. After a transient failure the wait has a back-off of its own, within the same bounds. There is
no limit for the whole wait; it ends when neither a 200 nor a 202 came for ``extraction_timeout``.

Since a 202 alone keeps it going, only a person can notice that nothing moves: a paused job is shown with the command
that resumes it, and one of which nothing changes is warned of (document 3 §2).

The progress text of a running job comes from its Task, else from the 202: the last ``informational`` issue of its
OperationOutcome holds four lines (job id, status, batch progress in percent, cohort size), the header ``X-Progress`` a
short phrase. Services quote data in ``diagnostics``, so only what has a known form is taken out of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from config import ExtractorConfig
from tasks.extractor import failures
from tasks.extractor.client import TRANSIENT, ExtractionClient
from tasks.extractor.task import ExtractionTask, JobStatus, cohort, list_of, object_of, parse_json
from tasks.shared.errors import ServiceError, SluiceError, TransientError
from tasks.shared.http.answer import Answer
from tasks.shared.http.retry import MAX_RETRY_AFTER, parse_retry_after
from tasks.shared.log import logger
from tasks.shared.meter import Meter
from tasks.shared.step import Handle
from tasks.shared.units import human_seconds

RUNNING = frozenset({102, 202})
GONE = frozenset({404, 410})

STILL_AFTER = 900.0
"""Seconds without any change of state, batches and version after which a person is warned, once."""

STILL_AGAIN = 3600.0
"""Seconds between two of the warnings that follow."""

_PERCENT = re.compile(r"(\d{1,3})(?:[.,]\d+)?\s?%", re.ASCII)
_STATUS = re.compile(rf"\b({'|'.join(JobStatus)})\b")
_COHORT = re.compile(r"cohort[^\d\n]{0,40}(\d{1,9})\b", re.IGNORECASE | re.ASCII)
_PHRASE = re.compile(
    r"(Getting cohort|Processing batches(?: \(\d{1,3}\s?%\))?|Processing core resources|Pending|Paused)\Z", re.ASCII
)


@dataclass(frozen=True)
class ProgressText:
    """The progress of a running job: one line, the completed fraction and the state, if known."""

    text: str
    fraction: float | None = None
    state: str = ""


@dataclass(frozen=True)
class Gone:
    """The job's handle is dead; ``status`` is 404 or 410."""

    status: int


class Poller:
    """Polls one server for one run of a step.

    ``resume`` gives the command that resumes a job, ``clock`` seconds that only ever grow; ``sleep`` takes seconds and
    may raise ``Stopped``.
    """

    def __init__(
        self,
        client: ExtractionClient,
        config: ExtractorConfig,
        progress: Meter,
        *,
        resume: Callable[[str], str],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._client = client
        self._resume = resume
        self._first = config.polling_interval.total_seconds()
        self._longest = max(config.max_polling_interval.total_seconds(), self._first)
        self._window = config.extraction_timeout.total_seconds()
        self._progress = progress
        self._clock = clock
        self._sleep = sleep
        self._ask_task = True
        self._state = self._trouble = ""
        self._seen: tuple[object, ProgressText] | None = None
        self._since = 0.0
        self._warn_at = 0.0

    def wait(self, status_url: str, handle: Handle | None) -> Answer | Gone:
        """Poll until the job is complete (the 200) or gone. ``handle`` is ``None`` for a direct result URL, of which an
        immediate 200 is expected.

        Raises ``ServiceError`` (``extraction-failed``, and other answers that end it), ``ServiceBusyError``
        (``result-not-complete``), ``TerminalError`` (``extraction-timeout``), ``Stopped``.
        """
        self._state, self._seen, self._trouble = "", None, ""
        contact = self._clock()
        interval = backoff = self._first
        while True:
            asked: float | None = None
            answer = self._poll(status_url)
            if answer is not None:
                if answer.status == 200:
                    return answer
                if answer.status in RUNNING:
                    if handle is None:
                        raise failures.not_complete(status_url, answer.status)
                    contact = self._clock()
                    self._report_trouble("")
                    self._show(answer, handle)
                    self._sleep(interval)
                    interval, backoff = min(2 * interval, self._longest), self._first
                    continue
                if answer.status in GONE:
                    return Gone(answer.status)
                if answer.status not in TRANSIENT:
                    raise failures.failed(status_url, answer)
                asked = parse_retry_after(answer.headers.get("retry-after"))
                self._report_trouble(f"the server answered {answer.status}, asking again")
            silence = self._clock() - contact
            if silence > self._window:
                raise failures.extraction_timeout(status_url, silence)
            self._rest(max(backoff, min(asked or 0.0, MAX_RETRY_AFTER)), contact)
            backoff = min(2 * backoff, self._longest)

    def _poll(self, status_url: str) -> Answer | None:
        """Return one answer; ``None`` if there was none, which only the liveness window limits."""
        try:
            return self._client.poll(status_url)
        except TransientError as error:
            self._report_trouble(f"no answer ({error.reference}), asking again")
            return None

    def _report_trouble(self, trouble: str) -> None:
        """Show what is wrong with the polls, nothing when they are answered; one line of the log for each change, not
        for each poll."""
        if trouble:
            self._progress.set_status(f"extracting: {trouble}", stands=True)
        if trouble != self._trouble:
            logger.info("extractor: %s", trouble or "the server answers again")
            self._seen = None  # what happened meanwhile nobody saw
        self._trouble = trouble

    def _rest(self, seconds: float, contact: float) -> None:
        """Sleep, but not beyond the moment at which the silence has become too long."""
        left = self._window - (self._clock() - contact)
        # A little more than what is left: the poll after it is the last one.
        self._sleep(min(seconds, max(left, 0.0) + 0.1))

    def _show(self, answer: Answer, handle: Handle) -> None:
        """Say how far the job is: from its Task, else from the text of the answer. Best effort."""
        told = progress_text(answer)
        text, fraction, state = told.text, told.fraction, told.state
        task = self._task(handle.job_id)
        if task is not None:
            state = task.status or state
            if task.progress is not None:
                text, fraction = task.progress.describe() or "running", task.progress.fraction
        paused = state == JobStatus.PAUSED
        if paused:
            text = f"PAUSED on the server ({text}); resume it with {self._resume(handle.job_id)}"
        elif state == JobStatus.TEMP_FAILED:
            text = f"failed for the moment, the server tries again ({text})"
        if paused and self._state != state:
            self._progress.warn(f"the extraction is {text}")
        if state and state != self._state:
            logger.info("extraction job %s: %s", handle.job_id, state)
        self._state = state or self._state
        still = self._stands(handle, state, task, told)
        self._progress.set_status(f"extracting: {text}", fraction=fraction, stands=paused or still)

    def _stands(self, handle: Handle, state: str, task: ExtractionTask | None, told: ProgressText) -> bool:
        """Return whether nothing has changed for a long time; warn once, and then every hour.

        Compared are state, batches and version of the Task, and what the answer says. A Task that could not be read
        this time is as it was.
        """
        now, before = self._clock(), self._seen
        known = before[0] if before is not None else None
        if task is not None:
            known = (task.status, task.progress.batches_completed if task.progress else None, task.version)
        self._seen = (known, told)
        if self._seen != before:
            self._since, self._warn_at = now, now + STILL_AFTER
        if now >= self._warn_at:
            self._warn_at = now + STILL_AGAIN
            what = f"it is PAUSED; resume it with {self._resume(handle.job_id)}"
            self._progress.warn(
                f"nothing has changed at extraction job {handle.job_id} for {human_seconds(now - self._since)} "
                f"({state or 'its state is not known'}): "
                + (what if state == JobStatus.PAUSED else "ask the operator of the server")
            )
        return now - self._since >= STILL_AFTER

    def _task(self, job_id: str) -> ExtractionTask | None:
        if not self._ask_task:
            return None
        try:
            return self._client.task(job_id, brief=True)
        except ServiceError as error:
            # This server has no Task API, or not for us: not again in this run (document 3 §2).
            self._ask_task = False
            logger.info("extractor: no Task to read progress from (%s)", error.reference)
            return None
        except SluiceError:
            return None


def progress_text(answer: Answer) -> ProgressText:
    """Return the progress in a 202."""
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
    size = _COHORT.search(text)
    if size is not None:
        parts.append(cohort(int(size[1])))
    state = JobStatus.PAUSED if phrase is not None and phrase[1] == "Paused" else ""
    return ProgressText(", ".join(parts) or "running", fraction, status[1] if status is not None else state)


def _last_informational(outcome: Any) -> str:
    texts = [
        text
        for issue in map(object_of, list_of(object_of(outcome).get("issue")))
        if isinstance(text := issue.get("diagnostics"), str)
        and (issue.get("code") == "informational" or issue.get("severity") == "information")
    ]
    return texts[-1] if texts else ""
