"""What ``-v`` prints for each request: method, address and result (docs/commands.md).

A line has the status or the error, and the time. It never has a body, a header, a user, a password, a query
(permissions, identifiers of persons) or the id after a resource type.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from tasks.shared.http.answer import place
from tasks.shared.units import human_duration

_TYPE = re.compile(r"[A-Z][A-Za-z]+|patients?", re.ASCII)

listener: Callable[[str], None] | None = None
"""Gets the line of each request of this process, if set."""


def log_request(method: str, url: str, what: str, begun: float) -> None:
    """Log a request that ended: ``what`` is a status or a reference, ``begun`` a time of ``time.monotonic``."""
    if listener is not None:
        listener(f"{method} {shown(url)}: {what}, {human_duration(time.monotonic() - begun)}")


def shown(url: str) -> str:
    """Return a URL without identifiers of persons and credentials, so without its query."""
    head, slashes, path = place(url).partition("://")
    parts = path.split("/")
    for n in range(2, len(parts)):
        if _TYPE.fullmatch(parts[n - 1]) and parts[n] and not parts[n].startswith(("$", "_")):
            parts[n] = "…"
    return f"{head}{slashes}{'/'.join(parts)}"
