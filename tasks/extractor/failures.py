"""The named failures of an extraction (document 1, "Errors").

Each carries operation, status and message; its class says whether it is transient. Everything but a bare network error
and an answer that says so is terminal.
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.extractor.client import SERVICE, TRANSIENT
from tasks.shared.errors import NetworkError, ServiceBusyError, ServiceError, SluiceError, TerminalError
from tasks.shared.http.answer import Answer, Where, error_for, place

_SHOWN = 10


def extraction_timeout(status_url: str, silence: float) -> TerminalError:
    """Neither a 200 nor a 202 within the liveness window; ``silence`` in seconds."""
    return _poll(status_url).error(
        TerminalError,
        "extraction-timeout",
        f"got no sign of life from the server for {silence / 60:.0f} minutes",
        hint="pipeline continue asks for the same extraction again; services.extractor.extraction_timeout is the limit",
    )


def dead_handle(status_url: str, status: int, why: str) -> ServiceError:
    """The job is gone (404 or 410), and submitting it again is not an answer any more."""
    return _poll(status_url).error(
        ServiceError,
        "dead-handle",
        f"was answered {status}: the extraction job is gone, {why}",
        hint="does the server keep its jobs? See its log; pipeline continue submits the extraction once more",
        status=status,
    )


def result_gone(url: str, status: int) -> ServiceError:
    """INPUT names a result that the server does not have."""
    what = f"was answered {status}: the result that INPUT names is gone"
    return _poll(url).error(ServiceError, "dead-handle", what, hint="start a new job with a CRTDL", status=status)


def cancelled(status_url: str, job_id: str, status: int) -> ServiceError:
    """A person cancelled the job on the server."""
    return _poll(status_url).error(
        ServiceError,
        "extraction-cancelled",
        f"was answered {status}: extraction job {job_id} was cancelled on the server",
        hint="start a new job if the data is still wanted",
        status=status,
    )


def failed(status_url: str, answer: Answer) -> SluiceError:
    """The error for a status that ends the polling."""
    if answer.status != 500:
        return error_for(answer, _poll(status_url), transient=TRANSIENT)
    codes = ", ".join(answer.issue_codes()[:5])
    return _poll(status_url).error(
        ServiceError,
        "extraction-failed",
        "was answered 500: the extraction job has failed" + (f" (issue codes: {codes})" if codes else ""),
        hint="see why: extraction show CONFIG ID, and the server's log; then start a new job",
        status=500,
    )


def no_matching_data(status_url: str) -> TerminalError:
    """The job is complete and has not produced a single file."""
    return _poll(status_url).error(
        TerminalError,
        "no-matching-data",
        "was answered with a result that has no file: no data matches the CRTDL",
        hint="do the criteria match anybody (extraction preview tells), is the period right, is the cohort known?",
    )


def reported_errors(status_url: str, count: int, kept: str) -> TerminalError:
    """The job is complete without a file, and its result lists errors."""
    return _poll(status_url).error(
        TerminalError,
        "extraction-errors",
        f"was answered with a result that has no file, and the server reports {count} error{'s' if count > 1 else ''}",
        hint=f"they are in {kept} of the job directory",
    )


def result_unreadable(status_url: str, what: str) -> ServiceError:
    """A 200 that is no result."""
    return _poll(status_url).error(
        ServiceError,
        "result-unreadable",
        f"was answered 200 with {what}",
        hint="is a login or maintenance page in front of the server? pipeline continue asks again",
        status=200,
    )


def not_complete(status_url: str, status: int) -> ServiceBusyError:
    """INPUT names a result that the server is still working on."""
    what = f"was answered {status}: the result that INPUT names is not complete yet"
    return _poll(status_url).error(
        ServiceBusyError, "result-not-complete", what, hint="continue the job when it is", status=status
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


def unknown_submission(status_urls: Sequence[str]) -> TerminalError:
    """A submission was cut off, and whether it created a job cannot be told; ``status_urls`` of those it may be."""
    cut = f"{SERVICE}: an earlier run was cut off while it submitted the extraction, and "
    again = "pipeline continue submits anew"
    if not status_urls:
        return TerminalError(
            "submission-unknown",
            cut + "the server does not say which jobs it has",
            context="extraction/submission.json",
            hint="ask whoever runs it. If it has the job, pipeline start CONFIG with its status URL imports the "
            f"result; if not, {again}",
            operation="submit",
        )
    count = len(status_urls)
    found = "a new job there could be its own" if count == 1 else f"{count} new jobs there could be its own"
    shown = [*map(place, status_urls[:_SHOWN]), *(["…"] if count > _SHOWN else [])]
    return TerminalError(
        "submission-unknown",
        f"{cut}{found}, or somebody else's",
        context="\n  ".join(shown),
        hint="see: extraction show CONFIG ID. If one is yours, pipeline start CONFIG with its URL above imports the "
        f"result; if none is, {again}",
        operation="submit",
    )


def crtdl_refused(error: SluiceError, kept: str) -> ServiceError:
    """The server does not accept the query."""
    return ServiceError(
        "crtdl-refused",
        error.message,
        context=error.context,
        hint=f"the server does not accept the CRTDL; its answer is in {kept} of the job directory",
        operation="submit",
        status=error.status,
    )


def _poll(url: str) -> Where:
    return Where(SERVICE, "poll", "GET", url)
