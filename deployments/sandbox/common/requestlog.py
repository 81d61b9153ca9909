"""What a sandbox service saw of its clients: counts and sizes for tests, never a payload, a query or a
header."""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import Any

import msgspec

KEPT = 50_000
"""Requests that are kept one by one; older ones live on in the totals only."""


class LogEntry(msgspec.Struct, kw_only=True):
    """One request. Times are seconds since the service started; ``status`` is null while open or when none
    was sent."""

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
    """Requests of one service since its start, or since the last reset."""

    def __init__(self) -> None:
        self._origin = time.monotonic()
        self.reset()

    def reset(self) -> None:
        """Forget what was seen. Requests in progress finish uncounted."""
        self._requests: deque[LogEntry] = deque(maxlen=KEPT)
        self._open: set[int] = set()
        self._statuses: Counter[str] = Counter()
        self._total = 0
        self._max_open = 0
        self._max_entries = 0
        self._max_body = 0

    def begin(self, method: str, path: str) -> LogEntry:
        """Note a request whose head arrived."""
        self._total += 1
        request = LogEntry(number=self._total, method=method, path=path, started=self._now())
        self._requests.append(request)
        self._open.add(id(request))
        self._max_open = max(self._max_open, len(self._open))
        return request

    def end(self, request: LogEntry) -> None:
        """Note that its answer has left, or never will."""
        request.ended = self._now()
        if id(request) not in self._open:
            return
        self._open.discard(id(request))
        self._statuses[str(request.status or "none")] += 1
        self._max_entries = max(self._max_entries, request.entries or 0)
        self._max_body = max(self._max_body, request.request_bytes)

    def describe(self) -> dict[str, Any]:
        """Totals, then the requests in the order they came, as a JSON document."""
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
