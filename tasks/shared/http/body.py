"""The body of a request that is too large for memory: read from its start again by every attempt.

A repeated request must be byte-identical (document 3 §1), so a body knows its length beforehand and can be opened as
often as it takes; an iterator that is used up could not. ``SlicedStream`` and ``BodyStream`` are how it goes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import httpx

from tasks.shared.errors import StorageError, storage_errors
from tasks.shared.files.private_file import open_private

SLICE: Final = 1024 * 1024
"""Bytes of a body between two looks at the deadline and at the stop."""

SILENCE: Final = 120.0
"""Seconds in which a service must take some byte of a ``Body``. The timeout of a whole large upload is hours: a service
that stopped reading is to be noticed before that."""


class Body(Protocol):
    """Content of a request, read in pieces. Both must say the same for every attempt."""

    @property
    def length(self) -> int:
        """Bytes of all of it: the ``Content-Length``."""

    def pieces(self) -> Iterator[bytes]:
        """All of it from the start, in pieces of about ``SLICE`` bytes."""


class FileBody:
    """The first ``length`` bytes of a file.

    ``sent`` is told how many bytes of an attempt are read so far. Raises ``StorageError``: ``file-changed`` when the
    file became shorter.
    """

    def __init__(self, path: Path, length: int, *, sent: Callable[[int], None] = lambda _: None) -> None:
        self.path = path
        self._length = length
        self._sent = sent

    @property
    def length(self) -> int:
        """Bytes of all of it."""
        return self._length

    def pieces(self) -> Iterator[bytes]:
        """The file's content, from its start."""
        done = 0
        with storage_errors(self.path), open_private(self.path) as file:
            while done < self._length:
                piece = file.read(min(SLICE, self._length - done))
                if not piece:
                    what = "the file became shorter while it was sent"
                    hint = "nothing else may write into the job directory; continue the job"
                    raise StorageError("file-changed", what, context=str(self.path), hint=hint)
                done += len(piece)
                yield piece
                self._sent(done)


class SlicedStream(httpx.SyncByteStream):
    """A large body in memory on its way out: written in one piece, it would be copied with every partial send."""

    def __init__(self, content: bytes, check: Callable[[], None]) -> None:
        self._content = content
        self._check = check

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._content), SLICE):
            self._check()
            yield self._content[start : start + SLICE]


class BodyStream(httpx.SyncByteStream):
    """A ``Body`` on its way out, opened afresh."""

    def __init__(self, body: Body, check: Callable[[], None]) -> None:
        self._body = body
        self._check = check

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._body.pieces():
            self._check()
            yield piece
