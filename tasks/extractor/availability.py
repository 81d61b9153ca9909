"""Whether a result file is there: results may appear late behind a proxy (documents 1 and 3, "Availability").

Available means HEAD 200 with a ``Content-Length`` above 0. Where HEAD is answered 403, 404 or 405, or 200 without a
length, a GET with ``Range: bytes=0-0`` decides: 200 or 206.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tasks.extractor.client import TRANSIENT
from tasks.shared.errors import ServiceBusyError, TransientError
from tasks.shared.http.answer import place
from tasks.shared.http.client import ServiceClient

_FALLBACK = frozenset({403, 404, 405})
_NOT_YET = frozenset({204, *range(400, 500), *range(500, 600)}) - {401, 407}
"""Answers of a file that may still appear. 401 and 407 are about credentials: waiting changes nothing."""


@dataclass(frozen=True)
class Availability:
    """The check before each download: at most ``checks`` times, ``interval`` seconds apart; 0 or less: none."""

    http: ServiceClient
    checks: int
    interval: float
    timeout: float

    def wait(self, url: str, *, credentials: bool, sleep: Callable[[float], None]) -> None:
        """Return when the file is there.

        Raises ``ServiceBusyError`` (``file-not-available``) after the last check, ``ServiceError`` for an answer that
        no waiting changes, ``Stopped``.
        """
        status: int | None = None
        for number in range(self.checks):
            if number:
                sleep(self.interval)
            try:
                status = self._check(url, credentials)
            except TransientError as error:
                status = error.status
            if status in (200, 206):
                return
        if self.checks <= 0:
            return
        raise ServiceBusyError(
            "file-not-available",
            f"extractor: a result file is not available after {self.checks} checks",
            context=place(url),
            hint="pipeline continue checks again; services.extractor.file_ready_retries and file_ready_interval can be "
            "raised",
            operation="download",
            status=status,
        )

    def _check(self, url: str, credentials: bool) -> int:
        """One check: 200 or 206 when the file is there, else another status."""
        status, length = self._ask("HEAD", url, credentials)
        if status in _FALLBACK or (status == 200 and length is None):
            return self._ask("GET", url, credentials)[0]
        # HEAD 200 with length 0: the file is still being made.
        return 404 if status == 200 and length == 0 else status

    def _ask(self, method: str, url: str, credentials: bool) -> tuple[int, int | None]:
        """The status, and the ``Content-Length`` where there is one."""
        headers = {"Accept": "application/fhir+ndjson"} | ({"Range": "bytes=0-0"} if method == "GET" else {})
        with self.http.stream(
            method,
            url,
            operation="download",
            headers=headers,
            timeout=self.timeout,
            accept=_NOT_YET,
            transient=TRANSIENT,
            allow_cross_origin=True,
            credentials=credentials,
        ) as response:
            length = response.headers.get("content-length", "")
            known = length.isascii() and length.isdigit() and len(length) < 19
            return response.status_code, int(length) if known else None
