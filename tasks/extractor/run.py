"""The extraction step (document 1, "Extraction step procedure"): from the handle to the last file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from config import ConfigError
from config.enrichments import enrichment_rules
from tasks.extractor import failures
from tasks.extractor.download import ResultFiles
from tasks.extractor.manifest import ExtractionResult, parse_result
from tasks.extractor.polling import Gone, Poller
from tasks.extractor.server import ExtractionServer, extraction_server
from tasks.extractor.submission import DIRECTORY, handle_of, submit
from tasks.extractor.task import list_of, object_of, parse_json
from tasks.extractor.urls import is_result_url, job_id_of, result_url_unknown
from tasks.shared.blanked import blanked
from tasks.shared.errors import InputError, ServiceError, SluiceError, StorageError
from tasks.shared.fhir.crtdl import load_crtdl
from tasks.shared.fhir.crtdl_preprocessing import idle_rules
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.files.part_file import write_whole
from tasks.shared.http.answer import Answer
from tasks.shared.http.errors import answer_of
from tasks.shared.import_directory import import_report
from tasks.shared.log import logger
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext

MANIFEST: Final = "manifest.json"
FAILURE: Final = "failed.json"
"""What the server says of a job that has failed for good (0600)."""


def run(context: StepContext, *, clock: Callable[[], float] = time.monotonic) -> StepReport:
    """Extract and download; goes on with the job whose handle is stored.

    ``given.input`` may be the URL of a complete result: then nothing is submitted. ``clock`` (seconds) is a seam for
    tests. Raises the named failures of ``failures.py`` and what the modules of this package raise.
    """
    with extraction_server(context.config, stop=context.stop, meter=context.meter) as server:
        return _Extraction(context, server, clock).run()


class _Extraction:
    def __init__(self, context: StepContext, server: ExtractionServer, clock: Callable[[], float]) -> None:
        self._context = context
        self._server = server
        self._directory = context.state(DIRECTORY)
        self._failed = FailedAnswers(self._directory).begin()
        self._warnings: list[str] = []
        self._poller = Poller(
            server,
            context.config.services.extractor,
            context.meter,
            resume=lambda job_id: context.command("extraction resume", job_id),
            sleep=context.stop.sleep,
            clock=clock,
        )

    def run(self) -> StepReport:
        given = self._context.given
        status_url, answer = self._direct(given.input) if given.input is not None else self._extract()
        with self._keeping(answer):
            result = parse_result(answer, status_url, self._server.base_url)
        write_whole(self._directory / MANIFEST, blanked(answer.body))
        if not result.urls:
            if result.errors:
                raise failures.reported_errors(status_url, result.errors, f"{DIRECTORY}/{MANIFEST}")
            raise failures.no_matching_data(status_url)
        files = ResultFiles(self._context, self._server, result)
        done = files.import_all()
        reports = files.fetch_beside(result.report_urls, self._directory / "reports")
        task = self._server.look(job_id_of(status_url))
        audits = files.fetch_beside(task.consent_urls if task is not None else (), self._directory / "consent")
        self._warnings += self._oddities(result)
        report = import_report(self._context, done, [*self._warnings, *files.warnings])
        facts = result.details() | {"reports": reports, "consent_files": len(audits)}
        left_out = {what: f"{count:,}" for what, count in (result.left_out() or {}).items()} or None
        return report.model_copy(update={"details": report.details | facts, "left_out": left_out})

    def _direct(self, url: str) -> tuple[str, Answer]:
        """Return the answer of a URL that names a complete result."""
        if not is_result_url(url):
            raise result_url_unknown(url)
        answer = self._wait(url, direct=True)
        if isinstance(answer, Gone):
            raise failures.result_gone(url, answer.status)
        return url, answer

    def _extract(self) -> tuple[str, Answer]:
        """Return the status URL and the final answer of the extraction; a dead handle is submitted again once."""
        context, fresh = self._context, False
        if context.given.crtdl is None:
            hint = "give the CRTDL file on the command line"
            what = "the step extractor needs a CRTDL"
            raise InputError("crtdl-missing", what, context="pipeline.enabled_steps", hint=hint)
        context.meter.set_status("submitting")
        handle = handle_of(context, self._server)
        while True:
            context.meter.set_status("extracting")
            answer = self._wait(handle.status_url)
            if not isinstance(answer, Gone):
                return handle.status_url, answer
            # A person may have cancelled the job: that is read once, before a fresh submission (document 3 §2).
            task = self._server.look(handle.job_id)
            if task is not None and task.cancelled:
                raise failures.cancelled(handle.status_url, handle.job_id, answer.status)
            context.handle.save(None)
            if fresh:
                raise failures.dead_handle(handle.status_url, answer.status)
            logger.warning("extraction job %s is gone (%d), submitting afresh", handle.job_id, answer.status)
            self._warnings.append(f"extraction job {handle.job_id} was gone on the server and was submitted afresh")
            handle, fresh = submit(context, self._server), True

    def _wait(self, status_url: str, *, direct: bool = False) -> Answer | Gone:
        try:
            return self._poller.wait(status_url, direct=direct)
        except ServiceError as error:
            if error.reference == "extraction-failed":
                self._explain(error, status_url)
            raise

    def _explain(self, error: SluiceError, status_url: str) -> None:
        """Add the codes and counts of its errors to the failure of a job; keep the texts, which may quote data."""
        answer, task = answer_of(error), self._server.look(job_id_of(status_url))
        document = parse_json(answer.body) if answer is not None else None
        issues = [*list_of(object_of(document).get("issue")), *(task.issues if task is not None else ())]
        if found := failures.errors_among(issues):
            error.message += f": {failures.counted(found)}"
        try:
            told = msgspec.json.encode({"answer": document, "task_issues": task.issues if task is not None else ()})
            write_whole(self._directory / FAILURE, blanked(told) + b"\n")
        except StorageError as problem:
            logger.warning("why the extraction has failed cannot be kept: %s", problem.message)
            return
        show = self._context.command("extraction show", job_id_of(status_url))
        kept = f"{DIRECTORY}/{FAILURE} of the job directory"
        error.hint = f"{kept} says why, and may quote data; see also: {show}. Then start a new job"

    @contextmanager
    def _keeping(self, answer: Answer) -> Iterator[None]:
        """Keep an answer that turns out to be wrong."""
        try:
            yield
        except ServiceError as error:
            self._failed.save_answer_of(error, answer=answer)
            raise

    def _oddities(self, result: ExtractionResult) -> Iterator[str]:
        if result.errors:
            yield f"the server reports errors beside the files: {failures.counted(result.errors)}; see {MANIFEST}"
        if result.issues:
            listed = ", ".join(f"{count} {severity}" for severity, count in result.issues.items())
            yield f"the extraction server reports issues: {listed}; see {DIRECTORY}/{MANIFEST}"
        crtdl = self._context.given.crtdl
        if crtdl is None:
            return
        try:
            yield from idle_rules(
                load_crtdl(crtdl), enrichment_rules(self._context.config.services.crtdl_preprocessing)
            )
        except (ConfigError, InputError):
            return  # the file of rules has gone since they were applied
