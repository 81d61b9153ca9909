"""Events of a run: their run and step, retries from the client's log, and an end for every way a run ends."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import httpx
import pytest

from config import RetryConfig, TlsConfig
from flows.job.record import JobRecord, Run, next_run, timestamp
from flows.job.running.state import JobState
from flows.reports.events import Export, JobEvent, StepEvent
from flows.reports.journal import EventLog, Journal
from tasks.shared.errors import InputError, NetworkError, ServiceBusyError
from tasks.shared.events import Event, RequestRetry, Status
from tasks.shared.http.client import ServiceClient
from tasks.shared.meter import Meter
from tasks.shared.report import Approval, StepReport
from tests.peers.events import read_events

JOB = "368f91e2-dd1f-4d71-8c99-58332d55a824"
STEPS = ("http_import", "send")
RUN = Run(number=1, created="2026-01-01T00:00:00.000Z", began="2026-01-01T00:00:00.000Z")


def events(directory: Path) -> list[Event]:
    return [entry.event for entry in read_events(directory)]


def heads(directory: Path) -> list[tuple[int, str | None, int | None]]:
    return [(entry.head.run, entry.head.step, entry.head.position) for entry in read_events(directory)]


def opened(directory: Path, number: int = 1) -> Journal:
    return Journal.opened(directory, JOB, STEPS, RUN.model_copy(update={"number": number}))


def states(directory: Path) -> list[str]:
    return [entry.event.state for entry in read_events(directory) if isinstance(entry.event, JobEvent)]


def test_the_first_run_is_created_and_started_later_ones_are_resumed(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        with opened(tmp_path, number) as journal:
            journal.ends("failed", error="disk-full")
    assert states(tmp_path) == ["created", "started", "failed", "resumed", "failed", "resumed", "failed"]
    assert [run for run, _, _ in heads(tmp_path)] == [1, 1, 1, 2, 2, 3, 3]
    first = events(tmp_path)[0]
    assert isinstance(first, JobEvent)
    assert first.steps == list(STEPS)


def test_times_of_a_run_never_go_back_when_the_clock_of_the_machine_does(tmp_path: Path) -> None:
    began = datetime(2026, 3, 2, 9, 15, tzinfo=UTC)
    clock = iter([began + timedelta(seconds=2), began - timedelta(hours=1), began + timedelta(seconds=3)])
    with EventLog(tmp_path) as log:
        journal = Journal(JOB, log, RUN, clock=lambda: next(clock))
        for _ in range(3):
            journal.record_event(Status(message="x"))
    assert [entry.head.time[14:19] for entry in read_events(tmp_path)] == ["15:02", "15:02", "15:03"]


def test_events_belong_to_the_step_that_runs(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.at("http_import", 1)
        journal.record_event(StepEvent(state="running"))
        Meter(collector=journal.record_event).set_status("downloading")
        journal.at("send", 2)
        journal.record_event(StepEvent(state="running"))
        journal.ends("completed")
    nothing = (1, None, None)
    assert heads(tmp_path) == [
        nothing, nothing, (1, "http_import", 1), (1, "http_import", 1), (1, "send", 2), nothing,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("left", "state", "error", "reason"),
    [
        (InputError("steps-changed", "x"), "failed", "steps-changed", None),
        (RuntimeError("text that may quote data"), "failed", "internal", None),
        (KeyboardInterrupt(), "stopped", None, "KeyboardInterrupt"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_run_that_an_exception_ends_has_an_end(
    tmp_path: Path, left: BaseException, state: str, error: str | None, reason: str | None
) -> None:
    with pytest.raises(type(left)), opened(tmp_path):
        raise left
    assert events(tmp_path)[-1] == JobEvent(state=state, error=error, reason=reason)  # type: ignore[arg-type]
    assert b"quote" not in (tmp_path / "events.ndjson").read_bytes()


def test_an_end_is_told_once(tmp_path: Path) -> None:
    def park(journal: Journal) -> None:
        journal.ends("waiting")
        raise KeyboardInterrupt  # Prefect leaves a parked flow with an exception too

    with pytest.raises(KeyboardInterrupt), opened(tmp_path) as journal:
        park(journal)
    assert states(tmp_path) == ["created", "started", "waiting"]


def client(handler: httpx.MockTransport, journal: Journal) -> ServiceClient:
    retry = RetryConfig(max_attempts=3, initial_backoff_ms=1000, max_backoff_ms=1500)
    meter = Meter(collector=journal.record_event)
    return ServiceClient(
        "services.send", tls=TlsConfig(), retry=retry, meter=meter, transport=handler, sleep=lambda _: None
    )


def refuse(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


@pytest.mark.parametrize(
    ("handler", "error", "status", "reference"),
    [
        (lambda _: httpx.Response(503, text="Patient Meier"), ServiceBusyError, 503, None),
        (refuse, NetworkError, None, "connect-failed"),
    ],
)
def test_every_retry_of_a_service_client_is_an_event(
    tmp_path: Path, handler: object, error: type[Exception], status: int | None, reference: str | None
) -> None:
    transport = httpx.MockTransport(handler)  # type: ignore[arg-type]
    with opened(tmp_path) as journal, client(transport, journal) as service:
        journal.at("send", 2)
        with pytest.raises(error):
            service.send("GET", "http://service.test/fhir?name=Meier", operation="ask")
    told = [entry for entry in read_events(tmp_path) if isinstance(entry.event, RequestRetry)]
    assert [(entry.head.step, entry.head.position) for entry in told] == [("send", 2)] * 2
    assert [entry.event for entry in told] == [
        RequestRetry(
            service="send", operation="ask", attempt=attempt, attempts=3, wait=wait, status=status, error=reference
        )
        for attempt, wait in ((1, 1.0), (2, 1.5))
    ]
    assert b"Meier" not in (tmp_path / "events.ndjson").read_bytes()


def test_after_the_run_retries_are_no_events_of_it(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.ends("completed")
    before = events(tmp_path)
    with client(httpx.MockTransport(refuse), journal) as service, pytest.raises(NetworkError):
        service.send("GET", "http://service.test/", operation="ask")
    assert events(tmp_path) == before


def test_a_new_text_of_a_step_is_a_status_and_the_same_one_is_not() -> None:
    told: list[Event] = []
    progress = Meter(collector=told.append)
    progress.set_status("submitting")
    progress.set_status("extracting: 1 of 7", fraction=0.1)
    progress.set_status("extracting: 1 of 7", fraction=0.1)
    progress.set_status(fraction=0.2)
    progress.begin("downloading")
    assert told == [
        Status(message="submitting"),
        Status(message="extracting: 1 of 7", fraction=0.1),
        Status(message="downloading"),
    ]


def test_without_a_collector_nobody_listens() -> None:
    Meter().record_event(Status(message="x"))


def test_send_tells_what_was_delivered(tmp_path: Path) -> None:
    counts = {"files": 3, "resources_in": 20, "resources_out": 19, "bytes_in": 5, "bytes_out": 4, "seconds": 0.5}
    step = StepReport(position=2, name="send", state="completed", warnings=("odd",), **counts)
    with opened(tmp_path) as journal:
        journal.completed(step, mode="transfer_load")
        journal.completed(step.model_copy(update={"name": "http_import"}))
        journal.ends("completed")
    completed = StepEvent(state="completed", warnings=1, **counts)  # type: ignore[arg-type]
    assert events(tmp_path)[2:4] == [completed, Export(mode="transfer_load", files=3, resources=19, bytes=4)]
    assert not isinstance(events(tmp_path)[5], Export)


def test_times_are_utc_with_milliseconds(tmp_path: Path) -> None:
    moment = datetime(2026, 3, 2, 10, 15, 19, 102999, tzinfo=timezone(timedelta(hours=1)))
    assert timestamp(moment) == "2026-03-02T09:15:19.102Z"
    with EventLog(tmp_path) as log:
        Journal(JOB, log, RUN, clock=lambda: datetime(2026, 1, 1, tzinfo=UTC)).ends("completed")
    assert [entry.head.time for entry in read_events(tmp_path)] == ["2026-01-01T00:00:00.000Z"]


def record(run: Run | None, *states: str) -> JobRecord:
    steps = tuple(StepReport(position=at, name="send", state=state) for at, state in enumerate(states, start=1))  # type: ignore[arg-type]
    return JobRecord(id=JOB, name="n", state=JobState.RUNNING, run=run, steps=steps)


def test_runs_are_counted_in_the_record_and_the_created_time_is_that_of_the_first() -> None:
    first = next_run(record(None, "pending", "pending"))
    assert (first.number, first.created) == (1, first.began)
    second = next_run(record(first, "completed", "pending"))
    assert (second.number, second.created) == (2, first.created)
    assert second.began >= first.began


def test_a_run_never_begins_before_its_predecessor_even_if_the_clock_was_set_back() -> None:
    later = RUN.model_copy(update={"began": "2999-01-01T00:00:00.000Z"})
    assert next_run(record(later)).began == later.began


def test_a_job_that_a_version_before_began_is_not_created_anew() -> None:
    """Prefect's count passes over the runs that went on from a form: each has left one."""
    before = record(None, "completed", "pending").model_copy(
        update={"created": "2026-01-02T03:04:05.678901+00:00", "run_count": 2, "forms": {2: "paused-2-response"}}
    )
    run = next_run(before)
    assert (run.number, run.created) == (3, "2026-01-02T03:04:05.678Z")
    waits = record(None, "pending").model_copy(update={"approvals": {1: Approval(approved=True)}})
    assert next_run(waits).number == 2


def test_a_run_killed_before_its_first_event_leaves_the_start_event_to_the_next(tmp_path: Path) -> None:
    with opened(tmp_path, 2) as journal:
        journal.ends("completed")
    assert states(tmp_path) == ["created", "started", "completed"]


def test_the_summary_of_a_job_and_its_log_name_the_same_moments(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        Journal(JOB, log, RUN).begins(STEPS, first=log.empty)
    second = Run(number=2, created=RUN.created, began="2026-01-02T00:00:00.000Z")
    with EventLog(tmp_path) as log:
        Journal(JOB, log, second).begins(STEPS, first=log.empty)
    assert [entry.head.time for entry in read_events(tmp_path)] == [RUN.created, RUN.began, second.began]


def test_what_is_told_of_a_parked_job_belongs_to_the_run_and_step_that_parked_it(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        Journal(JOB, log, RUN, step=("wait", 2)).ends("cancelled", reason="cancel")
    assert heads(tmp_path) == [(1, "wait", 2)]


def test_events_of_several_threads_stand_in_the_order_of_their_times(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        work = [
            threading.Thread(target=lambda: [journal.record_event(Status(message="x")) for _ in range(200)])
            for _ in range(2)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
    times = [entry.head.time for entry in read_events(tmp_path)]
    assert len(times) == 402
    assert times == sorted(times)
