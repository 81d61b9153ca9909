"""The extraction step (document 1, "Extraction step procedure"): one run of it, from the handle to the last file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import msgspec

from config import ConfigError, EnrichmentRule, PipelineConfig
from config.enrichments import enrichment_rules
from tasks.extractor import failures
from tasks.extractor.client import ExtractionClient, base_url_of, extraction_client, service_client
from tasks.extractor.manifest import ExtractionResult, details, errors_among, left_out, parse_result
from tasks.extractor.polling import Gone, Poller
from tasks.extractor.reports import Companions
from tasks.extractor.results import ResultFiles
from tasks.extractor.submission import DIRECTORY, Submission, SubmittedQuery, vanished
from tasks.extractor.task import ExtractionTask, list_of, object_of, parse_json
from tasks.extractor.urls import is_result_url, job_id_of, result_url_unknown
from tasks.shared.blanked import blanked
from tasks.shared.errors import InputError, ServiceError, SluiceError, StorageError, storage_errors
from tasks.shared.fhir.crtdl import Crtdl, load_crtdl, read_content
from tasks.shared.fhir.crtdl_preprocessing import doubtful, enrich, idle_rules
from tasks.shared.files.kept_answers import LARGEST, FailedAnswers
from tasks.shared.files.out_file import write_file
from tasks.shared.http.answer import Answer, answer_of
from tasks.shared.http.client import ServiceClient
from tasks.shared.log import logger
from tasks.shared.report import StepReport
from tasks.shared.step import Handle, StepContext
from tasks.shared.units import human_count

MANIFEST = "manifest.json"
FAILURE = "failed.json"
"""What the server says of a job that has failed for good (mode 0600)."""

_ERROR_FILES = 10
"""Files of errors that are fetched when there are no others."""

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
        self._poller = Poller(
            self._client,
            context.config.services.extractor,
            context.meter,
            resume=lambda job_id: context.command("extraction resume", job_id),
            clock=clock,
            sleep=sleep,
        )
        self._warnings: list[str] = []

    def run(self) -> StepReport:
        """Run all eight points of the procedure."""
        self._failed = FailedAnswers(self._directory).begin()
        with storage_errors(self._directory / FAILURE):
            (self._directory / FAILURE).unlink(missing_ok=True)
        handle: Handle | None = None
        if self._context.given.input is not None:
            status_url = self._context.given.input
            answer = self._direct(status_url)
        else:
            handle, answer = self._extract()
            status_url = handle.status_url
        with self._failure_kept(answer):
            result = parse_result(answer, status_url, self._base_url)
        write_file(self._directory / MANIFEST, blanked(answer.body))
        files = ResultFiles(self._context, self._http, result, self._base_url, sleep=self._download_sleep)
        companions = Companions(self._context, self._http, files, self._base_url, sleep=self._sleep)
        if not result.outputs:
            raise self._nothing(result, companions, status_url)
        imported = files.import_all(status_url)
        reports = companions.reports(result.report_urls)
        consent = self._consent(companions, handle, status_url)
        expected, found = result.final_patients, (imported.lines_out or 0) - files.core_lines
        if expected is not None and expected != found:
            # One Bundle a patient and line (document 2, "Result files").
            counted, held = human_count(expected, "patient"), human_count(found, "Bundle")
            self._warnings.append(f"the server counts {counted} in the result, the files hold {held}")
        self._warnings += files.warnings + companions.warnings
        return self._result(imported, result, reports, consent)

    @contextmanager
    def _failure_kept(self, answer: Answer) -> Iterator[None]:
        """Keep an answer that turns out to be wrong."""
        try:
            yield
        except ServiceError as error:
            self._failed.save_answer_of(error, answer=answer)
            raise

    def _direct(self, url: str) -> Answer:
        """Return the answer of a URL that names a complete result."""
        if not is_result_url(url):
            raise result_url_unknown(url)
        try:
            answer = self._poller.wait(url, None)
        except ServiceError as error:
            raise self._explained(error, url) from None
        if isinstance(answer, Gone):
            raise failures.result_gone(url, answer.status)
        return answer

    def _extract(self) -> tuple[Handle, Answer]:
        """Return the handle and the final answer of the extraction; a dead handle is submitted again once."""
        submission = self._submission()
        self._context.meter.set_status("submitting")
        handle = submission.handle()
        fresh = False
        while True:
            self._context.meter.set_status("extracting")
            answer = self._wait(submission, handle)
            if not isinstance(answer, Gone):
                with self._failure_kept(answer):
                    ours = submission.is_ours(handle, answer)
                if ours:
                    self._warnings += submission.warnings
                    return handle, answer
                handle = submission.handle()
                continue
            # Whether a person cancelled the job, is read once (document 3 §2).
            task = self._task(handle.job_id)
            if task is not None and task.cancelled:
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
            raise self._explained(error, handle.status_url) from None

    def _explained(self, error: ServiceError, status_url: str) -> ServiceError:
        """Add the codes and counts of its errors to the failure of a job; store the texts, which may quote data."""
        answer = answer_of(error)
        if error.reference != "extraction-failed" or answer is None:
            return error
        task = self._task(job_id_of(status_url))
        by_task = task.issues if task is not None else ()
        document = parse_json(answer.body)
        told = {
            "answer": document,
            "text": None if document is not None else _text(answer.body),
            "task_issues": by_task,
        }
        kept: str | None = f"{DIRECTORY}/{FAILURE}"
        try:
            write_file(self._directory / FAILURE, blanked(msgspec.json.encode(told)) + b"\n")
        except StorageError as problem:
            logger.warning("why the extraction has failed cannot be kept: %s", problem.message)
            kept = None
        issues = list_of(object_of(document).get("issue"))
        show = self._context.command("extraction show", job_id_of(status_url))
        return failures.extraction_failed(status_url, errors_among(issues), errors_among(by_task), kept, show)

    def _submission(self) -> Submission:
        context = self._context
        if context.given.crtdl is None:
            raise InputError(
                "crtdl-missing",
                "the step extractor needs a CRTDL",
                context="pipeline.enabled_steps",
                hint="give the CRTDL file on the command line",
            )
        for doubt in doubtful(context.given.crtdl):
            context.meter.warn(doubt)
            self._warnings.append(doubt)
        query = SubmittedQuery(context.given.crtdl, context.given.patients, given=self._given_query)
        return Submission(self._client, context.handle, self._directory, query)

    def _given_query(self) -> bytes | None:
        """Return the effective CRTDL as it would be built now; ``None`` if the given CRTDL no longer exists.

        Raises ``InputError`` and ``ConfigError`` when it, or a rule of enrichment, cannot be used.
        """
        source = self._context.given_crtdl
        if source is None or vanished(source):
            return None
        rules = enrichment_rules(self._context.config.services.crtdl_preprocessing)
        return enrich(read_content(source), rules, source).content

    def _task(self, job_id: str) -> ExtractionTask | None:
        """Return the Task of a missing or failed job, if it can be read."""
        try:
            return self._client.task(job_id, brief=True)
        except SluiceError as error:
            logger.info("the Task of a job that failed or is gone says nothing useful (%s)", error.reference)
            return None

    def _nothing(self, result: ExtractionResult, companions: Companions, status_url: str) -> SluiceError:
        """Return the error for a result without files: the server's errors if it reports any, else no match."""
        errors, kept = errors_among(list_of(result.extensions.get("job-issues"))), [f"{DIRECTORY}/{MANIFEST}"]
        for number, error in enumerate(result.listed_errors):
            outcomes = [error] if isinstance(error, dict) else None
            if isinstance(error, str) and number < _ERROR_FILES:
                outcomes, path = companions.outcomes(error, number + 1)
                kept += [f"{DIRECTORY}/{path}"] if outcomes is not None else []
            if outcomes is None:
                errors["that cannot be read"] += 1
            for outcome in outcomes or ():
                errors += errors_among(list_of(object_of(outcome).get("issue")))
        return failures.reported_errors(status_url, errors, kept) if errors else failures.no_matching_data(status_url)

    def _consent(self, companions: Companions, handle: Handle | None, status_url: str) -> int:
        """Download the consent audit files, which only the Task names; how many there are."""
        job_id = handle.job_id if handle is not None else job_id_of(status_url)
        try:
            UUID(job_id)
            task = self._client.task(job_id, brief=True)
        except ValueError:
            return 0
        except ServiceError as error:
            if (answer := answer_of(error)) is not None and answer.status == 200 and answer.says_json:
                self._warnings.append(f"could not find out whether there are consent audit files ({error.reference})")
            return 0  # a server without Task API has no consent audit either
        except SluiceError as error:
            self._warnings.append(f"could not find out whether there are consent audit files ({error.reference})")
            return 0
        return companions.consent(task.consent_urls)

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
                f"the result lists {len(result.listed_errors)} errors in addition to its files; "
                f"see {DIRECTORY}/{MANIFEST}"
            )
        if result.deleted:
            facts["deleted_files"] = result.deleted
            self._warnings.append(
                f"the result lists {result.deleted} files of deleted resources; nothing is deleted in the job or at "
                f"the destination; see {DIRECTORY}/{MANIFEST}"
            )
        issues = result.issues
        serious = {severity: count for severity, count in issues.items() if severity not in ("INFO", "SUCCESS")}
        if serious:
            shown = ", ".join(f"{count} {severity}" for severity, count in serious.items())
            self._warnings.append(f"the extraction server reports issues: {shown}; see {DIRECTORY}/{MANIFEST}")
        return imported.model_copy(
            update={
                "left_out": left_out(result),
                "warnings": (*imported.warnings, *self._warnings),
                "details": imported.details | facts,
            }
        )

    def _rules(self) -> tuple[EnrichmentRule, ...]:
        try:
            return enrichment_rules(self._context.config.services.crtdl_preprocessing)
        except ConfigError:
            return ()  # the file of rules has gone since they were applied

    def _crtdl(self) -> Crtdl | None:
        """Return the effective CRTDL for the names of its groups; a direct result URL needs none."""
        try:
            return load_crtdl(self._context.given.crtdl) if self._context.given.crtdl is not None else None
        except InputError:
            return None


def _text(body: bytes) -> str:
    return body[:LARGEST].decode(errors="replace")
