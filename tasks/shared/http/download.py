"""Download NDJSON: stream each file into an ``Intake``, and start it anew after a transient error.

The request as a whole has no deadline. If no byte arrives for the stall timeout, it ends with a ``StalledError``, which
is not retried. httpx checks the length against ``Content-Length``. Redirects to other hosts are followed without
credentials (docs/services.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from config import CompressionConfig
from tasks.shared.errors import ServiceError
from tasks.shared.files.intake import Intake
from tasks.shared.http.answer import place
from tasks.shared.http.client import Call, ServiceClient
from tasks.shared.stop import Stop

_OPERATION: Final = "download"
_PAGES: Final = frozenset({"text/html", "application/xhtml+xml", "text/xml", "application/xml", "application/fhir+xml"})
"""Types that even a careless server does not use for NDJSON."""


@dataclass(frozen=True)
class Downloader:
    """Downloads files for one step; thread-safe. ``most`` limits a line (bytes), ``stall_timeout`` is in seconds."""

    client: ServiceClient
    compression: CompressionConfig
    most: int
    stall_timeout: float

    def fetch(self, url: str, directory: Path, base: str, stop: Stop, credentials: bool | None = None) -> Intake:
        """Return the downloaded and checked file; the caller publishes its ``part``.

        ``credentials`` as in ``ServiceClient.stream``. Nothing is left on disk after an error. Raises the errors of
        ``Intake`` and of the client, ``ServiceError`` (``download-media-type``), and ``StalledError``.
        """
        tries = itertools.count()

        def attempt() -> Intake:
            intake = Intake(directory, base, self.compression, name=place(url), most=self.most)
            try:
                self._take(intake, url, stop, credentials, repeated=next(tries) > 0)
            except BaseException:
                self.client.meter.add(bytes=-intake.taken)
                intake.__exit__()
                raise
            return intake

        return self.client.retrying(sleep=stop.sleep)(attempt)

    def _take(self, intake: Intake, url: str, stop: Stop, credentials: bool | None, *, repeated: bool) -> None:
        call = Call("GET", url, _OPERATION, headers={"Accept": "application/fhir+ndjson"}, timeout=self.stall_timeout)
        with self.client.stream(call, follow=True, credentials=credentials, repeated=repeated) as response:
            if response.headers.get("Content-Encoding", "").strip().lower() not in {"", "identity", "zstd"}:
                raise _refused(url, "with a Content-Encoding that was not requested")
            intake.run(self._pieces(response, stop))
            # Checked last: for the text of a login page, the error of ``LineCheck`` is more precise.
            if response.headers.get("Content-Type", "").partition(";")[0].strip().lower() in _PAGES:
                raise _refused(url, "with the Content-Type of a page")

    def _pieces(self, response: httpx.Response, stop: Stop) -> Iterator[bytes]:
        for piece in response.iter_raw():
            stop.check()
            self.client.meter.add(bytes=len(piece))
            yield piece


def _refused(url: str, what: str) -> ServiceError:
    what = f"{_OPERATION} was answered {what}"
    return ServiceError("download-media-type", what, context=place(url), operation=_OPERATION)
