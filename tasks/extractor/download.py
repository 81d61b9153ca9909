"""Downloading the files of a result into ``import/`` (document 1, procedure 6 and 7; document 3 §2).

Results may appear late behind a proxy, so each download waits until its file is available: HEAD 200 with a
``Content-Length`` above 0. Where HEAD is answered 403, 404 or 405, or 200 without a length, a GET with
``Range: bytes=0-0`` decides: 200 or 206.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from tasks.extractor.manifest import ExtractionResult
from tasks.extractor.server import TRANSIENT, ExtractionServer
from tasks.extractor.urls import resolve, same_host
from tasks.shared.errors import ServiceBusyError, SluiceError, StorageError
from tasks.shared.file_work import Done, digest
from tasks.shared.files.data_directory import is_consent_name
from tasks.shared.files.ndjson import MIB
from tasks.shared.files.part_file import PartFile, publish
from tasks.shared.http.answer import place
from tasks.shared.http.download import Downloader
from tasks.shared.http.url_names import file_name, named_urls
from tasks.shared.import_directory import directory_of, finish_import, import_work
from tasks.shared.step import StepContext
from tasks.shared.stop import Stop
from tasks.shared.work import for_each

_NOT_YET: Final = frozenset({401, 403, 404, 405, *TRANSIENT, 500})
_HEAD_REFUSED: Final = frozenset({403, 404, 405})


class ResultFiles:
    """The files of one result on their way into the job directory; finished ones are not fetched again.

    ``warnings`` collects what a person should know.
    """

    def __init__(self, context: StepContext, server: ExtractionServer, result: ExtractionResult) -> None:
        self._context = context
        self._server = server
        self._result = result
        self.warnings: list[str] = []

    def import_all(self) -> list[Done]:
        """Download what is not there yet, several at once; return the records of all files.

        Raises ``ServiceBusyError`` (``file-not-available``), what ``Downloader.fetch`` raises, ``Stopped``.
        """
        context, work = self._context, import_work(self._context)
        wanted = {named.base: named.url for named in named_urls(self._result.urls)}
        inputs = {base: digest(url) for base, url in wanted.items()}
        todo = work.begin(inputs)
        meter = context.meter
        meter.begin("downloading")
        meter.expect(files=len(wanted))
        meter.add(files=len(wanted) - len(todo))
        downloader = self._downloader()

        def one(base: str, stop: Stop) -> None:
            url, begun = wanted[base], time.monotonic()
            trusted = self._trusted(url)
            self._wait_until_available(url, trusted, stop.sleep)
            with downloader.fetch(url, directory_of(context), base, stop=stop, credentials=trusted) as intake:
                told, lines = self._result.counts[url], intake.check.lines
                differs = []
                if told is not None and told != lines:
                    differs.append(f"{base}: the manifest counts {told:,} lines, the file has {lines:,}")
                done = finish_import(work, base, inputs[base], intake, begun, *differs)
            meter.add(files=1, resources=done.counts["resources"])

        for_each(todo, one, threads=context.config.services.extractor.max_concurrent_downloads, stop=context.stop)
        if named := [base for base in wanted if is_consent_name(f"{base}.ndjson")]:
            self.warnings.append(f"imported as data, though named like consent audit files: {', '.join(named[:5])}")
        return work.done()

    def fetch_beside(self, urls: Iterable[str], directory: Path) -> list[str]:
        """Fetch files that no later step reads (reports, consent audits), best effort; return the names of those that
        are there."""
        found = []
        for number, url in enumerate(dict.fromkeys(urls), start=1):
            name = file_name(url) or f"file-{number}"
            try:
                if not (directory / name).exists():
                    self._fetch(resolve(url, self._server.base_url), directory / name)
                found.append(name)
            except StorageError:
                raise
            except SluiceError as error:
                status = f", status {error.status}" if error.status else ""
                self.warnings.append(f"not downloaded: {name} ({error.reference}{status})")
        return found

    def _fetch(self, url: str, target: Path) -> None:
        stream = self._server.http.stream(
            "GET", url, operation="download", follow=True, credentials=self._trusted(url), headers={"Accept": "*/*"}
        )
        with stream as response, PartFile(target) as part:
            for piece in response.iter_bytes():
                self._context.stop.check()
                part.write(piece)
            part.sync()
            publish(target)

    def _downloader(self) -> Downloader:
        context = self._context
        return Downloader(
            self._server.http,
            retry=context.config.retry,
            compression=context.config.compression,
            stop=context.stop,
            meter=context.meter,
            most=context.config.limits.max_line_mb * MIB,
            stall_timeout=context.config.services.extractor.download_stall_timeout.total_seconds(),
        )

    def _trusted(self, url: str) -> bool:
        """Return whether a URL gets the credentials: the host of ``base_url``, or ``requiresAccessToken``."""
        return self._result.requires_access_token or same_host(url, self._server.base_url)

    def _wait_until_available(self, url: str, credentials: bool, sleep: Callable[[float], None]) -> None:
        """Check that a file is there, ``file_ready_retries`` times at most, ``file_ready_interval`` apart."""
        extractor = self._context.config.services.extractor
        status = 200
        for attempt in range(extractor.file_ready_retries):
            if attempt:
                sleep(extractor.file_ready_interval.total_seconds())
            status, length = self._look("HEAD", url, credentials)
            if status == 200 and length:
                return
            if status in _HEAD_REFUSED or (status == 200 and length is None):
                status, _ = self._look("GET", url, credentials)
                if status in (200, 206):
                    return
        if extractor.file_ready_retries > 0:
            raise ServiceBusyError(
                "file-not-available",
                f"extractor: a file of the result is not available (status {status})",
                context=place(url),
                hint="continue the job later; services.extractor.file_ready_retries says how often it is asked for",
                operation="download",
                status=status,
            )

    def _look(self, method: str, url: str, credentials: bool) -> tuple[int, int | None]:
        """Return the status, and the ``Content-Length`` if there is one."""
        headers = {"Accept": "application/fhir+ndjson"} | ({"Range": "bytes=0-0"} if method == "GET" else {})
        with self._server.http.stream(
            method, url, operation="download", headers=headers, accept=_NOT_YET, follow=True, credentials=credentials
        ) as response:
            length = response.headers.get("content-length", "")
            return response.status_code, int(length) if length.isascii() and length.isdigit() else None
