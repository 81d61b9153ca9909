"""The transaction Bundle that is sent, and how large it may be (document 3 §7).

Every entry is ``PUT Type/id`` with a ``fullUrl`` of its own; what the input's Bundles said there is never
sent on.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from typing import Final

from tasks.shared.bundle import Resource

MAX_BODY: Final = 5 * 1024 * 1024
"""Bytes of one transaction, unless it holds a single larger resource."""

MIN_BODY: Final = 64 * 1024
"""A server that says "too large" lowers the limit, but not below this: it may have meant something else."""

HEADERS: Final = {
    "Content-Type": "application/fhir+json",
    "Accept": "application/fhir+json",
    "Prefer": "return=minimal",
}

_HEAD: Final = b'{"resourceType":"Bundle","type":"transaction","entry":['
_TAIL: Final = b"]}"


class Transactions:
    """Writes transactions for the FHIR server at ``url``, the root without ``/fhir`` (document 1,
    services.send)."""

    def __init__(self, url: str) -> None:
        self.url = f"{url.rstrip('/')}/fhir"
        self._first = b'{"fullUrl":' + json.dumps(self.url).encode()[:-1] + b"/"
        self._next = b"," + self._first
        # "Type/id" stands twice in an entry, each time once.
        self._overhead = len(self._next) + len(b'","resource":,"request":{"method":"PUT","url":""}}')

    def size(self, resource: Resource) -> int:
        """Bytes that this resource adds to a body."""
        return self._overhead + 2 * (len(resource.type) + 1 + len(resource.id)) + len(resource.raw)

    @property
    def envelope(self) -> int:
        """Bytes of a body without entries."""
        return len(_HEAD) + len(_TAIL)

    def body(self, resources: Iterable[Resource]) -> bytes:
        """The transaction with these resources, in this order; their bytes are in it unchanged."""
        parts: list[bytes] = [_HEAD]
        opening = self._first
        for resource in resources:
            key = resource.key.encode()
            # join takes views as well: this is the only copy that is made of a resource
            parts += (opening, key, b'","resource":', resource.raw)
            parts += (b',"request":{"method":"PUT","url":"', key, b'"}}')
            opening = self._next
        parts.append(_TAIL)
        return b"".join(parts)


class Limits:
    """What one transaction may hold: resources, and bytes of its body. The bytes may be lowered by any
    thread."""

    def __init__(self, batch_size: int, max_bytes: int = MAX_BODY) -> None:
        self.batch_size = batch_size
        self._max_bytes = max_bytes
        self._lock = threading.Lock()

    @property
    def max_bytes(self) -> int:
        """Bytes of a body, for now."""
        return self._max_bytes

    def too_large(self, refused: int) -> None:
        """A body of ``refused`` bytes was answered 413: from now on none that is as large."""
        with self._lock:
            self._max_bytes = min(self._max_bytes, max(MIN_BODY, refused // 2))
