"""Events a step reports while it works: small typed facts, never data.

A step calls ``context.meter.record_event(event)``. In a run the job's journal (``flows/reports/``) collects the events,
elsewhere they are dropped. All events, with those of the job itself, are listed in ``flows/reports/events.py`` and in
``docs/observability.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta


def described(**schema: Any) -> Meta:
    """Return facts for the JSON Schema. Reading does not check them: another version may have written the line."""
    return Meta(extra_json_schema=schema)


Count = Annotated[int, described(minimum=0)]
Ordinal = Annotated[int, described(minimum=1)]
Seconds = Annotated[float, described(minimum=0)]
Text = Annotated[str, described(minLength=1)]
Reference = Annotated[str, described(pattern="^[a-z0-9]+(-[a-z0-9]+)*$")]
"""Of an error, as ``docs/troubleshooting.md`` lists them."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """Base of all kinds; the kind is the field ``event`` in JSON, in which what is ``None`` is left out."""


class Status(Event, frozen=True, kw_only=True, tag="status"):
    """The running step says something new of itself: the extraction server's progress, or another phase.

    ``fraction`` is 0…1, where a service reports one.
    """

    message: Text
    fraction: Annotated[float, described(minimum=0, maximum=1)] | None = None


class Download(Event, frozen=True, kw_only=True, tag="download"):
    """A file was downloaded and has its final name.

    ``bytes`` is what came over the network, ``seconds`` the time with all attempts, ``sha256`` that of the stored file.
    ``lines`` are rounded to 5 and not below: each may be a patient.
    """

    file: Text
    bytes: Count
    lines: Count
    seconds: Seconds
    sha256: Annotated[str, described(pattern="^[0-9a-f]{64}$")]


class RequestRetry(Event, frozen=True, kw_only=True, tag="request-retry"):
    """A request failed for now and will be made again after ``wait`` seconds.

    Either ``status`` (HTTP) or ``error`` (an error reference) says why. ``attempt`` of ``attempts`` has failed.
    """

    service: Text
    operation: Text
    attempt: Ordinal
    attempts: Ordinal
    wait: Seconds
    status: Annotated[int, described(minimum=100, maximum=599)] | None = None
    error: Reference | None = None


Collector = Callable[[Event], None]
"""Receives an event, in any thread. Must not raise: reporting an event must not change the run."""


def nobody(_event: Event) -> None:
    """Discard the event."""
