"""The kinds of events of a job, and their form in ``events.ndjson``.

One line of ``jobs_dir/<job>/events.ndjson`` is one JSON object: the common fields (``EventHead``), and the fields of
one kind of event. ``docs/observability.md`` describes every field; a test compares it with these classes.

The schema is strict, so that tools notice a wrong line. Nothing here reads one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec

from tasks.shared.events import (
    Count,
    Download,
    Event,
    Ordinal,
    Reference,
    RequestRetry,
    Seconds,
    Status,
    Text,
    described,
)

JobEnd = Literal["waiting", "completed", "failed", "stopped", "cancelled"]
"""How a run of a job ends. One that was killed has no end in its log."""


StepEnd = Literal["waiting", "failed", "stopped"]
"""How a step ends that is not complete."""


class JobEvent(Event, frozen=True, kw_only=True, tag="job"):
    """The job begins or ends a run.

    ``created`` once, with the names of its ``steps``; then ``started``, later ``resumed``; at the end one of
    ``JobEnd``. ``error`` is the reference of the error that ended it, ``reason`` what stopped it (a signal, ``cancel``,
    ``alone``: one step was run alone).
    """

    state: Literal["created", "started", "resumed"] | JobEnd
    steps: list[Text] | None = None
    error: Reference | None = None
    reason: Text | None = None


class StepEvent(Event, frozen=True, kw_only=True, tag="step"):
    """A step begins (``running``) or ends; at its completion with counts and statistics, as in the job record.

    Sizes in bytes, times in seconds. A step already recorded as complete is not reported again.
    """

    state: Literal["running", "completed"] | StepEnd
    files: Count | None = None
    resources_in: Count | None = None
    resources_out: Count | None = None
    bytes_in: Count | None = None
    bytes_out: Count | None = None
    seconds: Seconds | None = None
    requests: Count | None = None
    retries: Count | None = None
    p50: Seconds | None = None
    p95: Seconds | None = None
    warnings: Count | None = None
    error: Reference | None = None


class KickOff(Event, frozen=True, kw_only=True, tag="kickoff"):
    """An extraction job was submitted, or found again, and its handle recorded. ``extraction`` is its id."""

    extraction: Text


class Export(Event, frozen=True, kw_only=True, tag="export"):
    """The step ``send`` has delivered everything. ``mode`` is ``services.send.send_as``."""

    mode: Text
    files: Count | None = None
    resources: Count | None = None
    bytes: Count | None = None


class Wait(Event, frozen=True, kw_only=True, tag="wait"):
    """A ``wait`` asks a person (``asked``), or has the answer (``decided``); name and reason are only in the job
    record.
    """

    state: Literal["asked", "decided"]
    approved: bool | None = None


class Gate(Event, frozen=True, kw_only=True, tag="gate"):
    """The result of the validation gate after its step: ``open`` or ``closed``, and the number of findings, rounded to
    5 and at least 5: each may be another patient's.
    """

    state: Literal["open", "closed"]
    findings: Count
    resources: Count


KINDS: tuple[type[Event], ...] = (JobEvent, KickOff, Status, Download, RequestRetry, StepEvent, Export, Wait, Gate)
"""Every kind there is."""


class EventHead(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of every event: ``time`` in UTC (ISO 8601, milliseconds), the ``job``, and its ``run`` from 1.

    ``step`` and ``position`` (from 1) name the step of the event; ``null`` between steps.
    """

    time: Annotated[str, described(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
    job: Text
    run: Ordinal
    step: Text | None = None
    position: Ordinal | None = None


@dataclass(frozen=True)
class EventEntry:
    """One line of the log."""

    head: EventHead
    event: Event

    def line(self) -> bytes:
        """Return the entry as one line of JSON, with its newline."""
        return msgspec.json.encode(msgspec.to_builtins(self.head) | msgspec.to_builtins(self.event)) + b"\n"


_ONLY: Final[tuple[tuple[type[Event], str, tuple[str, ...]], ...]] = (
    (JobEvent, "steps", ("created",)),
    (JobEvent, "error", ("failed", "cancelled")),
    (JobEvent, "reason", ("stopped", "cancelled")),
    (StepEvent, "error", ("failed", "stopped")),
    *((StepEvent, name, ("completed",)) for name in StepEvent.__struct_fields__ if name not in ("state", "error")),
    (Wait, "approved", ("decided",)),
)
"""Which fields an event has in which of its states only."""

_ALWAYS: Final[tuple[tuple[type[Event], str, str], ...]] = (
    (JobEvent, "created", "steps"),
    (JobEvent, "failed", "error"),
    (JobEvent, "stopped", "reason"),
    (StepEvent, "completed", "warnings"),
    (StepEvent, "failed", "error"),
    (Wait, "decided", "approved"),
)
"""Which field an event always has in a state."""


def _title(name: str) -> str:
    """Return the name of a class in the schema, which stays when the class is renamed."""
    return name.replace("Event", "")


@functools.cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of one line, as kept in ``docs/schemas/events.schema.json``."""
    _, components = msgspec.json.schema_components((EventHead, *KINDS), ref_template="#/$defs/{name}")
    components = {_title(name): {**one, "title": _title(name)} for name, one in components.items()}
    kinds = [{"$ref": f"#/$defs/{_title(kind.__name__)}"} for kind in KINDS]
    components["Head"]["required"] = sorted(components["Head"]["properties"])
    for kind in KINDS:
        if conditions := list(_conditions(kind)):
            components[_title(kind.__name__)]["allOf"] = conditions
    # Something answered, or nothing did.
    components["RequestRetry"]["allOf"] = [{"oneOf": [{"required": ["status"]}, {"required": ["error"]}]}]
    # A step belongs to a position and the other way round.
    components["Head"]["oneOf"] = [
        {"properties": {"step": {"type": kind}, "position": {"type": other}}}
        for kind, other in (("string", "integer"), ("null", "null"))
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of a job's events.ndjson",
        "allOf": [{"$ref": "#/$defs/Head"}, {"oneOf": kinds}],
        "unevaluatedProperties": False,
        "$defs": components,
    }


def _conditions(kind: type[Event]) -> Iterator[dict[str, Any]]:
    """Yield ``_ONLY`` and ``_ALWAYS`` of a kind as conditions of the schema."""
    for one, name, states in _ONLY:
        if one is kind:
            yield {"if": {"required": [name]}, "then": {"properties": {"state": {"enum": list(states)}}}}
    for one, state, name in _ALWAYS:
        if one is kind:
            yield {"if": {"properties": {"state": {"const": state}}}, "then": {"required": [name]}}
