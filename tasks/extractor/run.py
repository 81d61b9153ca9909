"""The extraction step (docs/services.md): from the submission to the last file."""

from __future__ import annotations

from typing import Final

from tasks.extractor.download import fetch_beside, import_files
from tasks.extractor.manifest import ExtractionResult, count_errors, parse_result
from tasks.extractor.polling import RUNNING, Poller
from tasks.extractor.server import TRANSIENT, ExtractionServer, extraction_server, poll_request
from tasks.extractor.submission import DIRECTORY, handle_of, submit
from tasks.extractor.urls import job_id_of
from tasks.shared.blanked import blanked
from tasks.shared.errors import ServiceBusyError, ServiceError, SluiceError, TerminalError
from tasks.shared.fhir.resource import list_of, object_of, parse_json
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.files.part_file import write_whole
from tasks.shared.http.answer import Answer
from tasks.shared.http.errors import error_for
from tasks.shared.import_directory import import_report
from tasks.shared.log import logger
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext

MANIFEST: Final = "manifest.json"
_GONE: Final = frozenset({404, 410})


def run(context: StepContext) -> StepReport:
    """Extract and download. A job whose handle is stored is not submitted again.

    ``given.input`` may be the URL of a complete result: then nothing is submitted. docs/services.md lists the errors.
    """
    with extraction_server(context.config, stop=context.stop, meter=context.meter) as server:
        return _Extraction(context, server).run()


class _Extraction:
    def __init__(self, context: StepContext, server: ExtractionServer) -> None:
        self._context = context
        self._server = server
        self._poller = Poller(context, server)
        self._directory = context.state(DIRECTORY)
        self._warnings: list[str] = []

    def run(self) -> StepReport:
        context, given = self._context, self._context.given
        with FailedAnswers(self._directory).begin().saving_answers():
            status_url, answer = self._extract() if given.input is None else (given.input, self._direct(given.input))
            result = self._result(answer, status_url)
        done = import_files(context, self._server, result, self._warnings)
        task = self._server.look(job_id_of(status_url))
        audits = task.consent_urls if task is not None else ()
        fetch_beside(context, self._server, result, audits, self._warnings)
        return import_report(context, done, self._warnings)

    def _direct(self, url: str) -> Answer:
        """Return the 200 of a URL that names a complete result."""
        answer = self._poller.wait(url, direct=True)
        if answer.status in RUNNING:
            what, hint = "the result that INPUT names is not complete yet", "continue the job when it is"
            raise _error(answer, url, "result-not-complete", what, hint=hint, kind=ServiceBusyError)
        if answer.status in _GONE:
            what, hint = "the result that INPUT names is gone", "start a new job with a CRTDL"
            raise _error(answer, url, "dead-handle", what, hint=hint)
        return self._complete(answer, url)

    def _extract(self) -> tuple[str, Answer]:
        """Return the status URL and the 200 of the extraction; submit once more if the job is gone."""
        context, fresh = self._context, False
        context.meter.set_status("submitting")
        handle = handle_of(context, self._server)
        while True:
            context.meter.set_status("extracting")
            answer = self._poller.wait(handle.status_url)
            if answer.status not in _GONE:
                return handle.status_url, self._complete(answer, handle.status_url)
            # Before a new submission, ask once whether a person has cancelled the job.
            task = self._server.look(handle.job_id)
            if task is not None and task.cancelled:
                what = f"extraction job {handle.job_id} was cancelled on the server"
                hint = "start a new job if the data is still wanted"
                raise _error(answer, handle.status_url, "extraction-cancelled", what, hint=hint)
            context.handle.save(None)
            if fresh:
                what = "the extraction job is gone, and so is the second one"
                hint = "does the server keep its jobs? See its log; pipeline continue submits the extraction once more"
                raise _error(answer, handle.status_url, "dead-handle", what, hint=hint)
            logger.warning("extraction job %s is gone (%d), submitting it again", handle.job_id, answer.status)
            self._warnings.append(f"extraction job {handle.job_id} was gone on the server and was submitted again")
            handle, fresh = submit(context, self._server), True

    def _complete(self, answer: Answer, status_url: str) -> Answer:
        """Return the 200 of a complete job; raise the error for any other answer."""
        if answer.status == 200:
            return answer
        if answer.status != 500:
            raise error_for(answer, poll_request(status_url), transient=TRANSIENT)
        found = count_errors(list_of(object_of(parse_json(answer.body)).get("issue")))
        what = f"the job has failed{f': {found}' if found else ''}"
        hint = f"see {self._context.command('extraction show', job_id_of(status_url))}; then start a new job"
        raise _error(answer, status_url, "extraction-failed", what, hint=hint)

    def _result(self, answer: Answer, status_url: str) -> ExtractionResult:
        """Save the manifest and return the result. Raises ``TerminalError`` for a result without files."""
        write_whole(self._directory / MANIFEST, blanked(answer.body))
        result = parse_result(answer, status_url, self._server.base_url)
        if result.errors and result.counts:
            told = f"the server reports errors beside the files: {result.errors}; see {DIRECTORY}/{MANIFEST}"
            self._warnings.append(told)
        elif result.errors:
            what = f"was answered with a result that has no file, and the server reports errors: {result.errors}"
            hint = f"their text, which may quote data, is in {DIRECTORY}/{MANIFEST} of the job directory"
            raise poll_request(status_url).error(TerminalError, "extraction-errors", what, hint=hint)
        elif not result.counts:
            what = "was answered with a result that has no file: no data matches the CRTDL"
            hint = "check with extraction preview that the criteria match patients; check the period and the cohort"
            raise poll_request(status_url).error(TerminalError, "no-matching-data", what, hint=hint)
        return result


def _error(
    answer: Answer, url: str, reference: str, what: str, *, hint: str, kind: type[SluiceError] = ServiceError
) -> SluiceError:
    """Return the error for the answer to a status poll that ends the step."""
    what = f"was answered {answer.status}: {what}"
    return poll_request(url).error(kind, reference, what, hint=hint, status=answer.status).made_from(answer)
