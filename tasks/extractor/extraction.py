"""The extraction step (document 1, "Extraction step procedure"): one run of it, from the handle to the last file."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from config import ConfigError, EnrichmentRule, PipelineConfig
from config.enrichments import enrichment_rules
from tasks.extractor import failures
from tasks.extractor.client import ExtractionClient
from tasks.extractor.connection import base_url_of, extraction_client, service_client
from tasks.extractor.manifest import ExtractionResult, details, parse_result
from tasks.extractor.polling import Gone, Poller
from tasks.extractor.reports import Companions
from tasks.extractor.results import ResultFiles
from tasks.extractor.submission import DIRECTORY, Query, Submission
from tasks.extractor.urls import is_result_url, job_id_of, result_url_unknown
from tasks.shared.blanked import blanked
from tasks.shared.errors import InputError, ServiceError, SluiceError
from tasks.shared.fhir.crtdl import Crtdl, load_crtdl
from tasks.shared.fhir.crtdl_preprocessing import idle_rules
from tasks.shared.files.out_file import write_file
from tasks.shared.http.answer import Answer
from tasks.shared.http.client import ServiceClient
from tasks.shared.log import logger
from tasks.shared.meter import Meter
from tasks.shared.report import StepReport
from tasks.shared.step import Handle, StepContext

MANIFEST = "manifest.json"

ClientFactory = Callable[[PipelineConfig, StepContext], ServiceClient]


def run(
    context: StepContext,
    *,
    client: ClientFactory = service_client,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] | None = None,
) -> StepReport:
    """Extract and download; goes on with the job whose handle is stored.

    ``given.input`` may be the URL of a complete result: then nothing is submitted. ``client``, ``clock`` (seconds) and
    ``sleep`` (seconds) are seams for tests.

    Raises the named failures of ``failures.py`` and what the modules of this package raise.
    """
    with client(context.config, context) as http:
        return _Run(context, http, clock, sleep or context.stop.sleep, download_sleep=sleep).run()


class _Run:
    """One run of the step."""

    def __init__(
        self,
        context: StepContext,
        http: ServiceClient,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        *,
        download_sleep: Callable[[float], None] | None,
    ) -> None:
        self._context = context
        self._http = http
        self._client: ExtractionClient = extraction_client(context.config, http)
        self._sleep = sleep
        self._download_sleep = download_sleep
        self._base_url = base_url_of(context.config)
        self._directory: Path = context.job_dir / DIRECTORY
        self._poller = Poller(self._client, context.config.services.extractor, context.meter, clock=clock, sleep=sleep)
        self._warnings: list[str] = []

    def run(self) -> StepReport:
        """All eight points of the procedure."""
        handle: Handle | None = None
        if self._context.given.input is not None:
            status_url = self._context.given.input
            answer = self._direct(status_url)
        else:
            handle, answer = self._extract()
            status_url = handle.status_url
        write_file(self._directory / MANIFEST, blanked(answer.body))
        result = parse_result(answer, status_url)
        if not result.urls:
            raise self._nothing(result, status_url)
        files = ResultFiles(self._context, self._http, result, self._base_url, sleep=self._download_sleep)
        imported = files.import_all(status_url)
        companions = self._companions(files)
        reports = companions.reports(result.report_urls)
        consent = self._consent(companions, files, handle, status_url)
        expected, found = result.final_patients, (imported.lines_out or 0) - files.core_lines
        if expected is not None and expected != found:
            # One Bundle a patient and line (document 2, "Result files").
            self._warnings.append(
                f"the server counts {expected} patients in the result, the files hold {found} Bundles"
            )
        self._warnings += files.warnings + companions.warnings
        return self._result(imported, result, reports, consent)

    def _direct(self, url: str) -> Answer:
        """The answer of a URL that names a complete result."""
        if not is_result_url(url):
            raise result_url_unknown(url)
        answer = self._poller.wait(url, None)
        if isinstance(answer, Gone):
            raise failures.result_gone(url, answer.status)
        return answer

    def _extract(self) -> tuple[Handle, Answer]:
        """The handle and the final answer of the extraction; after a dead handle it is submitted afresh, once."""
        submission = self._submission()
        self._context.meter.say("submitting")
        handle = submission.handle()
        fresh = False
        while True:
            self._context.meter.say("extracting")
            answer = self._wait(submission, handle)
            if not isinstance(answer, Gone):
                if submission.is_ours(handle, answer):
                    self._warnings += submission.warnings
                    return handle, answer
                handle = submission.handle()
                continue
            if self._was_cancelled(handle):
                raise failures.cancelled(handle.status_url, handle.job_id, answer.status)
            self._context.handle.save(None)
            if fresh:
                raise failures.dead_handle(handle.status_url, answer.status, "the freshly submitted one too")
            logger.warning("extraction job %s is gone (%d), submitting afresh", handle.job_id, answer.status)
            self._warnings.append(f"extraction job {handle.job_id} was gone on the server and was submitted afresh")
            handle, fresh = submission.submit(), True

    def _wait(self, submission: Submission, handle: Handle) -> Answer | Gone:
        try:
            return self._poller.wait(handle.status_url, handle)
        except ServiceError as error:
            if error.reference == "extraction-failed" and submission.on_trial(handle):
                raise submission.undecided([handle.job_id]) from None  # the failure may be somebody else's
            raise

    def _submission(self) -> Submission:
        context = self._context
        if context.given.crtdl is None:
            raise InputError(
                "crtdl-missing",
                "the step extractor needs a CRTDL",
                context="pipeline.enabled_steps",
                hint="give the CRTDL file on the command line",
            )
        query = Query(context.given.crtdl, context.given.patients)
        return Submission(self._client, context.handle, self._directory, query)

    def _was_cancelled(self, handle: Handle) -> bool:
        """Whether a person cancelled the job, as its Task says; read once (document 3 §2)."""
        try:
            return self._client.task(handle.job_id, brief=True).cancelled
        except SluiceError as error:
            logger.info("the Task of a job that is gone says nothing useful (%s)", error.reference)
            return False

    def _nothing(self, result: ExtractionResult, status_url: str) -> SluiceError:
        if result.errors:
            return failures.reported_errors(status_url, result.errors, f"{DIRECTORY}/{MANIFEST}")
        return failures.no_matching_data(status_url)

    def _companions(self, files: ResultFiles) -> Companions:
        extractor = self._context.config.services.extractor
        return Companions(
            self._http,
            self._directory,
            base_url=self._base_url,
            availability=files.availability,
            trusted=files.trusted,
            timeout=extractor.download_stall_timeout.total_seconds(),
            retry=self._context.config.retry,
            stop=self._context.stop,
            sleep=self._sleep,
        )

    def _consent(self, companions: Companions, files: ResultFiles, handle: Handle | None, status_url: str) -> int:
        """Download the consent audit files, which only the Task names; how many there are."""
        job_id = handle.job_id if handle is not None else job_id_of(status_url)
        try:
            UUID(job_id)
            task = self._client.task(job_id, brief=True)
        except ValueError:
            return 0
        except ServiceError:
            return 0  # a server without Task API has no consent audit either
        except SluiceError as error:
            self._warnings.append(f"whether there are consent audit files is not known ({error.reference})")
            return 0
        # Their lines and bytes are not what this step moves.
        return companions.consent(task.consent_urls, files.downloader(Meter()))

    def _result(self, imported: StepReport, result: ExtractionResult, reports: list[str], consent: int) -> StepReport:
        crtdl = self._crtdl()
        facts = details(result, crtdl)
        if crtdl is not None:
            self._warnings += idle_rules(crtdl, self._rules())
        if reports:
            facts["reports"] = reports
        if consent:
            facts["consent_files"] = consent
        if result.listed_errors:
            self._warnings.append(
                f"the result lists {result.listed_errors} errors beside its files; see {DIRECTORY}/{MANIFEST}"
            )
        issues = result.issues
        serious = {severity: count for severity, count in issues.items() if severity not in ("INFO", "SUCCESS")}
        if serious:
            shown = ", ".join(f"{count} {severity}" for severity, count in serious.items())
            self._warnings.append(f"the extraction server reports issues: {shown}; see {DIRECTORY}/{MANIFEST}")
        return StepReport(
            files=imported.files,
            resources_in=imported.resources_in,
            resources_out=imported.resources_out,
            lines_out=imported.lines_out,
            bytes_in=imported.bytes_in,
            bytes_out=imported.bytes_out,
            output=imported.output,
            warnings=(*imported.warnings, *self._warnings),
            details=imported.details | facts,
        )

    def _rules(self) -> tuple[EnrichmentRule, ...]:
        try:
            return enrichment_rules(self._context.config.services.crtdl_preprocessing)
        except ConfigError:
            return ()  # the file of rules has gone since they were applied

    def _crtdl(self) -> Crtdl | None:
        """The effective CRTDL, for the names of its groups; none is needed with a direct result URL."""
        try:
            return load_crtdl(self._context.given.crtdl) if self._context.given.crtdl is not None else None
        except InputError:
            return None
