"""Repetition of calls: the conditions and the wait.

Document 3 §1: the type of the error decides, never its text; the number of attempts is
``retry.max_attempts``, the first one included; the wait is ``min(initial * 2^attempt, max)`` with the attempt
counted from 0, raised to the value of ``Retry-After``.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime

import tenacity

from config import RetryConfig
from tasks.shared.errors import ServiceBusyError, TransientError
from tasks.shared.meter import Meter

log = logging.getLogger("sluice.http")

MAX_RETRY_AFTER = 3600.0
"""Seconds. A longer ``Retry-After`` is cut to an hour: a service that announces a day would otherwise hold
a run in silence, and one request an hour does not harm a resting service."""

_SECONDS = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?\Z")


def backoff_seconds(rules: RetryConfig, attempt: int) -> float:
    """Return seconds to wait after failed ``attempt`` (counted from 0): ``min(initial * 2^attempt, max)``."""
    # The exponent is bounded only so that an absurd attempt number cannot build an absurd integer.
    return float(min(rules.initial_backoff_ms * 2 ** min(attempt, 64), rules.max_backoff_ms)) / 1000


def wait_seconds(rules: RetryConfig, attempt: int, retry_after: float | None) -> float:
    """Return seconds to wait after failed ``attempt`` (counted from 0), when the service asked for ``retry_after``.

    ``Retry-After`` can lengthen the wait, also beyond ``max_backoff_ms``, but not shorten it; it counts for
    at most ``MAX_RETRY_AFTER``.
    """
    return max(backoff_seconds(rules, attempt), min(retry_after or 0.0, MAX_RETRY_AFTER))


def parse_retry_after(value: str | None, *, now: Callable[[], float] = time.time) -> float | None:
    """Return seconds that a ``Retry-After`` header asks for; ``None`` when it is absent or not understood.

    The header holds seconds or an HTTP date (RFC 9110 §10.2.3); a date in the past asks for no wait.
    ``now`` gives the time in seconds since the epoch.
    """
    text = (value or "").strip()
    if not text or len(text) > 64:
        return None
    if _SECONDS.match(text):
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
        if moment.tzinfo is None:  # "-0000": HTTP dates are always in UTC
            moment = moment.replace(tzinfo=UTC)
        return max(0.0, moment.timestamp() - now())
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def announce(
    meter: Meter,
    service: str,
    operation: str,
    error: BaseException | None,
    *,
    attempt: int,
    attempts: int,
    seconds: float,
) -> None:
    """Report that ``attempt`` of ``attempts`` failed for now and the request is repeated after ``seconds``."""
    status = getattr(error, "status", None)
    why = f"status {status}" if status else str(getattr(error, "reference", type(error).__name__))
    meter.retry(service, error, attempt=attempt, attempts=attempts, seconds=seconds)
    log.warning(
        "%s: %s failed (%s), attempt %d of %d, next one in %.1f s", service, operation, why, attempt, attempts, seconds
    )


def announcing(meter: Meter, service: str, rules: RetryConfig) -> Callable[[tenacity.RetryCallState, float], None]:
    """Return a ``before_wait`` for ``retrying`` that announces each repetition by the operation in the error."""

    def before_wait(state: tenacity.RetryCallState, seconds: float) -> None:
        error, attempt = state.outcome.exception() if state.outcome else None, state.attempt_number
        operation = getattr(error, "operation", None) or "call"
        announce(meter, service, operation, error, attempt=attempt, attempts=rules.max_attempts, seconds=seconds)

    return before_wait


def retrying(
    rules: RetryConfig,
    *,
    sleep: Callable[[float], None],
    retryable: Callable[[TransientError], bool] = lambda _: True,
    before_wait: Callable[[tenacity.RetryCallState, float], None] = lambda _state, _seconds: None,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> tenacity.Retrying:
    """Return a caller that repeats a function while it raises a ``TransientError``; thread-safe.

    ``sleep`` takes seconds and may raise (``Stop.sleep`` does, when the run is to stop). ``before_wait`` is
    called before every wait. After the last attempt, and before a wait for which there are not enough ``seconds_left``,
    the last error is raised as it is.
    """

    def again(error: BaseException) -> bool:
        return isinstance(error, TransientError) and retryable(error)

    def wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after if isinstance(error, ServiceBusyError) else None
        return wait_seconds(rules, state.attempt_number - 1, asked)

    def report_wait(state: tenacity.RetryCallState) -> None:
        before_wait(state, state.upcoming_sleep)

    def over(state: tenacity.RetryCallState) -> bool:
        return state.attempt_number >= rules.max_attempts or state.upcoming_sleep >= seconds_left()

    return tenacity.Retrying(
        stop=over,
        wait=wait,
        retry=tenacity.retry_if_exception(again),
        before_sleep=report_wait,
        sleep=sleep,
        reraise=True,
    )
