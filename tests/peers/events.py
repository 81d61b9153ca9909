"""A job's ``events.ndjson`` as other tools read it: nothing in the product does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union

import msgspec

from flows.reports.events import KINDS, EventEntry, EventHead
from flows.reports.journal import NAME

_head = msgspec.json.Decoder(EventHead)
_event: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Union[KINDS])  # noqa: UP007 - of a tuple


def entry_of(line: bytes) -> EventEntry:
    return EventEntry(_head.decode(line), _event.decode(line))


def read_events(directory: Path) -> Iterator[EventEntry]:
    """The events of a job, first one first; also while it runs. What does not end with a newline is passed over."""
    with (directory / NAME).open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield entry_of(line)
