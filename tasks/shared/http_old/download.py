"""Downloading NDJSON: streamed, checked on the way, resumed where that is safe, retried while it helps.

The rules are those of document 1 ("Errors", "Extraction step procedure" 7) and document 3 §2 and §8:

* No deadline for the whole request; no byte for the stall timeout ends it with a ``StalledError``, not retried.
* Only a ``TransientError`` is retried, ``retry.max_attempts`` attempts in all. The budget is full again whenever an
  attempt got further into the file than any before it.
* A broken transfer resumes with ``Range`` and ``If-Range`` if the server sent a strong ETag or a Last-Modified and
  the file on disk is stored uncompressed as it arrives; otherwise it starts over.
* The size is compared with ``Content-Length`` and ``Content-Range``; a part must be of the same file as the bytes
  before it (``ETag``, ``Last-Modified``) and its end must be known.
* Each line must be a FHIR resource.

On an error or a stop the part is removed: another process starts the file over, so that no validator is kept and
trusted for days.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import msgspec

from config import CompressionConfig, RetryConfig
from tasks.shared.errors import NetworkError, ServiceBusyError, ServiceError, TransientError
from tasks.shared.fhir.reading import LARGEST_RESOURCE
from tasks.shared.files.old_intake import FileFacts, Intake
from tasks.shared.http_old.answer import place
from tasks.shared.http_old.client import ServiceClient
from tasks.shared.http_old.retry import announce, wait_seconds
from tasks.shared.meter import Meter
from tasks.shared.stop import Stop

STALL_TIMEOUT = 60.0
"""Seconds; document 1, services.extractor.download_stall_timeout."""

_OPERATION = "download"
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)\Z")
_PARTIAL, _RANGE_NOT_SATISFIABLE = 206, 416
_STATE = ("ETag", "Last-Modified")
_PAGES = frozenset({"text/html", "application/xhtml+xml", "text/xml", "application/xml", "application/fhir+xml"})
"""Types that even a careless server does not use for NDJSON."""


class Downloader:
    """Downloads files for one step; thread-safe.

    ``stall_timeout`` in seconds, 0 selects the default. ``largest`` is the limit of one resource in bytes. ``sleep`` is
    a seam for tests; it takes seconds.
    """

    def __init__(
        self,
        client: ServiceClient,
        *,
        retry: RetryConfig,
        compression: CompressionConfig,
        stop: Stop,
        meter: Meter,
        stall_timeout: float = STALL_TIMEOUT,
        largest: int = LARGEST_RESOURCE,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._client = client
        self._retry = retry
        self._compression = compression
        self._stop = stop
        self._meter = meter
        self._stall_timeout = stall_timeout or STALL_TIMEOUT
        self._largest = largest
        self._sleep = sleep

    def fetch(
        self,
        url: str,
        directory: Path,
        base: str,
        *,
        stop: Stop | None = None,
        credentials: bool | None = None,
        allow_cross_origin: bool = False,
        allow_empty: bool = True,
        on_size: Callable[[int], None] | None = None,
        record: Callable[[FileFacts], None] | None = None,
        kind: str | None = None,
        lines: int | None = None,
    ) -> FileFacts:
        """Download ``url`` to ``<directory>/<base>.ndjson``, ``.ndjson.zst`` with compression enabled.

        A zstd answer is recognised by its first bytes: stored as is with compression enabled, decompressed without.
        ``stop`` overrides the step's; ``credentials`` and ``allow_cross_origin`` as in ``ServiceClient.stream``;
        ``on_size`` gets the size in bytes if the server sends it; ``record`` gets the facts just before the file
        gets its final name; ``kind`` is the type that all resources must have, ``lines`` the server's number of lines.
        No file remains after an error.

        Raises ``DataError`` when the body is not NDJSON of FHIR resources, found on the first line (``not-json``,
        ``not-object``, ``not-utf8``, ``not-a-resource``, ``resource-type-differs``, ``resource-too-large``,
        ``source-error``, ``source-incomplete``, ``zst-truncated``, ``zst-corrupt``; ``empty-file`` without
        ``allow_empty``); ``StalledError``; ``StorageError`` (``disk-full`` …); ``ServiceError`` (``download-status``,
        ``download-encoding``, ``download-media-type``, and those of the client); ``NetworkError``
        (``length-mismatch``, ``range-mismatch``, …) and ``ServiceBusyError`` after the last attempt; ``Stopped``.
        """
        stop = stop or self._stop

        def intake() -> Intake:
            return Intake(
                directory,
                base,
                self._compression,
                name=place(url),
                resources=True,
                kind=kind,
                largest=self._largest,
                lines=lines,
            )

        transfer = _Transfer(url, intake)
        failures = reached = 0
        try:
            while True:
                try:
                    self._attempt(transfer, failures + 1, stop, credentials, allow_cross_origin, on_size)
                    break
                except TransientError as error:
                    failures = 1 if transfer.furthest > reached else failures + 1
                    reached = transfer.furthest
                    if failures >= self._retry.max_attempts:
                        raise
                    self._wait(stop, error, failures)
            facts = transfer.commit(allow_empty, record)
        finally:
            transfer.intake.abort()
        self._meter.add(files=1, resources=facts.resources)
        return facts

    def _wait(self, stop: Stop, error: TransientError, failures: int) -> None:
        asked = error.retry_after if isinstance(error, ServiceBusyError) else None
        seconds = wait_seconds(self._retry, failures - 1, asked)
        announce(
            self._meter, self._client.service, _OPERATION, error,
            attempt=failures, attempts=self._retry.max_attempts, seconds=seconds,
        )  # fmt: skip
        sleep = stop.sleep if self._sleep is None else self._sleep
        sleep(seconds)

    def _attempt(
        self,
        transfer: _Transfer,
        attempt: int,
        stop: Stop,
        credentials: bool | None,
        allow_cross_origin: bool,
        on_size: Callable[[int], None] | None,
    ) -> None:
        stop.check()
        headers = {"Accept": "application/fhir+ndjson"} | transfer.range_headers()
        resuming = "Range" in headers
        with self._client.stream(
            "GET",
            transfer.url,
            operation=_OPERATION,
            headers=headers,
            timeout=self._stall_timeout,
            accept={_RANGE_NOT_SATISFIABLE} if resuming else (),
            credentials=credentials,
            allow_cross_origin=allow_cross_origin,
            attempt=attempt,
        ) as response:
            status = response.status_code
            if resuming and status in {_PARTIAL, _RANGE_NOT_SATISFIABLE}:
                self._check_range(transfer, status, response.headers)
            elif status == 200:
                self._start_over(transfer)
                transfer.begin(response.headers)
            else:
                raise self._refused(transfer, "download-status", f"was answered {status}", status)
            encoding = response.headers.get("Content-Encoding", "").strip().lower()
            if encoding not in {"", "identity", "zstd"}:
                raise self._refused(
                    transfer, "download-encoding", "was answered with a Content-Encoding that was not requested", status
                )
            if transfer.length is not None and on_size is not None:
                on_size(transfer.length)
            transfer.intake.run(_Body(response.iter_raw(), transfer, stop, self._meter))
            if encoding == "zstd" and transfer.intake.plain:
                what = "was answered with the Content-Encoding zstd, and the body is not compressed"
                raise self._refused(transfer, "download-encoding", what, status)
            if _media_type(response.headers) in _PAGES:
                # Only now: the error of a first line that is a login page is more precise.
                what = "was answered with the Content-Type of a page"
                raise self._refused(transfer, "download-media-type", what, status)
            if transfer.end is not None and transfer.offset > transfer.end:
                transfer.no_ranges()
            for expected in (transfer.end, transfer.length):
                if expected is not None and transfer.offset != expected:
                    arrived = f"{transfer.offset} of {expected} bytes arrived"
                    raise self._broken(transfer, "length-mismatch", arrived)

    def _start_over(self, transfer: _Transfer) -> None:
        self._meter.add(bytes=-transfer.offset)
        transfer.restart()

    def _check_range(self, transfer: _Transfer, status: int, headers: httpx.Headers) -> None:
        """Is this the part that was asked for, of the same file? If not, the next attempt takes the whole file."""
        match = _CONTENT_RANGE.match(headers.get("Content-Range", ""))
        if status != _PARTIAL or match is None or not transfer.goes_on(match, headers):
            transfer.no_ranges()
            raise self._broken(transfer, "range-mismatch", "the server did not send the part that was missing")

    def _broken(self, transfer: _Transfer, reference: str, message: str) -> NetworkError:
        return NetworkError(reference, message, context=place(transfer.url), operation=_OPERATION)

    def _refused(self, transfer: _Transfer, reference: str, what: str, status: int) -> ServiceError:
        return ServiceError(
            reference,
            f"{_OPERATION} {what}",
            context=place(transfer.url),
            operation=_OPERATION,
            status=status,
        )


class _Transfer:
    """Progress of one file, over all attempts."""

    def __init__(self, url: str, new_intake: Callable[[], Intake]) -> None:
        self.url = url
        self.offset = 0
        self.furthest = 0
        self.length: int | None = None
        self.end: int | None = None
        """Declared end of the bytes in the current answer."""
        self._new_intake = new_intake
        self.intake = new_intake()
        self._validator: str | None = None
        self._state: dict[str, str] = {}

    def restart(self) -> None:
        """Discard the received data."""
        self.intake.abort()
        self.intake = self._new_intake()
        self.offset = 0

    def commit(self, allow_empty: bool, record: Callable[[FileFacts], None] | None) -> FileFacts:
        """Finish the file; return its facts with those of the transfer."""

        def described(facts: FileFacts) -> FileFacts:
            return msgspec.structs.replace(facts, bytes_in=self.offset, source=place(self.url))

        def announce(facts: FileFacts) -> None:
            if record is not None:
                record(described(facts))

        return described(self.intake.commit(allow_empty=allow_empty, record=announce))

    def begin(self, headers: httpx.Headers) -> None:
        """Record the headers of a whole answer. A weak ETag does not vouch for bytes (RFC 9110 §13.1.5)."""
        self.length = self.end = _length(headers.get("Content-Length"))
        self._state = {name: headers[name] for name in _STATE if headers.get(name)}
        etag = self._state.get("ETag", "W/")
        self._validator = self._state.get("Last-Modified") if etag.startswith("W/") else etag

    def goes_on(self, part: re.Match[str], headers: httpx.Headers) -> bool:
        """Return whether a part begins where the bytes so far end, and belongs to the same file, whose size is known by
        now.

        Then notes where it ends.
        """
        first, last, total = int(part[1]), int(part[2]), _length(part[3])
        length = self.length if total is None else total
        same = all(headers.get(name) in (None, value) for name, value in self._state.items())
        if not same or length is None or self.length not in (None, length) or not self.offset == first <= last < length:
            return False
        self.length, self.end = length, last + 1
        return True

    def no_ranges(self) -> None:
        """Do not ask for a part again until the next whole answer."""
        self._validator = None

    def range_headers(self) -> dict[str, str]:
        """Return the headers to request the missing part; empty to request the whole file."""
        if not self._validator or not self.offset or not self.intake.resumable:
            return {}
        return {"Range": f"bytes={self.offset}-", "If-Range": self._validator}

    def arrived(self, count: int) -> None:
        """Count bytes."""
        self.offset += count
        self.furthest = max(self.furthest, self.offset)


class _Body:
    """The bytes of an answer as they arrive, counted; the end of a run is noticed here."""

    def __init__(self, chunks: Iterator[bytes], transfer: _Transfer, stop: Stop, meter: Meter) -> None:
        self._chunks = chunks
        self._transfer = transfer
        self._stop = stop
        self._meter = meter

    def read(self, size: int, /) -> bytes:
        """Return the next bytes as received, regardless of ``size``: cutting or gathering costs a copy."""
        self._stop.check()
        data = next(self._chunks, b"")
        self._transfer.arrived(len(data))
        self._meter.add(bytes=len(data))
        return data


def _media_type(headers: httpx.Headers) -> str:
    return str(headers.get("Content-Type", "")).partition(";")[0].strip().lower()


def _length(value: str | None) -> int | None:
    return int(value) if value is not None and value.isascii() and value.isdigit() else None
