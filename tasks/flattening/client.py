"""The client of the flattening service (document 3 §5): one batch, one request, rows as they come.

=========================  ===========================================================================================
``StalledError``           ``flattening-timeout``: longer than ``services.flattening.timeout``; not retried
``ServiceError``           ``flattening-failed``: 500 to all attempts (the service answers everything with it, a bad
                           view as much as an exhausted heap); ``flattening-row``: a row that is no JSON object;
                           ``flattening-rows-differ``: rows that are not those of the resources (``answer.py``);
                           ``flattening-answer``: 2xx, but no rows; those of ``tasks/shared/http/client.py``
=========================  ===========================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Self

import httpx

from tasks.flattening.answer import AnswerWriter, RowsDifferError
from tasks.flattening.batches import RequestBatch
from tasks.flattening.probe import HEADERS, endpoint, service, unlike_rows
from tasks.flattening.rows import NoRowError
from tasks.shared.errors import NetworkError, ServiceError, SluiceError, StalledError
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.http_old.answer import Answer, RefusedError, answer_of, place
from tasks.shared.step import StepContext
from tasks.shared.stop import Stop

SERVICE: Final = "flattening"
OPERATION: Final = "$run"

_PLAIN: Final = frozenset({"", "identity"})


class Flattener:
    """Sends batches; thread-safe. Leaving its context closes the ``connections``.

    ``stop`` ends requests that are under way; ``sleep`` (seconds) is a seam for tests.
    """

    def __init__(
        self,
        context: StepContext,
        url: str,
        failed: FailedAnswers,
        stop: Stop,
        *,
        connections: int,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._url = endpoint(url)
        self._timeout = context.config.services.flattening.timeout.total_seconds()
        self._failed = failed
        self._stop = stop
        self._client = context.old_client(
            service(context.config), timeout=self._timeout, stop=stop, max_connections=connections, sleep=sleep
        )

    def flatten(self, batch: RequestBatch, writer: AnswerWriter, *, where: str) -> None:
        """Send ``batch``, and give the rows of the answer to ``writer``; ``where`` stands in errors.

        Every attempt sends the same bytes, and begins the answer anew. Raises the errors above, ``StorageError`` and
        ``Stopped``.
        """
        try:
            self._client.repeat_call(partial(self._attempt, batch, writer))
        except NoRowError as problem:
            raise self._no_row(problem, where) from None
        except RowsDifferError as problem:
            raise self._rows_differ(problem, writer.last, where) from None
        except SluiceError as error:
            raise self._final(error, where) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def _attempt(self, batch: RequestBatch, writer: AnswerWriter, attempt: int) -> None:
        writer.begin()
        try:
            with self._client.stream(
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
                    self._stop.check()
                    writer.feed(piece)
            writer.end()
        except (NoRowError, RowsDifferError):
            writer.drop()
            raise
        except StalledError:
            raise self._too_late() from None
        except NetworkError as error:
            if error.reference == "timeout":
                raise self._too_late() from None
            raise

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
        return self._wrong_rows("flattening-row", f"row {problem.number:,} of an answer is no JSON object", where, hint)

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
                error.message,
                context=error.context,
                hint="the service answers every failure with 500: see its log. The view of the group may be wrong; if "
                "the memory of the service was too small, lower services.flattening.batch_size_mb",
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
