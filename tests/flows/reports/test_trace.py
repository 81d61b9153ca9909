"""Traces: job → step → download, once an SDK is configured; nothing without one (docs/observability.md).

The provider of the first tests is a small one on OpenTelemetry's API, which is all that Sluice uses; the later ones
take the SDK's own. Whole runs are in ``test_traced_run.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace import TracerProvider as SdkProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span, SpanContext, Status, StatusCode, Tracer, TracerProvider

from flows.reports.events import Entry, Gate, Head, Job, Step
from flows.reports.trace import PATIENCE, Trace, hand_over
from tasks.shared.events import Download, Event, RequestRetry


@dataclass
class Kept(Span):
    """A span that remembers."""

    name: str
    parent: Span | None
    start: int
    attributes: dict[str, Any]
    events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    status: Status | None = None
    ended: int | None = None

    def end(self, end_time: int | None = None) -> None:
        assert self.ended is None, "ended twice"
        self.ended = end_time

    def get_span_context(self) -> SpanContext:
        return trace.INVALID_SPAN_CONTEXT

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self.attributes |= attributes

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        self.events.append((name, attributes))

    def update_name(self, name: str) -> None:
        raise NotImplementedError

    def is_recording(self) -> bool:
        return True

    def set_status(self, status: Any, description: str | None = None) -> None:
        self.status = status

    def record_exception(self, *_: Any, **__: Any) -> None:
        raise AssertionError("an exception may quote data")


class Provider(TracerProvider, Tracer):
    """Keeps every span."""

    def __init__(self) -> None:
        self.spans: list[Kept] = []

    def get_tracer(self, *_: Any, **__: Any) -> Tracer:
        return self

    def start_span(self, name: str, context: Any = None, **options: Any) -> Span:
        parent = trace.get_current_span(context) if context else None
        span = Kept(name, parent, options["start_time"], dict(options["attributes"]))
        self.spans.append(span)
        return span

    @contextmanager
    def start_as_current_span(self, *_: Any, **__: Any) -> Iterator[Span]:  # type: ignore[override]
        raise NotImplementedError
        yield


def told(listener: Trace, events: Sequence[tuple[float, str | None, Event]]) -> None:
    for second, step, event in events:
        position = {"http_import": 1, "send": 2}.get(step or "")
        head = Head(time=f"2026-03-02T09:15:{second:06.3f}Z", job="j", run=2, step=step, position=position)
        listener.tell(Entry(head, event))


RUN: list[tuple[float, str | None, Event]] = [
    (1, None, Job(state="resumed")),
    (2, "http_import", Step(state="running")),
    (5, "http_import", Download(file="core.ndjson", bytes=10, lines=1, seconds=2.5, sha256="00")),
    (6, "http_import", Step(state="completed", files=1, requests=3, retries=1, p50=0.5)),
    (6, "send", Step(state="running")),
    (7, "send", RequestRetry(service="send", operation="post", attempt=1, attempts=2, wait=1.0, status=503)),
    (9, "send", Step(state="failed", error="service-busy")),
    (9, "send", Job(state="failed", error="service-busy")),
]


def test_a_run_is_a_trace_of_job_steps_and_downloads() -> None:
    provider = Provider()
    told(Trace(provider), RUN)
    job, imported, download, send = provider.spans
    assert [span.name for span in provider.spans] == ["job", "step http_import", "download", "step send"]
    assert (job.parent, imported.parent, send.parent, download.parent) == (None, job, job, imported)
    assert job.attributes["sluice.job.id"] == "j"
    assert job.attributes["sluice.job.run"] == 2
    assert imported.attributes == {
        "sluice.step.name": "http_import", "sluice.step.position": 1, "sluice.files": 1, "sluice.requests": 3,
        "sluice.retries": 1, "sluice.p50": 0.5, "sluice.state": "completed",
    }  # fmt: skip
    second = 1_000_000_000
    assert download.ended is not None
    assert imported.ended is not None
    assert (download.ended - download.start, imported.ended - imported.start) == (2.5 * second, 4 * second)
    assert all(span.ended is not None for span in provider.spans)


def test_a_failure_is_told_by_its_reference_and_a_retry_is_an_event_of_its_step() -> None:
    provider = Provider()
    told(Trace(provider), RUN)
    job, _, _, send = provider.spans
    for span in (job, send):
        assert span.attributes["error.type"] == "service-busy"
        assert span.status is not None
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "service-busy")
    ((name, attributes),) = send.events
    assert name == "request-retry"
    assert attributes["sluice.status"] == 503
    assert "sluice.error" not in attributes


@pytest.mark.parametrize("state", ["waiting", "stopped", "cancelled", "completed"])
def test_an_end_that_is_no_failure_has_no_error_status(state: Any) -> None:
    provider = Provider()
    told(Trace(provider), [*RUN[:2], (3, "http_import", Job(state=state))])
    assert [(span.status, span.attributes["sluice.state"]) for span in provider.spans] == [(None, state)] * 2


def test_events_outside_of_a_run_make_no_span() -> None:
    provider = Provider()
    told(Trace(provider), [(1, None, Job(state="cancelled")), (2, None, Gate(state="open", findings=0, resources=0))])
    assert provider.spans == []


def test_without_an_sdk_nothing_is_recorded() -> None:
    listener = Trace()
    told(listener, RUN[:2])
    assert listener._job is not None
    assert not listener._job.is_recording()
    told(listener, RUN[2:])


def recorded() -> tuple[SdkProvider, InMemorySpanExporter]:
    """A provider of the SDK, and what it exports."""
    exporter = InMemorySpanExporter()
    provider = SdkProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def test_with_the_sdk_the_spans_reach_its_exporter() -> None:
    provider, exporter = recorded()
    told(Trace(provider), RUN)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"job", "step http_import", "download", "step send"}
    assert len({span.context.trace_id for span in spans.values() if span.context}) == 1
    assert parent(spans["download"]) == identity(spans["step http_import"])
    assert parent(spans["step send"]) == parent(spans["step http_import"]) == identity(spans["job"])
    assert parent(spans["job"]) is None
    assert spans["step send"].status.status_code is StatusCode.ERROR
    assert [event.name for event in spans["step send"].events] == ["request-retry"]
    assert {span.instrumentation_scope.name for span in spans.values() if span.instrumentation_scope} == {"sluice"}


def identity(span: ReadableSpan) -> int | None:
    return span.context.span_id if span.context else None


def parent(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def test_the_job_record_is_blanked_in_a_span_that_prefect_made_around_the_run() -> None:
    provider, exporter = recorded()
    labels = {"job.approval.2": "Canary is fine", "job.config": "somewhere", "prefect.run.type": "flow"}
    with provider.get_tracer("prefect").start_as_current_span("config 2026-03-02", attributes=labels):
        told(Trace(provider), RUN)
    around = exporter.get_finished_spans()[-1]
    assert dict(around.attributes or {}) == {"job.approval.2": "", "job.config": "", "prefect.run.type": "flow"}


class Slow(Provider):
    """A provider with an SDK's ways out; its collector answers when it is let, or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.answered = threading.Event()
        self.closed = threading.Event()
        self.error = error

    def force_flush(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.answered.wait(60)

    def shutdown(self) -> None:
        self.closed.set()


def test_at_the_end_of_a_run_its_spans_are_handed_over() -> None:
    provider = Slow()
    provider.answered.set()
    told(Trace(provider), RUN)
    assert not provider.closed.is_set()


def test_a_collector_that_does_not_answer_is_waited_for_less_than_a_second_and_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert PATIENCE < 1
    provider = Slow()
    try:
        hand_over(provider, patience=0.01)
        # Else the SDK waits for it at the exit of the process.
        assert provider.closed.wait(30)
    finally:
        provider.answered.set()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_an_exporter_that_fails_fails_no_run_and_its_text_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    hand_over(Slow(RuntimeError("canary")), patience=30)
    assert [record.getMessage() for record in caplog.records] == ["the spans of this run were not sent (RuntimeError)"]


def test_the_api_alone_has_nothing_to_hand_over(caplog: pytest.LogCaptureFixture) -> None:
    hand_over(Provider())
    assert caplog.records == []
