"""Download the files of a result into ``import/`` (docs/services.md).

A file may appear late behind a proxy, so each download waits until HEAD is answered 200 with a ``Content-Length``
above 0. If HEAD is answered 403, 404 or 405, or 200 without a length, a GET with ``Range: bytes=0-0`` decides: it must
be answered 200 or 206.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

from config import ExtractorConfig
from tasks.extractor.manifest import ExtractionResult
from tasks.extractor.server import TRANSIENT, ExtractionServer
from tasks.extractor.submission import DIRECTORY
from tasks.extractor.urls import resolve, same_host
from tasks.shared.errors import ServiceBusyError, SluiceError, StorageError
from tasks.shared.file_work import Done
from tasks.shared.files.part_file import PartFile, publish
from tasks.shared.http.answer import place
from tasks.shared.http.client import Call
from tasks.shared.http.url_names import file_name, named_urls
from tasks.shared.import_directory import download_all
from tasks.shared.step import StepContext
from tasks.shared.stop import Stop

_NOT_YET: Final = frozenset({401, 403, 404, 405, *TRANSIENT, 500})
_HEAD_REFUSED: Final = frozenset({403, 404, 405})


def import_files(
    context: StepContext, server: ExtractionServer, result: ExtractionResult, warnings: list[str]
) -> list[Done]:
    """Download the unfinished files, several at once; return the records of all files.

    Raises ``ServiceBusyError`` (``file-not-available``), what ``download_all`` raises.
    """
    config = context.config.services.extractor
    wanted = named_urls([*result.counts])
    context.meter.begin("downloading")

    trusted = partial(_trusted, server, result)
    done = download_all(
        context, server.http, wanted, stall=config.download_stall_timeout, threads=config.max_concurrent_downloads,
        warnings=warnings, trusted=trusted,
        ready=lambda url, stop: _wait_until_available(config, server, url, trusted(url), stop),
    )  # fmt: skip
    for one in done:
        told = result.counts[wanted[one.file]]
        if told is not None and told != one.counts["lines"]:
            warnings.append(f"{one.file}: the manifest counts {told:,} lines, the file has {one.counts['lines']:,}")
    return done


def fetch_beside(
    context: StepContext, server: ExtractionServer, result: ExtractionResult, audits: Iterable[str], warnings: list[str]
) -> None:
    """Fetch the files that no later step reads: the reports of the result, and consent audits. A file that cannot be
    fetched is a warning."""
    wanted = [*(("reports", url) for url in result.report_urls), *(("consent", url) for url in audits)]
    for folder, url in dict.fromkeys(wanted):
        target = context.state(DIRECTORY) / folder / (file_name(url) or "file")
        try:
            if not target.exists():
                absolute = resolve(url, server.base_url)
                _fetch(context, server, absolute, target, _trusted(server, result, absolute))
        except StorageError:
            raise
        except SluiceError as error:
            status = f", status {error.status}" if error.status else ""
            warnings.append(f"not downloaded: {target.name} ({error.reference}{status})")


def _fetch(context: StepContext, server: ExtractionServer, url: str, target: Path, credentials: bool) -> None:
    call = Call("GET", url, "download", headers={"Accept": "*/*"})
    with server.http.stream(call, follow=True, credentials=credentials) as response, PartFile(target) as part:
        for piece in response.iter_bytes():
            context.stop.check()
            part.write(piece)
        part.sync()
        publish(target)


def _trusted(server: ExtractionServer, result: ExtractionResult, url: str) -> bool:
    """Return whether a URL gets the credentials: by its host, or by ``requiresAccessToken`` of the result."""
    return result.requires_access_token or same_host(url, server.base_url)


def _wait_until_available(
    extractor: ExtractorConfig, server: ExtractionServer, url: str, credentials: bool, stop: Stop
) -> None:
    """Check that a file is there, ``file_ready_retries`` times at most, ``file_ready_interval`` apart."""
    status, retrying = 200, server.http.retrying(sleep=stop.sleep)
    for attempt in range(extractor.file_ready_retries):
        if attempt:
            stop.sleep(extractor.file_ready_interval.total_seconds())
        status, length = retrying(_look, server, "HEAD", url, credentials)
        if status == 200 and length:
            return
        if status in _HEAD_REFUSED or (status == 200 and length is None):
            status, _ = retrying(_look, server, "GET", url, credentials)
            if status in (200, 206):
                return
    if extractor.file_ready_retries > 0:
        raise ServiceBusyError(
            "file-not-available", f"extractor: a file of the result is not available (status {status})",
            context=place(url), operation="download", status=status,
            hint="continue the job later; services.extractor.file_ready_retries is the number of checks",
        )  # fmt: skip


def _look(server: ExtractionServer, method: str, url: str, credentials: bool) -> tuple[int, int | None]:
    """Return the status, and the ``Content-Length`` if there is one."""
    headers = {"Accept": "application/fhir+ndjson"} | ({"Range": "bytes=0-0"} if method == "GET" else {})
    call = Call(method, url, "download", headers=headers, accept=_NOT_YET)
    with server.http.stream(call, follow=True, credentials=credentials) as response:
        length = response.headers.get("content-length", "")
        return response.status_code, int(length) if length.isascii() and length.isdigit() else None
