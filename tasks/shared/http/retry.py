"""Repeat calls after transient errors.

The type of the error decides, never its text. ``retry.max_attempts`` includes the first attempt. The wait is
``min(initial * 2^attempt, max)``, with attempts counted from 0, or the value of ``Retry-After`` if that is longer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

import tenacity

from config import RetryConfig
from tasks.shared.errors import TransientError
from tasks.shared.log import logger
from tasks.shared.meter import Held, Meter

MAX_RETRY_AFTER: Final = 3600.0
"""Longest ``Retry-After`` (seconds) that is obeyed: one that asks for a day would hold a run in silence."""


def wait_seconds(rules: RetryConfig, attempt: int, retry_after: float | None) -> float:
    """Return seconds to wait after failed ``attempt`` (from 0), when the service asked for ``retry_after``."""
    backoff: float = min(rules.initial_backoff_ms * 2 ** min(attempt, 64), rules.max_backoff_ms) / 1000
    return max(backoff, min(retry_after or 0.0, MAX_RETRY_AFTER))


def parse_retry_after(value: str | None) -> float | None:
    """Return seconds that a ``Retry-After`` header asks for: a number or an HTTP date; ``None`` when it is absent
    or not understood."""
    text = (value or "").strip()
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - time.time())


def retrying(
    rules: RetryConfig,
    *,
    service: str,
    meter: Meter,
    sleep: Callable[[float], None],
    retryable: Callable[[TransientError], bool] = lambda _: True,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> tenacity.Retrying:
    """Return a caller that repeats a function while it raises a ``TransientError``; thread-safe.

    Each wait shows on the meter. ``sleep`` takes seconds and may raise (``Stop.sleep`` does). After the last attempt,
    and before a wait for which there are not enough ``seconds_left``, the last error is raised as it is.
    """

    def failure(state: tenacity.RetryCallState) -> BaseException | None:
        return state.outcome.exception() if state.outcome else None

    def wait(state: tenacity.RetryCallState) -> float:
        return wait_seconds(rules, state.attempt_number - 1, getattr(failure(state), "retry_after", None))

    def announce(state: tenacity.RetryCallState) -> None:
        error, seconds = failure(state), state.upcoming_sleep
        why = str(getattr(error, "status", None) or getattr(error, "reference", ""))
        meter.retry(Held(service, why, seconds, state.attempt_number + 1, rules.max_attempts))
        logger.warning(
            "%s: %s failed (%s), attempt %d of %d, next one in %.1f s",
            service, getattr(error, "operation", "call"), why, state.attempt_number, rules.max_attempts, seconds,
        )  # fmt: skip

    return tenacity.Retrying(
        stop=lambda state: state.attempt_number >= rules.max_attempts or state.upcoming_sleep >= seconds_left(),
        wait=wait,
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, TransientError) and retryable(error)),
        before_sleep=announce,
        sleep=sleep,
        reraise=True,
    )
