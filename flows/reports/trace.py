"""OpenTelemetry traces of a run, made from its events: a span for the job, below it one for each step, below that one
for each download; what happens at a moment (kick-off, status, retry, wait, gate) is an event of the span.

Only the API of OpenTelemetry is used, which does nothing until somebody configures an SDK, as
``opentelemetry-instrument`` does from ``OTEL_*`` variables (``docs/observability.md``); before that nothing is recorded
and nothing is sent. Requests have no spans of their own: their number, retries and percentiles are attributes of the
step's.

At the end of a run its spans are handed to the collector at once: a process that ends without tidying up (a signal, a
lost lease) would else take the last ones with it. A collector that does not answer costs a run ``PATIENCE``, once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import msgspec
from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode, Tracer, TracerProvider

from flows.reports.events import Entry, Job, Step, kind_of
from tasks.shared.events import Download, Event
from tasks.shared.log import logger

NAME = "sluice"
"""The instrumentation scope, and the prefix of every attribute."""

PATIENCE: Final = 0.7
"""Seconds that the spans of a run may take to leave the process at its end."""

_RECORD: Final = "job."
"""What the names of the labels in the job record begin with."""


class Trace:
    """The spans of one run of a job. Takes the run's events in order; may be called from any thread.

    ``provider`` is the process's own unless a test gives one.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider or trace.get_tracer_provider()
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
                _hush(trace.get_current_span())
                known: dict[str, Any] = {"sluice.job.id": entry.head.job, "sluice.job.run": entry.head.run}
                self._job = self._tracer.start_span("job", attributes=known, start_time=at)
            case Job():
                _end(self._step, event.state, event.error, at)
                _end(self._job, event.state, event.error, at)
                if self._job is not None:
                    hand_over(self._provider)
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


def hand_over(provider: TracerProvider, *, patience: float = PATIENCE) -> None:
    """Let an SDK send what it holds, in ``patience`` seconds at most. The API alone holds nothing.

    One that needs longer is told to come to an end in the background: else it would make the process wait at its exit
    until it gives up, which with a collector that is down takes many seconds.
    """
    flush: Callable[[], Any] | None = getattr(provider, "force_flush", None)
    if flush is None or _in_background(flush, patience):
        return
    logger.warning("the collector of the traces does not answer; the last spans of this run may be lost")
    shutdown: Callable[[], Any] | None = getattr(provider, "shutdown", None)
    if shutdown is not None:
        _in_background(shutdown, 0.0)


def _in_background(call: Callable[[], Any], patience: float) -> bool:
    """Call in a thread that keeps no process alive; whether it came back in ``patience`` seconds."""

    def guarded() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whatever an exporter does, it fails no run
            logger.warning("the spans of this run were not sent (%s)", type(error).__name__)

    thread = threading.Thread(target=guarded, name="sluice-traces", daemon=True)
    thread.start()
    thread.join(patience)
    return not thread.is_alive()


def _hush(span: Span) -> None:
    """Blank the job record in a span that is not ours.

    Prefect makes spans of its own unless ``PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY`` is false, and copies every
    label of the run into them: paths, the name of whoever approved, and a comment, which may be about a person.
    """
    if span.is_recording():
        for name in list(getattr(span, "attributes", None) or ()):
            if name.startswith(_RECORD):
                span.set_attribute(name, "")


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
