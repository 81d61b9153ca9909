"""The named failures of an extraction (document 1, "Errors"): each has operation, status and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tasks.extractor.server import SERVICE, TRANSIENT
from tasks.extractor.task import object_of
from tasks.shared.errors import InputError, NetworkError, ServiceBusyError, ServiceError, SluiceError, TerminalError
from tasks.shared.http.answer import ISSUE_CODES, Answer
from tasks.shared.http.errors import RefusedError, RequestContext, error_for
from tasks.shared.units import human_seconds


def extraction_timeout(status_url: str, silence: float, resume: str | None) -> TerminalError:
    """Neither a 200 nor a 202 within the liveness window. ``resume`` is the command for a job in TEMP_FAILED."""
    what = f"got no sign of life from the server for {human_seconds(silence)}"
    hint = "pipeline continue asks for the same extraction again; services.extractor.extraction_timeout is the limit"
    if resume is not None:
        what = f"was answered 503 for {human_seconds(silence)}: the job is in the state TEMP_FAILED"
        hint = f"resume it on the server with {resume}, then continue the job"
    return _poll(status_url).error(TerminalError, "extraction-timeout", what, hint=hint)


def dead_handle(status_url: str, status: int) -> ServiceError:
    """The freshly submitted job is missing, too (404 or 410)."""
    what = f"was answered {status}: the extraction job is gone, the freshly submitted one too"
    hint = "does the server keep its jobs? See its log; pipeline continue submits the extraction once more"
    return _poll(status_url).error(ServiceError, "dead-handle", what, hint=hint, status=status)


def result_gone(url: str, status: int) -> ServiceError:
    """INPUT names a result that the server does not have."""
    what = f"was answered {status}: the result that INPUT names is gone"
    return _poll(url).error(ServiceError, "dead-handle", what, hint="start a new job with a CRTDL", status=status)


def cancelled(status_url: str, job_id: str, status: int) -> ServiceError:
    """A person cancelled the job on the server."""
    what = f"was answered {status}: extraction job {job_id} was cancelled on the server"
    hint = "start a new job if the data is still wanted"
    return _poll(status_url).error(ServiceError, "extraction-cancelled", what, hint=hint, status=status)


def failed(status_url: str, answer: Answer) -> SluiceError:
    """Return the error for a status that ends the polling."""
    if answer.status == 500:
        hint = "the server's log says why. Then start a new job"
        what = "was answered 500: the extraction job has failed"
        wrong = _poll(status_url).error(RefusedError, "extraction-failed", what, hint=hint, status=500)
        return wrong.made_from(answer)
    return error_for(answer, _poll(status_url), transient=TRANSIENT)


def errors_among(issues: Iterable[Any]) -> Counter[str]:
    """Return the issues of a job or an OperationOutcome that are errors, by severity and code."""
    found: Counter[str] = Counter()
    for issue in map(object_of, issues):
        severity, code = str(issue.get("severity")).lower(), issue.get("code")
        if severity in ("fatal", "error"):
            found[f"{severity} ({code})" if isinstance(code, str) and code in ISSUE_CODES else severity] += 1
    return found


def counted(errors: Counter[str]) -> str:
    """Return errors by kind, the most frequent first."""
    return ", ".join(f"{number} {kind}" for kind, number in errors.most_common(10))


def no_matching_data(status_url: str) -> TerminalError:
    """A complete job without a single file."""
    what = "was answered with a result that has no file: no data matches the CRTDL"
    hint = "check with extraction preview that the criteria match patients, and check the period and the cohort"
    return _poll(status_url).error(TerminalError, "no-matching-data", what, hint=hint)


def reported_errors(status_url: str, errors: Counter[str], kept: str) -> TerminalError:
    """A complete job without files whose result contains errors. ``kept`` is the file that says more."""
    what = f"was answered with a result that has no file, and the server reports errors: {counted(errors)}"
    hint = f"what they say, which may quote data, is in {kept} of the job directory"
    return _poll(status_url).error(TerminalError, "extraction-errors", what, hint=hint)


def result_unreadable(status_url: str, what: str) -> ServiceError:
    """A 200 that is not a result."""
    hint = "is services.extractor.base_url the right server, or is a login or maintenance page in front of it?"
    what = f"was answered 200 with {what}"
    return _poll(status_url).error(ServiceError, "result-unreadable", what, hint=hint, status=200)


def not_complete(status_url: str, status: int) -> ServiceBusyError:
    """INPUT names a result that the server is still working on."""
    what = f"was answered {status}: the result that INPUT names is not complete yet"
    hint = "continue the job when it is"
    return _poll(status_url).error(ServiceBusyError, "result-not-complete", what, hint=hint, status=status)


def unanswered(error: SluiceError) -> NetworkError:
    """A submission without a usable answer: document 1 forbids a second one."""
    return NetworkError(
        "submission-unanswered",
        f"{SERVICE}: submit got no usable answer ({error.reference}); the server may have created the job or not",
        context=error.context,
        hint="nothing is submitted twice: pipeline continue lists the jobs of the server, and asks which it is",
        operation="submit",
        status=error.status,
    )


def unknown_submission(since: str, jobs: list[str]) -> InputError:
    """An earlier run ended between the submission and its record. ``jobs`` are those of the server since then."""
    return InputError(
        "submission-unknown",
        f"{SERVICE}: an earlier run of this job was cut off while it submitted the extraction ({since}); the server "
        "may have a job of it",
        context="\n  ".join(jobs) or "the server lists no job since then",
        hint="pipeline continue CONFIG JOB --extraction ID goes on with one of these jobs, --extraction new submits "
        "again",
        operation="submit",
    )


def _poll(url: str) -> RequestContext:
    return RequestContext(SERVICE, "poll", "GET", url)
