"""Downloading NDJSON: streamed into an ``Intake``, tried again from its beginning while that helps.

Document 1 ("Errors", procedure 7): no deadline for the whole request; no byte for the stall timeout ends it with a
``StalledError``, which is not retried, and neither is an error of the file system. The length is checked against
``Content-Length`` by httpx. Redirects are followed, to other hosts without credentials (document 3 §2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import httpx

from config import CompressionConfig, RetryConfig
from tasks.shared.errors import ServiceError
from tasks.shared.files.intake import Intake
from tasks.shared.http.answer import place
from tasks.shared.http.client import ServiceClient
from tasks.shared.http.retry import retrying
from tasks.shared.meter import Meter
from tasks.shared.stop import Stop

STALL_TIMEOUT: Final = 60.0
"""Seconds; document 1, services.extractor.download_stall_timeout."""

_OPERATION: Final = "download"
_PAGES: Final = frozenset({"text/html", "application/xhtml+xml", "text/xml", "application/xml", "application/fhir+xml"})
"""Types that even a careless server does not use for NDJSON."""


class Downloader:
    """Downloads files for one step; thread-safe. ``stall_timeout`` in seconds, 0 selects the default; ``most`` is the
    limit of a line in bytes."""

    def __init__(
        self,
        client: ServiceClient,
        *,
        retry: RetryConfig,
        compression: CompressionConfig,
        stop: Stop,
        meter: Meter,
        most: int,
        stall_timeout: float = STALL_TIMEOUT,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._client = client
        self._compression = compression
        self._stop = stop
        self._meter = meter
        self._most = most
        self._stall_timeout = stall_timeout or STALL_TIMEOUT
        self._again = retrying(retry, service=client.service, meter=meter, sleep=stop.sleep if sleep is None else sleep)

    def fetch(
        self, url: str, directory: Path, base: str, *, stop: Stop | None = None, credentials: bool | None = None
    ) -> Intake:
        """Return what was downloaded, checked and not yet published; the caller finishes its part.

        ``stop`` is looked at between pieces; ``credentials`` as in ``ServiceClient.stream``. Nothing is left on disk
        after an error. Raises the errors of ``Intake``; ``StalledError``; ``ServiceError`` (``download-encoding``,
        ``download-media-type``, those of the client); ``NetworkError`` and ``ServiceBusyError`` after the last attempt;
        ``Stopped``.
        """
        tries = iter(range(1 << 30))

        def attempt() -> Intake:
            repeated = next(tries) > 0
            return self._attempt(
                url, directory, base, stop=stop or self._stop, credentials=credentials, repeated=repeated
            )

        return self._again(attempt)

    def _attempt(
        self, url: str, directory: Path, base: str, *, stop: Stop, credentials: bool | None, repeated: bool
    ) -> Intake:
        intake = Intake(directory, base, self._compression, name=place(url), most=self._most)
        try:
            with self._client.stream(
                "GET",
                url,
                operation=_OPERATION,
                headers={"Accept": "application/fhir+ndjson"},
                timeout=self._stall_timeout,
                follow=True,
                credentials=credentials,
                repeated=repeated,
            ) as response:
                self._check_encoding(response, url)
                intake.run(self._pieces(response, stop))
                self._check_type(response, url)
        except BaseException:
            self._meter.add(bytes=-intake.taken)
            intake.__exit__()
            raise
        return intake

    def _pieces(self, response: httpx.Response, stop: Stop) -> Iterator[bytes]:
        for piece in response.iter_raw():
            stop.check()
            self._meter.add(bytes=len(piece))
            yield piece

    def _check_encoding(self, response: httpx.Response, url: str) -> None:
        if response.headers.get("Content-Encoding", "").strip().lower() not in {"", "identity", "zstd"}:
            what = "was answered with a Content-Encoding that was not requested"
            raise self._refused(url, "download-encoding", what)

    def _check_type(self, response: httpx.Response, url: str) -> None:
        """Refuse a page; afterwards, because the error of a first line that is a login page is more precise."""
        if response.headers.get("Content-Type", "").partition(";")[0].strip().lower() in _PAGES:
            raise self._refused(url, "download-media-type", "was answered with the Content-Type of a page")

    def _refused(self, url: str, reference: str, what: str) -> ServiceError:
        return ServiceError(reference, f"{_OPERATION} {what}", context=place(url), operation=_OPERATION)
