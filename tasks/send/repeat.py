"""Calls that are repeated here, because ``ServiceClient`` cannot: it sees a request that must be signed anew, or an
answer whose content says that it is transient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from config import RetryConfig
from tasks.shared.errors import ServiceBusyError, TransientError
from tasks.shared.http.retry import announce, wait_seconds
from tasks.shared.meter import Meter

R = TypeVar("R")


def repeated(
    work: Callable[[], R],
    *,
    kinds: tuple[type[TransientError], ...],
    rules: RetryConfig,
    meter: Meter,
    sleep: Callable[[float], None],
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> R:
    """Return what ``work`` returns, called again after an error of these ``kinds`` as the retry block says.

    ``sleep`` takes seconds and may raise. After the last attempt, and before a wait for which there are not enough
    ``seconds_left``, the error is raised as it is.
    """
    attempt = 0
    while True:
        attempt += 1
        try:
            return work()
        except kinds as error:
            asked = error.retry_after if isinstance(error, ServiceBusyError) else None
            seconds, attempts = wait_seconds(rules, attempt - 1, asked), rules.max_attempts
            if attempt >= attempts or seconds >= seconds_left():
                raise
            operation = error.operation or "call"
            announce(meter, "send", operation, error, attempt=attempt, attempts=attempts, seconds=seconds)
            meter.retried()
            sleep(seconds)
