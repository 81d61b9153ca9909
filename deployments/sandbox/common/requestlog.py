"""Counts and sizes of the requests to a sandbox service, for tests; never a payload, a query or a header."""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import Any

import msgspec

KEPT = 50_000
"""Number of requests listed one by one; older ones only count in the totals."""


class LogEntry(msgspec.Struct, kw_only=True):
    """One request. Times are seconds since the service started; ``status`` is null until a response is sent."""

    number: int
    method: str
    path: str
    status: int | None = None
    request_bytes: int = 0
    response_bytes: int = 0
    entries: int | None = None
    """Entries of a transaction or batch Bundle."""
    types: dict[str, int] = {}
    """Resources of that Bundle by type."""
    fault: str | None = None
    started: float = 0.0
    ended: float | None = None


class RequestLog:
    """Requests to one service since its start, or since the last reset."""

    def __init__(self) -> None:
        self._origin = time.monotonic()
        self.reset()

    def reset(self) -> None:
        """Remove all entries. Requests in progress are not counted."""
        self._requests: deque[LogEntry] = deque(maxlen=KEPT)
        self._open: set[int] = set()
        self._statuses: Counter[str] = Counter()
        self._total = 0
        self._max_open = 0
        self._max_entries = 0
        self._max_body = 0

    def begin(self, method: str, path: str) -> LogEntry:
        """Add a request whose head has arrived."""
        self._total += 1
        request = LogEntry(number=self._total, method=method, path=path, started=self._now())
        self._requests.append(request)
        self._open.add(id(request))
        self._max_open = max(self._max_open, len(self._open))
        return request

    def end(self, request: LogEntry) -> None:
        """Record the end of a request, with or without a response."""
        request.ended = self._now()
        if id(request) not in self._open:
            return
        self._open.discard(id(request))
        self._statuses[str(request.status or "none")] += 1
        self._max_entries = max(self._max_entries, request.entries or 0)
        self._max_body = max(self._max_body, request.request_bytes)

    def describe(self) -> dict[str, Any]:
        """Return totals, then the requests in order of arrival, as a JSON document."""
        return {
            "total": self._total,
            "in_flight": len(self._open),
            "max_in_flight": self._max_open,
            "max_entries": self._max_entries,
            "max_body_bytes": self._max_body,
            "by_status": dict(self._statuses),
            "requests": [msgspec.to_builtins(request) for request in self._requests],
        }

    def _now(self) -> float:
        return round(time.monotonic() - self._origin, 6)
