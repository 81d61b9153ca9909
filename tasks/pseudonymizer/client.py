"""``$de-identify``: one resource to the pseudonymization service and back (document 3 §4)."""

from __future__ import annotations

import base64
import math
import threading
import time
from collections import deque
from typing import Final

from tasks.pseudonymizer.rules import AnonymizationRules
from tasks.shared.blanked import SECRETS
from tasks.shared.http.answer import Answer
from tasks.shared.http.body import SLICE, Body, MemoryBody
from tasks.shared.http.client import ServiceClient

OPERATION: Final = "$de-identify"
OLDEST: Final = "2.34.0"
"""The first version of the service that reads ``config``."""

HEADERS: Final = {"Content-Type": "application/fhir+json", "Accept": "application/fhir+json"}
_MIB: Final = 1 << 20
_LEAST_ANSWER: Final = 64 * _MIB
_SLOW: Final = 0.004  # seconds


class Deidentify:
    """The calls to the service at ``url`` (its root, without ``/fhir``), with ``rules`` or with the service's own.

    Thread-safe; at most ``slots`` requests are under way at once, and whoever comes then waits. So more threads than
    slots keep the service busy while they look at answers, and the time spent waiting is not that of a request.
    """

    def __init__(self, client: ServiceClient, url: str, rules: AnonymizationRules | None, *, slots: int) -> None:
        self._client = client
        self._slots = Slots(slots)
        self._url = endpoint(url)
        self._before, self._after = _around(rules.content if rules is not None else None)
        hide(rules)

    def __call__(self, resource: bytes) -> Answer:
        """Send one resource. Raises what ``ServiceClient.send`` raises."""
        size = len(self._before) + len(resource) + len(self._after)
        body: bytes | Body = resource
        if self._before:
            parts = self._before, resource, self._after
            body = MemoryBody(*parts) if size > SLICE else b"".join(parts)
        with self._slots:
            started = time.perf_counter()
            answer = self._client.send(
                "POST",
                self._url,
                operation=OPERATION,
                content=body,
                headers=HEADERS,
                # A pretty-printed answer is larger than what was sent.
                max_answer_bytes=max(_LEAST_ANSWER, 4 * size),
                silence=math.inf,  # the time limit of the whole exchange is enough
            )
        # Whoever got the slot sends first: this thread would else keep Python for itself while it reads the answer,
        # half a millisecond in which the service has nothing to do. Where a service answers at once it is Python that
        # is short, and every such change of threads costs some.
        if time.perf_counter() - started > _SLOW:
            time.sleep(0)
        return answer


class Slots:
    """At most ``count`` threads are inside at once; the others wait, first come, first served. A context manager,
    thread-safe.

    ``threading.Semaphore`` lets whoever comes at the right moment overtake those who wait. Here the oldest line would
    wait for ever while later ones fill the window, until only that one is under way.

    The client's connections are no substitute: a call that waits to be repeated has none, and keeps its slot, so a
    service that is busy or away is not asked for other lines meanwhile.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        gate.acquire()

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()  # the slot goes on to the next one, it is never free in between
            else:
                self._free += 1


def endpoint(url: str | None) -> str:
    """Return the URL of the operation for the root URL of the service."""
    return f"{(url or '').rstrip('/')}/fhir/$de-identify"


def hide(rules: AnonymizationRules | None) -> None:
    """Let what is secret in the rules stand in no answer that is kept."""
    if rules is not None:
        for secret in (base64.b64encode(rules.content).decode(), *rules.keys):
            SECRETS.text(secret)


def body(config: bytes | None, resource: bytes) -> bytes:
    """Build a request with the resource, and with the anonymization file ``config`` if there is one."""
    before, after = _around(config)
    return before + resource + after


def _around(config: bytes | None) -> tuple[bytes, bytes]:
    """Return the bytes before and after the resource in a request."""
    if config is None:
        return b"", b""
    before = (
        b'{"resourceType":"Parameters","parameter":[{"name":"config","valueAttachment":'
        b'{"contentType":"application/yaml","data":"%b"}},{"name":"resource","resource":'
    )
    return before % base64.b64encode(config), b"}]}"
