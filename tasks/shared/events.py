"""What a step tells while it works, for whoever keeps it: small typed facts, never data.

A step calls ``context.progress.tell(event)`` and knows neither file nor Prefect; in a run the collector behind it is
the job's journal (``flows/journal.py``), elsewhere nobody listens. The vocabulary as a whole, with the events of the
job itself, is in ``flows/events.py`` and in ``docs/observability.md``.

An event holds counts, sizes in bytes, seconds, names of files and types, statuses and ids of jobs: no payload, no
identifier of a person, no URL, no secret (``architecture.md``, rule 7).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """Base of all kinds; the kind is the field ``event`` in JSON, in which what is ``None`` is left out."""


class Status(Event, frozen=True, kw_only=True, tag="status"):
    """The running step says something new of itself: the extraction server's progress, or another phase.

    ``fraction`` is 0…1, where a service reports one.
    """

    message: str
    fraction: float | None = None


class Download(Event, frozen=True, kw_only=True, tag="download"):
    """A file was downloaded and has its final name.

    ``bytes`` is what came over the network, ``seconds`` the time with all attempts, ``sha256`` that of the stored file.
    """

    file: str
    bytes: int
    lines: int
    seconds: float
    sha256: str


class RequestRetry(Event, frozen=True, kw_only=True, tag="request-retry"):
    """A request failed for now and will be made again after ``wait`` seconds.

    Either ``status`` (HTTP) or ``error`` (an error reference) says why. ``attempt`` of ``attempts`` has failed.
    """

    service: str
    operation: str
    attempt: int
    attempts: int
    wait: float
    status: int | None = None
    error: str | None = None


Collector = Callable[[Event], None]
"""Takes an event, in whatever thread it happened. Must not raise: what is told must not change what is done."""


def nobody(_event: Event) -> None:
    """The collector where nobody listens."""
