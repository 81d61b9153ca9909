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
from tasks.extractor.urls import job_id_of
from tasks.shared.errors import TerminalError, TransientError
from tasks.shared.fhir.resource import list_of, object_of, parse_json
from tasks.shared.http.answer import Answer
from tasks.shared.http.retry import MAX_RETRY_AFTER, parse_retry_after
from tasks.shared.log import logger
from tasks.shared.step import StepContext
from tasks.shared.units import human_count, human_seconds

RUNNING: Final = frozenset({102, 202})
"""Statuses of a job in progress."""

_PAUSED: Final = "PAUSED"
_TEMP_FAILED: Final = "TEMP_FAILED"
_PERCENT: Final = re.compile(r"(\d{1,3})(?:[.,]\d+)?\s?%", re.ASCII)
_STATE: Final = re.compile(r"\b(PENDING|RUNNING_(?:GET_COHORT|PROCESS_BATCH|PROCESS_CORE)|PAUSED|TEMP_FAILED)\b")
_COHORT: Final = re.compile(r"cohort[^\d\n]{0,40}(\d{1,9})\b", re.IGNORECASE | re.ASCII)
_PHRASE: Final = re.compile(r"Getting cohort|Processing batches|Processing core resources|Pending|Paused")


@dataclass(frozen=True)
class Progress:
    """The progress of a running job: one line, the completed fraction and the state, if known."""

    text: str
    fraction: float | None
    state: str


class Poller:
    """Polls one server for one run of a step."""

    def __init__(self, context: StepContext, server: ExtractionServer) -> None:
        config = context.config.services.extractor
        self._server = server
        self._first = config.polling_interval.total_seconds()
        self._longest = config.max_polling_interval.total_seconds()
        self._window = config.extraction_timeout.total_seconds()
        self._context = context
        self._trouble = ""
        self._state = ""

    def wait(self, status_url: str, *, direct: bool = False) -> Answer:
        """Poll until the job is no longer in progress; return the answer that tells so, whatever its status.

        With ``direct`` the URL is that of a complete result, so an answer in ``RUNNING`` is returned, too. Raises
        ``TerminalError`` (``extraction-timeout``), ``Stopped``.
        """
        sleep = self._context.stop.sleep
        contact, interval, backoff = time.monotonic(), self._first, self._first
        while True:
            answer = self._poll(status_url)
            if answer is not None and answer.status in RUNNING and not direct:
                contact = time.monotonic()
                self._show(answer, job_id_of(status_url))
                sleep(interval)
                interval, backoff = min(2 * interval, self._longest), self._first
                continue
            if answer is not None and answer.status not in TRANSIENT:
                return answer
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
        if task is not None and task.state == _TEMP_FAILED:
            what = f"was answered 503 for {human_seconds(silence)}: the job is in the state TEMP_FAILED"
            hint = f"resume it on the server with {self._resume(task.id)}, then continue the job"
        return poll_request(status_url).error(TerminalError, "extraction-timeout", what, hint=hint)

    def _resume(self, job_id: str) -> str:
        return self._context.command("extraction resume", job_id)

    def _show(self, answer: Answer, job_id: str) -> None:
        """Show the progress in a 202. For a paused or temporarily failed job, show the state of its Task."""
        told = read_progress(answer)
        state, text = told.state, told.text
        if state in (_PAUSED, _TEMP_FAILED) and (task := self._server.look(job_id)) is not None:
            state = task.state
        if state == _PAUSED:
            text = f"PAUSED on the server ({text}); resume it with {self._resume(job_id)}"
        elif state == _TEMP_FAILED:
            text = f"failed temporarily, the server tries again ({text})"
        if state and state != self._state:
            logger.info("extraction job %s: %s", job_id, state)
            if state == _PAUSED:
                self._context.meter.warn(f"the extraction is {text}")
        self._state = state or self._state
        self._context.meter.set_status(f"extracting: {text}", fraction=told.fraction, stands=state == _PAUSED)


def read_progress(answer: Answer) -> Progress:
    """Return the progress in a 202."""
    header, text = answer.headers.get("x-progress", ""), _last_informational(parse_json(answer.body))
    phrase, state = _PHRASE.match(header), _STATE.search(text)
    parts = [phrase[0] if phrase is not None else state[0] if state is not None else ""]
    fraction = None
    if (percent := _PERCENT.search(text) or _PERCENT.search(header)) is not None:
        fraction = min(100, int(percent[1])) / 100
        parts.append(f"{fraction:.0%}")
    if (size := _COHORT.search(text)) is not None:
        parts.append(f"cohort of {human_count(int(size[1]), 'patient')}")
    paused = _PAUSED if parts[0] == "Paused" else ""
    return Progress(", ".join(filter(None, parts)) or "running", fraction, state[0] if state is not None else paused)


def _last_informational(outcome: Any) -> str:
    texts = [
        text
        for issue in map(object_of, list_of(object_of(outcome).get("issue")))
        if isinstance(text := issue.get("diagnostics"), str)
        and (issue.get("code") == "informational" or issue.get("severity") == "information")
    ]
    return texts[-1] if texts else ""
