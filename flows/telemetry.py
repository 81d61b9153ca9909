"""OpenTelemetry traces of a run, made from its events: a span for the job, below it one for each step, below that one
for each download; what happens at a moment (kick-off, status, retry, wait, gate) is an event of the span.

Only the API of OpenTelemetry is used, which does nothing until somebody configures an SDK, as
``opentelemetry-instrument`` does from ``OTEL_*`` variables (``docs/observability.md``); before that nothing is recorded
and nothing is sent. Requests have no spans of their own: their number, retries and percentiles are attributes of the
step's.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode, Tracer, TracerProvider

from flows.events import Entry, Job, Step, kind_of
from tasks.shared.events import Download, Event

NAME = "sluice"
"""The instrumentation scope, and the prefix of every attribute."""


class Trace:
    """The spans of one run of a job. Takes the run's events in order; may be called from any thread.

    ``provider`` is the process's own unless a test gives one.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer: Tracer = trace.get_tracer(NAME, tracer_provider=provider)
        self._job: Span | None = None
        self._step: Span | None = None

    def tell(self, entry: Entry) -> None:
        """Take in one event."""
        event, at = entry.event, _nanoseconds(entry.head.time)
        match event:
            case Job(state="created"):
                return
            case Job(state="started" | "resumed"):
                known: dict[str, Any] = {"sluice.job.id": entry.head.job, "sluice.job.run": entry.head.run}
                self._job = self._tracer.start_span("job", attributes=known, start_time=at)
            case Job():
                _end(self._step, event.state, event.error, at)
                _end(self._job, event.state, event.error, at)
                self._step = self._job = None
            case Step(state="running"):
                known = {"sluice.step.name": str(entry.head.step), "sluice.step.position": entry.head.position or 0}
                self._step = self._span_below(self._job, f"step {entry.head.step}", known, at)
            case Step():
                if self._step is not None:
                    self._step.set_attributes(_attributes(event))
                _end(self._step, event.state, event.error, at)
                self._step = None
            case Download():
                begun = at - round(event.seconds * 1e9)
                self._span_below(self._step, "download", _attributes(event), begun).end(at)
            case _:
                span = self._step or self._job
                if span is not None:
                    span.add_event(kind_of(event), _attributes(event), timestamp=at)

    def _span_below(self, parent: Span | None, name: str, attributes: dict[str, Any], start: int) -> Span:
        context = trace.set_span_in_context(parent) if parent is not None else None
        return self._tracer.start_span(name, context=context, attributes=attributes, start_time=start)


def _end(span: Span | None, state: str, error: str | None, at: int) -> None:
    """End a span; an error is told by its reference."""
    if span is None:
        return
    span.set_attribute("sluice.state", state)
    if error is not None:
        span.set_attribute("error.type", error)
    if state == "failed":
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(at)


def _attributes(event: Event) -> dict[str, Any]:
    """The fields of an event as attributes; OpenTelemetry has no null."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    left_out = {"event", "state", "error"} if isinstance(event, Step) else {"event"}
    return {f"sluice.{key}": value for key, value in fields.items() if value is not None and key not in left_out}


def _nanoseconds(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000) * 1_000_000
