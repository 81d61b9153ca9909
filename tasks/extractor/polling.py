"""Wait for an extraction: poll its status, and act on each answer as the table in docs/services.md says.

The interval begins at ``polling_interval`` and doubles after every answer that says the job is in progress, up to
``max_polling_interval``. After a transient failure the wait has a back-off of its own, within the same bounds. There is
no limit for the whole wait; it ends when neither a 200 nor a 202 came for ``extraction_timeout``.

Progress comes from the 202 alone: the header ``X-Progress``, and the last ``informational`` issue, which holds state,
percent and cohort size. Services quote data in ``diagnostics``, so only parts of a known form are used.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any, Final

from tasks.extractor.server import TRANSIENT, ExtractionServer, poll_request
from tasks.extractor.task import JobStatus
from tasks.extractor.urls import job_id_of
from tasks.shared.errors import ServiceBusyError, ServiceError, SluiceError, TerminalError, TransientError
from tasks.shared.fhir.resource import list_of, object_of, parse_json
from tasks.shared.http.answer import Answer
from tasks.shared.http.errors import error_for
from tasks.shared.http.retry import MAX_RETRY_AFTER, parse_retry_after
from tasks.shared.log import logger
from tasks.shared.step import StepContext
from tasks.shared.units import human_count, human_seconds

_PERCENT: Final = re.compile(r"(\d{1,3})(?:[.,]\d+)?\s?%", re.ASCII)
_STATUS: Final = re.compile(rf"\b({'|'.join(JobStatus)})\b")
_COHORT: Final = re.compile(r"cohort[^\d\n]{0,40}(\d{1,9})\b", re.IGNORECASE | re.ASCII)
_PHRASE: Final = re.compile(
    r"(Getting cohort|Processing batches(?: \(\d{1,3}\s?%\))?|Processing core resources|Pending|Paused)\Z", re.ASCII
)


@dataclass(frozen=True)
class Gone:
    """The server has no such job any more; ``status`` is 404 or 410."""

    status: int


@dataclass(frozen=True)
class ProgressText:
    """The progress of a running job: one line, the completed fraction and the state, if known."""

    text: str
    fraction: float | None = None
    state: str = ""


class Poller:
    """Polls one server for one run of a step."""

    def __init__(self, context: StepContext, server: ExtractionServer) -> None:
        config = context.config.services.extractor
        self._server = server
        self._first = config.polling_interval.total_seconds()
        self._longest = max(config.max_polling_interval.total_seconds(), self._first)
        self._window = config.extraction_timeout.total_seconds()
        self._context = context
        self._trouble = ""
        self._state = ""

    def wait(self, status_url: str, *, direct: bool = False) -> Answer | Gone:
        """Poll until the job is complete (the 200) or gone. ``direct``: the URL is that of a complete result.

        Raises ``ServiceError`` (``extraction-failed``, and for any other final answer), ``ServiceBusyError``
        (``result-not-complete``, a 202 with ``direct``), ``TerminalError`` (``extraction-timeout``), ``Stopped``.
        """
        sleep = self._context.stop.sleep
        contact, interval, backoff = time.monotonic(), self._first, self._first
        while True:
            answer = self._poll(status_url)
            status = answer.status if answer is not None else None
            if answer is not None and status == 200:
                return answer
            if answer is not None and status in (202, 102):
                if direct:
                    raise _not_complete(status_url, status)
                contact = time.monotonic()
                self._show(answer, job_id_of(status_url))
                sleep(interval)
                interval, backoff = min(2 * interval, self._longest), self._first
                continue
            if status in (404, 410):
                return Gone(status)
            if answer is not None and status not in TRANSIENT:
                raise _failed(status_url, answer)
            silence = time.monotonic() - contact
            if silence > self._window:
                raise self._timeout(status_url, silence)
            asked = parse_retry_after(answer.headers.get("retry-after")) if answer is not None else None
            wait = max(backoff, min(asked or 0.0, MAX_RETRY_AFTER))
            sleep(min(wait, self._window - silence + 0.1))  # the poll after the window is the last one
            backoff = min(2 * backoff, self._longest)

    def _poll(self, status_url: str) -> Answer | None:
        """Return one answer; ``None`` after a network failure, which only ``extraction_timeout`` ends."""
        try:
            answer = self._server.poll(status_url)
        except TransientError as error:
            self._report(f"no answer ({error.reference}), asking again")
            return None
        self._report(f"the server answered {answer.status}, asking again" if answer.status in TRANSIENT else "")
        return answer

    def _report(self, trouble: str) -> None:
        """Show what is wrong with the polls (empty: nothing); log a change, not each poll."""
        if trouble:
            self._context.meter.set_status(f"extracting: {trouble}", stands=True)
        if trouble != self._trouble:
            logger.info("extractor: %s", trouble or "the server answers again")
        self._trouble = trouble

    def _timeout(self, status_url: str, silence: float) -> TerminalError:
        """Return the error for a window without a 200 or 202; it tells how to resume a job in TEMP_FAILED."""
        what = f"got neither 200 nor 202 from the server for {human_seconds(silence)}"
        hint = "pipeline continue asks for the same job again; services.extractor.extraction_timeout is the limit"
        task = self._server.look(job_id_of(status_url))
        if task is not None and task.status == JobStatus.TEMP_FAILED:
            what = f"was answered 503 for {human_seconds(silence)}: the job is in the state TEMP_FAILED"
            hint = f"resume it on the server with {self._resume(task.id)}, then continue the job"
        return poll_request(status_url).error(TerminalError, "extraction-timeout", what, hint=hint)

    def _resume(self, job_id: str) -> str:
        return self._context.command("extraction resume", job_id)

    def _show(self, answer: Answer, job_id: str) -> None:
        """Show the progress in a 202. For a paused or temporarily failed job, show the state of its Task."""
        told = progress_text(answer)
        state, text = told.state, told.text
        if state in (JobStatus.PAUSED, JobStatus.TEMP_FAILED):
            task = self._server.look(job_id)
            state = (task.status if task is not None else "") or state
        if state == JobStatus.PAUSED:
            text = f"PAUSED on the server ({text}); resume it with {self._resume(job_id)}"
        elif state == JobStatus.TEMP_FAILED:
            text = f"failed temporarily, the server tries again ({text})"
        if state and state != self._state:
            logger.info("extraction job %s: %s", job_id, state)
            if state == JobStatus.PAUSED:
                self._context.meter.warn(f"the extraction is {text}")
        self._state = state or self._state
        paused = state == JobStatus.PAUSED
        self._context.meter.set_status(f"extracting: {text}", fraction=told.fraction, stands=paused)


def progress_text(answer: Answer) -> ProgressText:
    """Return the progress in a 202."""
    text = _last_informational(parse_json(answer.body))
    phrase = _PHRASE.match(answer.headers.get("x-progress", "").strip())
    status = _STATUS.search(text)
    percent = _PERCENT.search(text) or (_PERCENT.search(phrase[1]) if phrase is not None else None)
    fraction = min(100, int(percent[1])) / 100 if percent is not None else None
    parts = [phrase[1] if phrase is not None else status[1] if status is not None else ""]
    if fraction is not None and "%" not in parts[0]:
        parts.append(f"{fraction:.0%}")
    if (size := _COHORT.search(text)) is not None:
        parts.append(f"cohort of {human_count(int(size[1]), 'patient')}")
    paused = JobStatus.PAUSED if phrase is not None and phrase[1] == "Paused" else ""
    return ProgressText(", ".join(filter(None, parts)) or "running", fraction, status[1] if status else paused)


def _last_informational(outcome: Any) -> str:
    texts = [
        text
        for issue in map(object_of, list_of(object_of(outcome).get("issue")))
        if isinstance(text := issue.get("diagnostics"), str)
        and (issue.get("code") == "informational" or issue.get("severity") == "information")
    ]
    return texts[-1] if texts else ""


def _failed(status_url: str, answer: Answer) -> SluiceError:
    """Return the error for a status that ends the polling."""
    if answer.status == 500:
        hint, what = "see the server's log for the reason, then start a new job", "was answered 500: the job has failed"
        wrong = poll_request(status_url).error(ServiceError, "extraction-failed", what, hint=hint, status=500)
        return wrong.made_from(answer)
    return error_for(answer, poll_request(status_url), transient=TRANSIENT)


def _not_complete(url: str, status: int | None) -> ServiceBusyError:
    what = f"was answered {status}: the result that INPUT names is not complete yet"
    hint = "continue the job when it is"
    return poll_request(url).error(ServiceBusyError, "result-not-complete", what, hint=hint, status=status)
