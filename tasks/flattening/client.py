"""The client of the flattening service (document 3 §5): one batch, one request, rows as they come.

=========================  ===========================================================================================
``StalledError``           ``flattening-timeout``: longer than ``services.flattening.timeout``; not retried
``NetworkError``           ``flattening-silent``: no sign of life while the request ran; retried like the others of
                           ``tasks/shared/http/client.py``
``ServiceError``           ``flattening-failed``: 500, twice (the service answers everything with it, a bad view as much
                           as an exhausted heap); ``flattening-row``: a row that is no JSON object, or has a key
                           twice; ``flattening-rows-differ``: rows that are not those of the resources
                           (``answer.py``); ``flattening-answer``: 2xx, but no rows; those of
                           ``tasks/shared/http/client.py``
=========================  ===========================================================================================

A request is silent for minutes while the service works, and just as silent when the service is gone. So every 30 s
``/fhir/metadata`` is asked for; three failures in a row cancel the requests. An answer is a sign of life unless it is
5xx.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Self

import httpx
import tenacity

from tasks.flattening.answer import AnswerWriter, RowsDifferError
from tasks.flattening.batches import RequestBatch
from tasks.flattening.probe import HEADERS, endpoint, metadata, service, unlike_rows
from tasks.flattening.rows import NoRowError
from tasks.shared.errors import NetworkError, ServiceError, SluiceError, StalledError, Stopped, TransientError
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.http.answer import Answer, RefusedError, answer_of, place
from tasks.shared.http.client import ServiceClient
from tasks.shared.http.retry import announce, retrying
from tasks.shared.meter import Meter
from tasks.shared.step import StepContext
from tasks.shared.stop import SharedStop

INTERVAL: Final = 30.0
"""Seconds between two questions."""

ALLOWED: Final = 3
"""Failures in a row after which a request is cancelled."""

log = logging.getLogger("sluice.flattening")


@dataclass(eq=False)
class Watched:
    """A request that runs."""

    cancel: Callable[[], None]
    failures: int = 0
    silent: bool = False
    """It was cancelled because the service stopped answering."""


class Watchdog:
    """Calls ``ask`` (it raises when there is no sign of life) while anything is watched. Leaving its context ends it.

    ``interval`` in seconds.
    """

    def __init__(self, ask: Callable[[], None], *, interval: float) -> None:
        self._probe = ask
        self._interval = interval
        self._watched: list[Watched] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(self, cancel: Callable[[], None]) -> Iterator[Watched]:
        """Watch a request while the block runs. ``cancel`` is called in another thread, at most once."""
        watched = Watched(cancel)
        with self._lock:
            self._watched.append(watched)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sluice-watchdog", daemon=True)
                self._thread.start()
        try:
            yield watched
        finally:
            with self._lock:
                if watched in self._watched:
                    self._watched.remove(watched)

    def check_service(self) -> None:
        """Check the service once, and cancel the requests that must end."""
        with self._lock:
            before = list(self._watched)
        if not before:
            return
        alive = self._alive()
        with self._lock:
            for watched in before:
                watched.failures = 0 if alive else watched.failures + 1
                watched.silent = watched.failures >= ALLOWED
                if watched in self._watched and watched.silent:
                    self._watched.remove(watched)
                    watched.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        left = self._interval
        while not self._ended.wait(left):
            started = time.monotonic()
            try:
                self.check_service()
            except Stopped:
                return  # whoever is watched is stopped by the same
            left = max(0.0, self._interval - (time.monotonic() - started))

    def _alive(self) -> bool:
        try:
            self._probe()
        except TransientError as error:
            status = f"status {error.status}" if error.status else error.reference
            log.warning("flattening: the service does not answer for its metadata (%s)", status)
            return False
        except SluiceError:
            return True  # an answer, whatever it says
        return True


SERVICE: Final = "flattening"
OPERATION: Final = "$run"
METADATA_TIMEOUT: Final = 30.0
"""Seconds within which a service that is alive tells its metadata."""

_REFUSED: Final = frozenset(range(400, 500))
_PLAIN: Final = frozenset({"", "identity"})
_CANCELLED: Final = "the request was cancelled"


class _Connection(NamedTuple):
    """A client that can be cancelled without the others: it has a stop of its own."""

    client: ServiceClient
    stop: SharedStop


class Flattener:
    """Sends batches; thread-safe. Leaving its context closes the connections.

    ``together`` ends requests that are under way. ``interval`` (seconds) is that of the watchdog; ``sleep`` (seconds)
    is a seam for tests.
    """

    def __init__(
        self,
        context: StepContext,
        url: str,
        failed: FailedAnswers,
        together: SharedStop,
        *,
        interval: float = INTERVAL,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._context = context
        self._service = service(context.config)
        self._url = endpoint(url)
        self._metadata_url = metadata(url)
        self._timeout = context.config.services.flattening.timeout.total_seconds()
        self._failed = failed
        self._together = together
        self._sleep = sleep or together.sleep
        self._idle: list[_Connection] = []
        self._lock = threading.Lock()
        self._ending = SharedStop(together)
        told = Meter(shown_by=context.meter)  # no requests of the step's
        self._metadata = context.client(
            self._service, timeout=METADATA_TIMEOUT, stop=self._ending, meter=told, max_connections=1
        )
        self._watchdog = Watchdog(self._ask_for_metadata, interval=interval)

    def flatten(self, batch: RequestBatch, writer: AnswerWriter, *, where: str) -> None:
        """Send ``batch``, and give the rows of the answer to ``writer``; ``where`` stands in errors.

        Every attempt sends the same bytes, and begins the answer anew. Raises the errors above, ``StorageError`` and
        ``Stopped``.
        """
        failures = attempts = 0

        def retryable(error: TransientError) -> bool:
            nonlocal failures
            failures += error.status == 500
            return error.status != 500 or failures == 1

        def attempt() -> None:
            nonlocal attempts
            attempts += 1
            self._attempt(batch, writer, attempts)

        def log_retry(state: tenacity.RetryCallState, seconds: float) -> None:
            error = state.outcome.exception() if state.outcome else None
            most = 2 if getattr(error, "status", None) == 500 else self._context.config.retry.max_attempts
            meter = self._context.meter
            announce(meter, SERVICE, OPERATION, error, attempt=attempts, attempts=most, seconds=seconds)

        try:
            retrying(self._context.config.retry, sleep=self._sleep, retryable=retryable, before_wait=log_retry)(attempt)
        except NoRowError as problem:
            raise self._no_row(problem, where) from None
        except RowsDifferError as problem:
            raise self._rows_differ(problem, writer.last, where) from None
        except SluiceError as error:
            raise self._final(error, where) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with ExitStack() as last:
            last.callback(self._metadata.close)
            for connection in self._idle:
                last.callback(connection.client.close)
            self._ending.request("the step has ended")
            self._watchdog.__exit__(*exc)

    def _attempt(self, batch: RequestBatch, writer: AnswerWriter, attempt: int) -> None:
        writer.begin()
        connection = self._connection()
        try:
            with self._watchdog.watch(partial(connection.stop.request, _CANCELLED)) as watched:
                try:
                    with connection.client.stream(
                        "POST",
                        self._url,
                        operation=OPERATION,
                        content=batch.body,
                        headers=HEADERS,
                        whole=True,
                        attempt=attempt,
                    ) as response:
                        self._check(response)
                        for piece in response.iter_raw():
                            connection.stop.check()
                            writer.feed(piece)
                    writer.end()
                except (NoRowError, RowsDifferError):
                    writer.drop()
                    raise
                except Stopped:
                    raise self._cancelled(watched) from None
                except StalledError:
                    raise self._too_late() from None
                except NetworkError as error:
                    if error.reference == "timeout":
                        raise self._too_late() from None
                    raise
        finally:
            self._give_back(connection)

    def _cancelled(self, watched: Watched) -> SluiceError | Stopped:
        """Return the reason why a request was stopped: the watchdog, the run, or a failed request of another group."""
        if watched.silent:
            return NetworkError(
                "flattening-silent",
                f"{SERVICE}: {OPERATION} was cancelled: the service stopped answering",
                context=f"GET {place(self._metadata_url)}",
                hint="is the service still running? its log says why it stopped; the same command may succeed later",
                operation=OPERATION,
            )
        return Stopped(self._together.reason or "stopped")

    def _too_late(self) -> StalledError:
        return StalledError(
            "flattening-timeout",
            f"{SERVICE}: {OPERATION} was not answered within {self._timeout:g} s",
            context=f"POST {place(self._url)}",
            hint="lower services.flattening.batch_size_mb, or raise services.flattening.timeout",
            operation=OPERATION,
        )

    def _no_row(self, problem: NoRowError, where: str) -> ServiceError:
        hint = f"the row is in {self._failed.save_answer(problem.line)} in the job directory; it may quote data"
        if problem.number == 1:
            hint = f"is services.flattening.service_url that of a flattening service? {hint}"
        return self._wrong_rows("flattening-row", f"row {problem.number:,} of an answer {problem.what}", where, hint)

    def _rows_differ(self, problem: RowsDifferError, last: bytes, where: str) -> ServiceError:
        hint = "the service lost rows or mixed up requests: see its log; continuing the job asks again"
        if last:
            kept = self._failed.save_answer(last)
            hint += f"; the place in the answer is in {kept} in the job directory; it may quote data"
        return self._wrong_rows("flattening-rows-differ", str(problem), where, hint)

    def _wrong_rows(self, reference: str, message: str, where: str, hint: str) -> ServiceError:
        context = f"{where}, POST {place(self._url)}"
        return ServiceError(
            reference, f"{SERVICE}: {message}", context=context, hint=hint, operation=OPERATION, status=200
        )

    def _check(self, response: httpx.Response) -> None:
        """Raise an error unless the body can contain rows; its beginning is kept."""
        encoding = response.headers.get("content-encoding", "").strip().lower()
        what = unlike_rows(response.status_code, response.headers)
        if what is None and encoding not in _PLAIN:
            what = "an encoding that was not requested"
        if what is None:
            return
        raise RefusedError(
            "flattening-answer",
            f"{SERVICE}: {OPERATION} was answered {response.status_code} with {what}",
            context=f"POST {place(self._url)}",
            hint="is services.flattening.service_url the URL of a flattening service?",
            operation=OPERATION,
            status=response.status_code,
        ).made_from(Answer(response.status_code, response.headers, next(response.iter_raw(), b"")))

    def _final(self, error: SluiceError, where: str) -> SluiceError:
        """Add the place and the file with the answer to an error."""
        answer = answer_of(error)
        if error.status == 500:
            error = RefusedError(
                "flattening-failed",
                f"{error.message}, twice" if self._context.config.retry.max_attempts > 1 else error.message,
                context=error.context,
                hint="the service answers 500 to everything: see its log; if its memory was too small, lower "
                "services.flattening.batch_size_mb",
                operation=OPERATION,
                status=500,
            )
            if answer is not None:
                error.made_from(answer)
        elif error.status == 413:
            error.hint = "lower services.flattening.batch_size_mb, or raise the service's limit for a request"
        error.context = f"{where}, {error.context}" if error.context else where
        self._failed.save_answer_of(error)
        return error

    def _ask_for_metadata(self) -> None:
        self._metadata.send("GET", self._metadata_url, operation="metadata", retry=False, accept=_REFUSED)

    def _connection(self) -> _Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        stop = SharedStop(self._together)
        client = self._context.client(self._service, timeout=self._timeout, stop=stop, max_connections=1)
        return _Connection(client, stop)

    def _give_back(self, connection: _Connection) -> None:
        if connection.stop.requested:
            connection.client.close()  # a stop that was requested stays so
            return
        with self._lock:
            self._idle.append(connection)
