"""The extraction step (docs/services.md): from the submission to the last file."""

from __future__ import annotations

from typing import Final

from tasks.extractor.download import fetch_beside, import_files
from tasks.extractor.manifest import ExtractionResult, counted, errors_among, parse_result
from tasks.extractor.polling import Gone, Poller
from tasks.extractor.server import ExtractionServer, extraction_server, poll_request
from tasks.extractor.submission import DIRECTORY, handle_of, submit
from tasks.extractor.urls import job_id_of
from tasks.shared.blanked import blanked
from tasks.shared.errors import ServiceError, SluiceError, TerminalError
from tasks.shared.fhir.resource import list_of, object_of, parse_json
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.files.part_file import write_whole
from tasks.shared.http.answer import Answer
from tasks.shared.import_directory import import_report
from tasks.shared.log import logger
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext

MANIFEST: Final = "manifest.json"


def run(context: StepContext) -> StepReport:
    """Extract and download. A job whose handle is stored is not submitted again.

    ``given.input`` may be the URL of a complete result: then nothing is submitted. docs/services.md lists the errors.
    """
    with extraction_server(context.config, stop=context.stop, meter=context.meter) as server:
        return _Extraction(context, server, Poller(context, server)).run()


class _Extraction:
    def __init__(self, context: StepContext, server: ExtractionServer, poller: Poller) -> None:
        self._context = context
        self._server = server
        self._poller = poller
        self._directory = context.state(DIRECTORY)
        self._failed = FailedAnswers(self._directory).begin()
        self._warnings: list[str] = []

    def run(self) -> StepReport:
        context, given = self._context, self._context.given
        status_url, answer = self._direct(given.input) if given.input is not None else self._extract()
        result = self._result(answer, status_url)
        done = import_files(context, self._server, result, self._warnings)
        fetch_beside(context, self._server, result.report_urls, self._directory / "reports", self._warnings)
        task = self._server.look(job_id_of(status_url))
        audits = task.consent_urls if task is not None else ()
        fetch_beside(context, self._server, audits, self._directory / "consent", self._warnings)
        return import_report(context, done, self._warnings)

    def _direct(self, url: str) -> tuple[str, Answer]:
        """Return the answer of a URL that names a complete result."""
        answer = self._wait(url, direct=True)
        if isinstance(answer, Gone):
            raise _dead(url, answer, "the result that INPUT names is gone", "start a new job with a CRTDL")
        return url, answer

    def _extract(self) -> tuple[str, Answer]:
        """Return the status URL and the final answer of the extraction; submit once more if the job is gone."""
        context, fresh = self._context, False
        context.meter.set_status("submitting")
        handle = handle_of(context, self._server)
        while True:
            context.meter.set_status("extracting")
            answer = self._wait(handle.status_url)
            if not isinstance(answer, Gone):
                return handle.status_url, answer
            # Before a new submission, ask once whether a person has cancelled the job.
            task = self._server.look(handle.job_id)
            if task is not None and task.cancelled:
                what = f"extraction job {handle.job_id} was cancelled on the server"
                hint = "start a new job if the data is still wanted"
                raise _dead(handle.status_url, answer, what, hint, "extraction-cancelled")
            context.handle.save(None)
            if fresh:
                hint = "does the server keep its jobs? See its log; pipeline continue submits the extraction once more"
                raise _dead(handle.status_url, answer, "the extraction job is gone, and so is the second one", hint)
            logger.warning("extraction job %s is gone (%d), submitting it again", handle.job_id, answer.status)
            self._warnings.append(f"extraction job {handle.job_id} was gone on the server and was submitted again")
            handle, fresh = submit(context, self._server), True

    def _wait(self, status_url: str, *, direct: bool = False) -> Answer | Gone:
        try:
            return self._poller.wait(status_url, direct=direct)
        except ServiceError as error:
            if error.reference == "extraction-failed":
                self._explain(error, status_url)
            raise

    def _explain(self, error: SluiceError, status_url: str) -> None:
        """Add the codes and counts of the job's errors to ``error``; save the answer, which may quote data."""
        task = self._server.look(job_id_of(status_url))
        document = object_of(parse_json(error.answer.body))
        if found := errors_among([*list_of(document.get("issue")), *(task.issues if task is not None else ())]):
            error.message += f": {counted(found)}"
        error.hint = f"see {self._context.command('extraction show', job_id_of(status_url))}; then start a new job"
        self._failed.save_answer_of(error)

    def _result(self, answer: Answer, status_url: str) -> ExtractionResult:
        """Return the result and save its manifest. Raises ``TerminalError`` for a result without files."""
        try:
            result = parse_result(answer, status_url, self._server.base_url)
        except ServiceError as error:
            self._failed.save_answer_of(error, answer=answer)
            raise
        write_whole(self._directory / MANIFEST, blanked(answer.body))
        told = counted(result.errors)
        if result.errors and result.counts:
            self._warnings.append(f"the server reports errors beside the files: {told}; see {DIRECTORY}/{MANIFEST}")
        elif result.errors:
            what = f"was answered with a result that has no file, and the server reports errors: {told}"
            hint = f"their text, which may quote data, is in {DIRECTORY}/{MANIFEST} of the job directory"
            raise poll_request(status_url).error(TerminalError, "extraction-errors", what, hint=hint)
        elif not result.counts:
            what = "was answered with a result that has no file: no data matches the CRTDL"
            hint = "check with extraction preview that the criteria match patients; check the period and the cohort"
            raise poll_request(status_url).error(TerminalError, "no-matching-data", what, hint=hint)
        return result


def _dead(url: str, answer: Gone, what: str, hint: str, reference: str = "dead-handle") -> ServiceError:
    """Return the error for a job or result that is gone."""
    what = f"was answered {answer.status}: {what}"
    return poll_request(url).error(ServiceError, reference, what, hint=hint, status=answer.status)
