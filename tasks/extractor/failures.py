"""The named failures of an extraction (document 1, "Errors").

Each carries operation, status and message; its class says whether it is transient. Everything but a bare network error
and an answer that says so is terminal.
"""

from __future__ import annotations

from tasks.extractor.client import SERVICE, TRANSIENT
from tasks.shared.answer import Answer, Where, error_for, place
from tasks.shared.errors import NetworkError, ServiceBusyError, ServiceError, SluiceError, TerminalError

_START_ANEW = "see why: extraction show CONFIG ID, and the server's log; then start a new job"


def extraction_timeout(status_url: str, silence: float) -> TerminalError:
    """Neither a 200 nor a 202 within the liveness window; ``silence`` in seconds."""
    return TerminalError(
        "extraction-timeout",
        f"{SERVICE}: the server has not given a sign of life for {silence / 60:.0f} minutes",
        context=f"GET {place(status_url)}",
        hint="pipeline continue asks for the same extraction again; services.extractor.extraction_timeout is the limit",
        operation="poll",
    )


def dead_handle(status_url: str, status: int, why: str) -> ServiceError:
    """The job is gone (404 or 410), and submitting it again is not an answer any more."""
    return ServiceError(
        "dead-handle",
        f"{SERVICE}: the extraction job is gone, {why}",
        context=f"GET {place(status_url)}",
        hint="does the server keep its jobs? See its log; pipeline continue submits the extraction once more",
        operation="poll",
        status=status,
    )


def result_gone(url: str, status: int) -> ServiceError:
    """INPUT names a result that the server does not have."""
    return ServiceError(
        "dead-handle",
        f"{SERVICE}: the result that INPUT names is gone",
        context=f"GET {place(url)}",
        hint="start a new job with a CRTDL",
        operation="poll",
        status=status,
    )


def cancelled(job_id: str, status: int) -> ServiceError:
    """A person cancelled the job on the server."""
    return ServiceError(
        "extraction-cancelled",
        f"{SERVICE}: extraction job {job_id} was cancelled on the server",
        context=f"job {job_id}",
        hint="start a new job if the data is still wanted",
        operation="poll",
        status=status,
    )


def failed(status_url: str, answer: Answer) -> SluiceError:
    """The error for a status that ends the polling."""
    where = Where(SERVICE, "poll", "GET", status_url)
    if answer.status == 500:
        codes = ", ".join(answer.issue_codes()[:5])
        what = "was answered 500: the extraction job has failed" + (f" (issue codes: {codes})" if codes else "")
        return where.error(ServiceError, "extraction-failed", what, hint=_START_ANEW, status=500)
    return error_for(answer, where, transient=TRANSIENT)


def no_matching_data(status_url: str) -> TerminalError:
    """The job is complete and has not produced a single file."""
    return TerminalError(
        "no-matching-data",
        f"{SERVICE}: no data matches the CRTDL, the result has no file",
        context=place(status_url),
        hint="do the criteria match anybody (extraction preview tells), is the period right, is the cohort known?",
        operation="poll",
    )


def reported_errors(status_url: str, count: int, kept: str) -> TerminalError:
    """The job is complete without a file, and its result lists errors."""
    return TerminalError(
        "extraction-errors",
        f"{SERVICE}: the result has no file, and the server reports {count} error{'s' if count > 1 else ''}",
        context=place(status_url),
        hint=f"they are in {kept} of the job directory",
        operation="poll",
    )


def result_unreadable(status_url: str, what: str) -> ServiceError:
    """A 200 that is no result."""
    return ServiceError(
        "result-unreadable",
        f"{SERVICE}: poll was answered 200 with {what}",
        context=f"GET {place(status_url)}",
        hint="is a login or maintenance page in front of the server? pipeline continue asks again",
        operation="poll",
        status=200,
    )


def not_complete(status_url: str) -> ServiceBusyError:
    """INPUT names a result that the server is still working on."""
    return ServiceBusyError(
        "result-not-complete",
        f"{SERVICE}: the result that INPUT names is not complete yet",
        context=f"GET {place(status_url)}",
        hint="continue the job when it is",
        operation="poll",
        status=202,
    )


def unanswered(error: SluiceError) -> NetworkError:
    """The submission went out, and no answer came back."""
    return NetworkError(
        "submission-unanswered",
        f"{SERVICE}: submit got no usable answer ({error.reference}); the server may have created the job or not",
        context=error.context,
        hint="nothing is submitted twice: pipeline continue first looks for the job on the server",
        operation="submit",
        status=error.status,
    )


def unknown_submission(candidates: int) -> TerminalError:
    """A submission was cut off, and whether it created a job cannot be told."""
    found = f"{candidates} new jobs there could be it" if candidates else "the server does not list its jobs"
    return TerminalError(
        "submission-unknown",
        f"{SERVICE}: an earlier run was cut off while it submitted the extraction, and {found}",
        context="extraction/submission.json",
        hint="look at extraction list CONFIG and cancel what is too much; the next pipeline continue submits anew",
        operation="submit",
    )


def crtdl_refused(error: ServiceError, kept: str) -> ServiceError:
    """The server does not accept the query."""
    return ServiceError(
        "crtdl-refused",
        error.message,
        context=error.context,
        hint=f"the server does not accept the CRTDL; its answer is in {kept} of the job directory",
        operation="submit",
        status=error.status,
    )
