"""The transaction Bundle that is sent, and how large it may be (document 3 §7).

Every entry is ``PUT Type/id`` with a ``fullUrl`` of its own; what the input's Bundles said there is never
sent on.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from typing import Final

import msgspec

from tasks.shared.fhir.bundle import Resource

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
_RESOURCE: Final = b'","resource":'
_REQUEST: Final = b',"request":{"method":"PUT","url":"'
_END: Final = b'"}}'


class Transactions:
    """Writes transactions for the FHIR server at ``url``, the root without ``/fhir`` (document 1,
    services.send)."""

    def __init__(self, url: str) -> None:
        self.url = f"{url.rstrip('/')}/fhir"
        self._first = b'{"fullUrl":' + json.dumps(self.url).encode()[:-1] + b"/"
        self._next = b"," + self._first
        # Without "Type/id", which stands in an entry twice.
        self._overhead = len(self._next) + len(_RESOURCE) + len(_REQUEST) + len(_END)

    def sizes(self, resources: Iterable[Resource]) -> list[int]:
        """Bytes that each of these adds to a body."""
        overhead = self._overhead
        return [overhead + 2 * len(resource.key) + len(resource.raw) for resource in resources]

    @property
    def most_overhead(self) -> int:
        """Bytes that a resource adds to a body beside its own, at most: ids have 64 characters, types as well."""
        return self._overhead + 2 * (64 + 1 + 64)

    @property
    def envelope(self) -> int:
        """Bytes of a body without entries."""
        return len(_HEAD) + len(_TAIL)

    def body(self, resources: Iterable[Resource]) -> bytes:
        """The transaction with these resources (at least one), in this order; their bytes are in it unchanged."""
        parts: list[bytes | msgspec.Raw] = []
        opening = self._next
        for resource in resources:
            key = resource.key.encode()
            parts += (opening, key, _RESOURCE, resource.raw, _REQUEST, key, _END)
        parts[:1] = (_HEAD, self._first)
        parts.append(_TAIL)
        # join takes views as well: this is the only copy that is made of a resource
        return b"".join(parts)


class Limits:
    """What one transaction may hold: resources, and bytes of its body. The bytes may be lowered by any
    thread."""

    def __init__(self, batch_size: int, max_bytes: int = MAX_BODY) -> None:
        self.batch_size = batch_size
        self._max_bytes = max_bytes
        self.lowered = False
        self._lock = threading.Lock()

    @property
    def max_bytes(self) -> int:
        """Bytes of a body, for now."""
        return self._max_bytes

    def too_large(self, refused: int) -> None:
        """A body of ``refused`` bytes was answered 413: from now on none that is as large."""
        with self._lock:
            self._max_bytes = min(self._max_bytes, max(MIN_BODY, refused // 2))
            self.lowered = True
