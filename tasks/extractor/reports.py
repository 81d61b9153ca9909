"""Download the parts of a result that are not data: reports and consent audit files (document 3 §2).

Reports go to ``extraction/reports/``, consent audit files, which the Task names, to ``extraction/consent/``. None of
them is ever an import file. A missing one is a warning, no failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.extractor.results import CONSENT, ERRORS, REPORTS, ResultFiles
from tasks.extractor.submission import DIRECTORY
from tasks.extractor.task import object_of, parse_json
from tasks.extractor.urls import resolve
from tasks.shared.blanked import SECRETS
from tasks.shared.errors import (
    NetworkError,
    ServiceError,
    SluiceError,
    StorageError,
    TransientError,
    storage_errors,
)
from tasks.shared.files.data_directory import existing_file
from tasks.shared.files.out_file import PartFile
from tasks.shared.files.private_file import open_private
from tasks.shared.http.client import ServiceClient
from tasks.shared.http.retry import announcing, retrying
from tasks.shared.http.url_names import file_name, named_urls
from tasks.shared.meter import Meter
from tasks.shared.step import StepContext

_CHECKS = 3
_LARGEST_OUTCOME = 8 << 20
_PAGES = ("text/html", "application/xhtml+xml")


class Companions:
    """Fetches what comes with the data files; a file that is there already is complete.

    URLs are as the server wrote them, relative to ``base_url``; ``files`` are the data files. ``sleep`` takes seconds.
    ``warnings`` collects what is missing, by name and without data.
    """

    def __init__(
        self,
        context: StepContext,
        http: ServiceClient,
        files: ResultFiles,
        base_url: str,
        *,
        sleep: Callable[[float], None],
    ) -> None:
        self._http = http
        self._files = files
        self._directory = context.job_dir / DIRECTORY
        self._base_url = base_url
        # Whether they come at all is open, and the data files were there: no need to wait for each as long.
        self._availability = replace(files.availability, checks=min(files.availability.checks, _CHECKS))
        self._timeout = context.config.services.extractor.download_stall_timeout.total_seconds()
        self._retry = context.config.retry
        self._stop = context.stop
        self._sleep = sleep
        self.warnings: list[str] = []

    def reports(self, urls: Sequence[str]) -> list[str]:
        """Fetch the reports; the names of those that are there."""
        found: list[str] = []
        for number, url in enumerate(urls, start=1):
            name = file_name(url) or f"report-{number}"
            target = self._directory / REPORTS / name
            if name in found:
                continue
            try:
                if not target.is_file():
                    self._fetch(self._ready(url), target)
            except StorageError:
                raise
            except SluiceError as error:
                self._missing(f"the report {name}", error)
            else:
                found.append(name)
        return found

    def outcomes(self, url: str, number: int) -> tuple[list[Any] | None, str]:
        """Return the OperationOutcomes in a file (a document or NDJSON) and its stored path; ``None`` if none."""
        target = self._directory / ERRORS / (file_name(url) or f"errors-{number}")
        kept = f"{ERRORS}/{target.name}"
        try:
            self._fetch(resolve(url, self._base_url), target)
        except StorageError:
            raise
        except SluiceError:
            return None, kept
        with storage_errors(target), open_private(target) as file:
            content = file.read(_LARGEST_OUTCOME)
        whole = parse_json(content)
        found = [whole] if whole is not None else [parse_json(line) for line in content.splitlines()]
        found = [one for one in found if object_of(one).get("resourceType") == "OperationOutcome"]
        return found or None, kept

    def consent(self, urls: Sequence[str]) -> int:
        """Fetch the consent audit files, which must be NDJSON; how many are there."""
        directory = self._directory / CONSENT
        downloader = self._files.downloader(Meter())  # their lines and bytes are not what this step moves
        found = missing = 0
        reason: SluiceError | None = None
        for named in named_urls(list(dict.fromkeys(urls))):
            self._stop.check()
            try:
                if existing_file(directory, named.base) is None:
                    absolute = self._ready(named.url)
                    trusted = self._files.trusted(absolute)
                    downloader.fetch(
                        absolute, directory, named.base, credentials=trusted, allow_cross_origin=True, kind="Bundle"
                    )
            except StorageError:
                raise
            except SluiceError as error:
                missing += 1
                reason = error
            else:
                found += 1
        if reason is not None:
            self._missing(f"{missing} of {len(urls)} consent audit files", reason)
        return found

    def _ready(self, url: str) -> str:
        """Return the absolute URL of an available file."""
        absolute = resolve(url, self._base_url)
        try:
            self._availability.wait(absolute, credentials=self._files.trusted(absolute), sleep=self._sleep)
        except TransientError:
            # One is missing: the others, of which there may be hundreds, are asked for once.
            self._availability = replace(self._availability, checks=min(self._availability.checks, 1))
            raise
        return absolute

    def _missing(self, what: str, error: SluiceError) -> None:
        status = f", status {error.status}" if error.status else ""
        self.warnings.append(f"not downloaded: {what} ({error.reference}{status})")

    def _fetch(self, url: str, target: Path) -> None:
        """Download one file as it comes."""
        announce = announcing(self._http.meter, self._http.service, self._retry)
        for attempt in retrying(self._retry, sleep=self._sleep, before_wait=announce):
            with attempt:
                self._attempt(url, target, attempt.retry_state.attempt_number)

    def _attempt(self, url: str, target: Path, attempt: int) -> None:
        self._stop.check()
        with (
            self._http.stream(
                "GET",
                url,
                operation="download",
                headers={"Accept": "*/*"},
                timeout=self._timeout,
                allow_cross_origin=True,
                credentials=self._files.trusted(url),
                attempt=attempt,
            ) as response,
            PartFile(target) as part,
        ):
            if response.status_code != 200 or response.headers.get("content-type", "").lower().startswith(_PAGES):
                what = "a report was answered with a page, or with a part"
                raise ServiceError("download-status", what, operation="download", status=response.status_code)
            if response.headers.get("content-encoding", "").strip().lower() not in {"", "identity"}:
                what = "the server sent a report with a Content-Encoding that was not requested"
                raise ServiceError("download-encoding", what, operation="download", status=response.status_code)
            size = 0

            def pieces() -> Iterator[bytes]:
                nonlocal size
                for piece in response.iter_raw():
                    self._stop.check()
                    size += len(piece)
                    yield piece

            for piece in SECRETS.pieces(pieces()):
                part.write(piece)
            length = response.headers.get("content-length")
            if length is not None and length != str(size):
                raise NetworkError("length-mismatch", "a report did not arrive whole", operation="download")
            part.commit()
