"""Lines that ``-v`` prints for each request: method, address and result (``4-product.md`` §2).

A line has the method, the address, the status or the error, the sizes of the bodies and the time; never a body, a
header, a user or a password. It has the names of a query, not the values (permissions, identifiers of persons),
and no id after a type of resource in a path (``…/Patient/…``).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tasks.shared.units import human_bytes, human_duration

_TYPE = re.compile(r"[A-Z][A-Za-z]+|patients?", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z_.:-]*", re.ASCII)
_MASKED = "…"

listener: Callable[[str], None] | None = None
"""Gets the line of each request of this process, if set."""


def listen(new: Callable[[str], None] | None) -> None:
    """Set the listener; ``None`` removes it."""
    global listener
    listener = new


def shown(url: str) -> str:
    """Return a URL without identifiers of persons and credentials."""
    from tasks.shared.http_old.answer import place  # without a listener, a command does not need its imports

    address, _, query = url.partition("#")[0].partition("?")
    named = place(address)
    head, slashes, path = named.partition("://")
    parts = path.split("/")
    for n in range(2, len(parts)):
        if _TYPE.fullmatch(parts[n - 1]) and parts[n] and not parts[n].startswith(("$", "_")):
            parts[n] = _MASKED
    masked = f"{head}{slashes}{'/'.join(parts)}"
    return f"{masked}?{'&'.join(map(_parameter, query.split('&')))}" if query else masked


def _parameter(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return f"{name if _NAME.fullmatch(name) else _MASKED}={_MASKED}" if equals else _MASKED


@dataclass(frozen=True)
class LoggedRequest:
    """A request that begins: ``sent`` is the size of its body in bytes."""

    method: str
    url: str = field(repr=False)
    sent: int = 0
    begun: float = field(default_factory=time.monotonic)

    def failed(self, why: str) -> None:
        """Log a request without an answer; ``why`` is the reference of an error."""
        self._log_outcome(why)

    def answered(self, status: int, received: int) -> None:
        """Log an answer with ``received`` bytes of body."""
        sizes = f"{human_bytes(received)} back" if self.sent else human_bytes(received)
        self._log_outcome(f"{status}, {f'{human_bytes(self.sent)} sent, ' if self.sent else ''}{sizes}")

    def _log_outcome(self, what: str) -> None:
        if listener is not None:
            seconds = time.monotonic() - self.begun
            listener(f"{self.method} {shown(self.url)}: {what}, {human_duration(seconds)}")
