"""Downloading the files of a result into ``import/`` (document 1, procedure 6 and 7; document 3 §2).

Results may appear late behind a proxy (documents 1 and 3, "Availability"), so each download waits until its file is
available: HEAD 200 with a ``Content-Length`` above 0. Where HEAD is answered 403, 404 or 405, or 200 without a length,
a GET with ``Range: bytes=0-0`` decides: 200 or 206.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tasks.extractor.client import TRANSIENT
from tasks.extractor.manifest import ExtractionResult
from tasks.extractor.submission import DIRECTORY
from tasks.extractor.urls import same_host
from tasks.shared.errors import ServiceBusyError, TransientError, storage_errors
from tasks.shared.files.data_directory import CORE, base_name, data_files
from tasks.shared.files.intake import FileFacts
from tasks.shared.files.out_file import write_file
from tasks.shared.files.private_file import read_state
from tasks.shared.http.answer import place
from tasks.shared.http.client import ServiceClient
from tasks.shared.http.download import Downloader
from tasks.shared.http.url_names import NamedUrl, named_urls
from tasks.shared.import_directory import IMPORT, ImportDirectory, consent_names_warning
from tasks.shared.meter import Meter
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tasks.shared.stop import Stop
from tasks.shared.work import for_each

SOURCE = "source.json"
"""Says in ``extraction/`` which job the files in ``import/`` belong to."""
ERRORS = "errors"
REPORTS = "reports"
CONSENT = "consent"

_FALLBACK = frozenset({403, 404, 405})
_NOT_YET = frozenset({204, *range(400, 500), *range(500, 600)}) - {401, 407}
"""Answers of a file that may still appear. 401 and 407 are about credentials: waiting changes nothing."""


class _Source(msgspec.Struct):
    status_url: str


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
        """Check a file once: return 200 or 206 if it is available, else another status."""
        status, length = self._head_or_first_byte("HEAD", url, credentials)
        if status in _FALLBACK or (status == 200 and length is None):
            return self._head_or_first_byte("GET", url, credentials)[0]
        # HEAD 200 with length 0: the file is still being made.
        return 404 if status == 200 and length == 0 else status

    def _head_or_first_byte(self, method: str, url: str, credentials: bool) -> tuple[int, int | None]:
        """Return the status, and the ``Content-Length`` if there is one."""
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


class ResultFiles:
    """The files of one result on their way into the job directory; what a run before this one finished stays.

    ``sleep`` takes seconds and may raise ``Stopped``; by default it is the stop's own. ``core_lines`` counts the lines
    of the core file, ``warnings`` collects what a person should know.
    """

    def __init__(
        self,
        context: StepContext,
        http: ServiceClient,
        result: ExtractionResult,
        base_url: str,
        *,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._context = context
        self._http = http
        self._result = result
        self._base_url = base_url
        self._sleep = sleep
        extractor = context.config.services.extractor
        self.availability = Availability(
            http,
            checks=extractor.file_ready_retries,
            interval=extractor.file_ready_interval.total_seconds(),
            timeout=extractor.request_timeout.total_seconds(),
        )
        self.warnings: list[str] = []
        self.core_lines = 0
        self._outputs = named_urls([output.url for output in result.outputs])
        self._of = {output.url: output for output in result.outputs}
        self._note_oddities()

    def trusted(self, url: str) -> bool:
        """Return whether a URL gets the credentials: the host of ``base_url``, or ``requiresAccessToken``."""
        return self._result.requires_access_token or same_host(url, self._base_url)

    def downloader(self, meter: Meter) -> Downloader:
        """Return a downloader with the settings of this step that counts its bytes in ``meter``."""
        config = self._context.config
        return Downloader(
            self._http,
            retry=config.retry,
            compression=config.compression,
            stop=self._context.stop,
            meter=meter,
            stall_timeout=config.services.extractor.download_stall_timeout.total_seconds(),
            largest=config.limits.largest_resource,
            sleep=self._sleep,
        )

    def import_all(self, status_url: str) -> StepReport:
        """Download what is not there yet, several at once; the counts of all files.

        Raises ``ServiceBusyError`` (``file-not-available``), what ``Downloader.fetch`` raises, ``Stopped``.
        """
        context = self._context
        claim(context.job_dir, context.position, status_url, {output.base for output in self._outputs})
        target = ImportDirectory(context)
        progress = context.meter
        progress.begin("downloading")
        progress.expect(files=len(self._outputs))
        downloader = self.downloader(progress)

        def one(output: NamedUrl, stop: Stop) -> None:
            done = target.finished(output.base)
            # A name may have become another file's: the outputs can come in another order than before.
            if done is not None and done.source in ("", place(output.url)):
                progress.add(files=1, resources=done.resources, earlier=True)
                self._note_core(output, done)
                return
            if done is not None:
                target.remove(done)  # before the other one comes: after a kill there is neither, not one twice
            trusted = self.trusted(output.url)
            self.availability.wait(output.url, credentials=trusted, sleep=self._sleep or stop.sleep)
            facts = downloader.fetch(
                output.url,
                target.path,
                output.base,
                stop=stop,
                credentials=trusted,
                allow_cross_origin=True,
                allow_empty=False,
                record=target.record,
                kind=self._of[output.url].kind,
                lines=self._of[output.url].lines,
            )
            target.add(facts)
            self._note_core(output, facts)

        threads = context.config.services.extractor.max_concurrent_downloads
        for_each(self._outputs, one, threads=threads, stop=context.stop)
        return target.result()

    def _note_core(self, output: NamedUrl, facts: FileFacts) -> None:
        if output.base.casefold() == CORE:
            self.core_lines = facts.lines

    def _note_oddities(self) -> None:
        bases = [output.base for output in self._outputs]
        renamed = [base for base in bases if base.casefold().startswith(f"{CORE}-") and base[5:].isdigit()]
        if renamed and any(base.casefold() == CORE for base in bases):
            self.warnings.append(
                "the result has more than one core file; only the first is processed before the others"
            )
        self.warnings += consent_names_warning(bases)


def claim(job_dir: Path, position: int, status_url: str, bases: set[str]) -> None:
    """Make ``import/`` hold nothing but files of this extraction.

    A fresh extraction after a dead handle has files of the same names (``core.ndjson``) with other content, so what an
    earlier one left is removed, together with its reports. Raises ``StorageError``.
    """
    note = job_dir / DIRECTORY / SOURCE
    same = read_state(note, _Source) == _Source(status_url)
    with storage_errors(job_dir / IMPORT):
        for path in data_files(job_dir / IMPORT):
            if not same or base_name(path.name) not in bases:
                path.unlink()
        if not same:
            for folder in (REPORTS, CONSENT, ERRORS):
                _empty(job_dir / DIRECTORY / folder)
            (job_dir / ".results" / f"{position}-files.ndjson").unlink(missing_ok=True)
    if not same:
        write_file(note, msgspec.json.encode(_Source(status_url)))


def _empty(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            path.unlink()
