from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import RetryConfig
from tasks.shared.errors import NetworkError, ServiceBusyError, ServiceError, Stopped
from tasks.shared.http.retry import MAX_RETRY_AFTER, backoff_seconds, parse_retry_after, retrying, wait_seconds
from tests.peers.client import Sleeps

NOON = datetime(2026, 3, 2, 12, 0, 0, tzinfo=UTC)


def rules(attempts: int = 5, initial: int = 1000, longest: int = 30000) -> RetryConfig:
    return RetryConfig(max_attempts=attempts, initial_backoff_ms=initial, max_backoff_ms=longest)


def busy(retry_after: float | None = None) -> ServiceBusyError:
    error = ServiceBusyError("service-busy", "busy")
    error.retry_after = retry_after
    return error


def test_wait_is_initial_times_two_to_the_attempt_up_to_max() -> None:
    waits = [backoff_seconds(rules(), attempt) for attempt in range(7)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10_000))
def test_wait_is_never_above_max_and_never_falls(initial: int, longest: int, attempt: int) -> None:
    block = rules(initial=initial, longest=longest)
    assert 0 <= backoff_seconds(block, attempt) <= longest / 1000
    assert backoff_seconds(block, attempt) <= backoff_seconds(block, attempt + 1)


@given(st.integers(0, 9), st.floats(0, 10**9))
def test_retry_after_lengthens_the_wait_and_never_shortens_it(attempt: int, asked: float) -> None:
    wait = wait_seconds(rules(), attempt, asked)
    assert wait >= backoff_seconds(rules(), attempt)
    assert wait >= min(asked, MAX_RETRY_AFTER)
    assert wait <= max(MAX_RETRY_AFTER, 30.0)


def test_retry_after_beyond_an_hour_counts_as_an_hour() -> None:
    assert wait_seconds(rules(), 0, 86400) == MAX_RETRY_AFTER == 3600


@given(st.integers(0, 10**12))
def test_retry_after_in_seconds(seconds: int) -> None:
    assert parse_retry_after(f" {seconds} ") == seconds


@given(st.integers(-(10**6), 10**6))
def test_retry_after_as_http_date_is_the_time_until_then(seconds: int) -> None:
    now = NOON.timestamp()
    text = format_datetime(datetime.fromtimestamp(now + seconds, tz=UTC), usegmt=True)
    assert parse_retry_after(text, now=lambda: now) == max(0, seconds)


@pytest.mark.parametrize(
    "text", ["Mon, 02 Mar 2026 12:00:30 GMT", "Monday, 02-Mar-26 12:00:30 GMT", "Mon Mar  2 12:00:30 2026"]
)
def test_retry_after_takes_the_three_forms_of_an_http_date(text: str) -> None:
    assert parse_retry_after(text, now=NOON.timestamp) == 30


@pytest.mark.parametrize("text", [None, "", "soon", "-5", "1e9", "0x10", "12 34", "Mon, 99 Foo 2026 99:99:99 GMT", "٣"])
def test_retry_after_that_is_not_understood_is_ignored(text: str | None) -> None:
    assert parse_retry_after(text) is None


@given(st.text(max_size=100))
def test_any_retry_after_gives_a_wait_or_none(text: str) -> None:
    wait = parse_retry_after(text)
    assert wait is None or wait >= 0


def test_max_attempts_counts_the_first_one_and_the_last_error_is_raised() -> None:
    sleeps, raised = Sleeps(), [busy(), NetworkError("timeout", "late"), busy()]
    errors = iter(raised)

    def fail() -> None:
        raise next(errors)

    with pytest.raises(ServiceBusyError) as caught:
        retrying(rules(attempts=3), sleep=sleeps)(fail)
    assert caught.value is raised[2]
    assert sleeps == [1.0, 2.0]


def test_one_attempt_never_waits() -> None:
    sleeps = Sleeps()
    with pytest.raises(ServiceBusyError):
        retrying(rules(attempts=1), sleep=sleeps)(lambda: (_ for _ in ()).throw(busy()))
    assert sleeps == []


def test_each_wait_is_raised_to_the_retry_after_of_its_own_error() -> None:
    sleeps = Sleeps()
    errors = iter([busy(20), busy(), busy(0.5)])

    def call() -> str:
        for error in errors:
            raise error
        return "done"

    assert retrying(rules(), sleep=sleeps)(call) == "done"
    assert sleeps == [20.0, 2.0, 4.0]


@pytest.mark.parametrize("error", [ServiceError("service-refused", "no"), ValueError("x")])
def test_terminal_errors_are_not_repeated(error: Exception) -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        raise error

    with pytest.raises(type(error)):
        retrying(rules(), sleep=Sleeps())(fail)
    assert len(calls) == 1


def test_a_stop_during_the_wait_ends_it() -> None:
    def stopping(_: float) -> None:
        raise Stopped("signal")

    with pytest.raises(Stopped):
        retrying(rules(), sleep=stopping)(lambda: (_ for _ in ()).throw(busy()))
