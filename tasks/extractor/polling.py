"""Waiting for an extraction: one poll after the other, read as document 1's table says ("States and transitions").

The interval begins at ``polling_interval`` and doubles after every answer that says the job is in progress, up to
``max_polling_interval``. After a transient failure the wait has a back-off of its own, within the same bounds. There is
no limit for the whole wait; it ends when neither a 200 nor a 202 came for ``extraction_timeout``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from config import ExtractorConfig
from tasks.extractor import failures
from tasks.extractor.client import TRANSIENT, ExtractionClient
from tasks.extractor.diagnostics import progress_text
from tasks.shared.errors import ServiceError, SluiceError, TransientError
from tasks.shared.http.answer import Answer
from tasks.shared.http.retry import MAX_RETRY_AFTER, parse_retry_after
from tasks.shared.log import logger
from tasks.shared.meter import Meter
from tasks.shared.step import Handle

RUNNING = frozenset({102, 202})
GONE = frozenset({404, 410})


@dataclass(frozen=True)
class Gone:
    """The job's handle is dead; ``status`` is 404 or 410."""

    status: int


class Poller:
    """Polls one server for one run of a step.

    ``clock`` gives seconds that only ever grow, ``sleep`` takes seconds and may raise ``Stopped``.
    """

    def __init__(
        self,
        client: ExtractionClient,
        config: ExtractorConfig,
        progress: Meter,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._client = client
        self._first = config.polling_interval.total_seconds()
        self._longest = max(config.max_polling_interval.total_seconds(), self._first)
        self._window = config.extraction_timeout.total_seconds()
        self._progress = progress
        self._clock = clock
        self._sleep = sleep
        self._ask_task = True

    def wait(self, status_url: str, handle: Handle | None) -> Answer | Gone:
        """Poll until the job is complete (the 200) or gone. ``handle`` is ``None`` for a direct result URL, of which an
        immediate 200 is expected.

        Raises ``ServiceError`` (``extraction-failed``, and other answers that end it), ``ServiceBusyError``
        (``result-not-complete``), ``TerminalError`` (``extraction-timeout``), ``Stopped``.
        """
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
                    self._show(answer, handle)
                    self._sleep(interval)
                    interval, backoff = min(2 * interval, self._longest), self._first
                    continue
                if answer.status in GONE:
                    return Gone(answer.status)
                if answer.status not in TRANSIENT:
                    raise failures.failed(status_url, answer)
                asked = parse_retry_after(answer.headers.get("retry-after"))
                logger.info("extractor: poll was answered %d, asking again", answer.status)
                self._progress.say(f"extracting: the server answered {answer.status}, asking again")
            silence = self._clock() - contact
            if silence > self._window:
                raise failures.extraction_timeout(status_url, silence)
            self._rest(max(backoff, min(asked or 0.0, MAX_RETRY_AFTER)), contact)
            backoff = min(2 * backoff, self._longest)

    def _poll(self, status_url: str) -> Answer | None:
        """One answer; ``None`` when none came, which only the liveness window limits."""
        try:
            return self._client.poll(status_url)
        except TransientError as error:
            logger.info("extractor: poll failed (%s), asking again", error.reference)
            self._progress.say(f"extracting: no answer ({error.reference}), asking again")
            return None

    def _rest(self, seconds: float, contact: float) -> None:
        """Sleep, but not beyond the moment at which the silence has become too long."""
        left = self._window - (self._clock() - contact)
        # A little more than what is left: the poll after it is the last one.
        self._sleep(min(seconds, max(left, 0.0) + 0.1))

    def _show(self, answer: Answer, handle: Handle) -> None:
        """Say how far the job is: from its Task, else from the text of the answer. Best effort."""
        text, fraction = progress_text(answer)
        known = self._from_task(handle.job_id)
        if known is not None:
            text, fraction = known
        self._progress.say(f"extracting: {text}", fraction=fraction)

    def _from_task(self, job_id: str) -> tuple[str, float | None] | None:
        if not self._ask_task:
            return None
        try:
            task = self._client.task(job_id, brief=True)
        except ServiceError as error:
            # This server has no Task API, or not for us: not again in this run (document 3 §2).
            self._ask_task = False
            logger.info("extractor: no Task to read progress from (%s)", error.reference)
            return None
        except SluiceError:
            return None
        if task.progress is None:
            return None
        return task.progress.describe() or "running", task.progress.fraction
