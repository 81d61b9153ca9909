"""The named failures of an extraction (document 1, "Errors").

Each carries operation, status and message; its class says whether it is transient. Everything but a bare network error
and an answer that says so is terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tasks.extractor.client import SERVICE, TRANSIENT
from tasks.shared.errors import InputError, NetworkError, ServiceBusyError, ServiceError, SluiceError, TerminalError
from tasks.shared.http.answer import Answer, RefusedError, RequestContext, error_for, place
from tasks.shared.units import human_seconds

_SHOWN = 10


def extraction_timeout(status_url: str, silence: float) -> TerminalError:
    """Neither a 200 nor a 202 within the liveness window; ``silence`` in seconds."""
    return _poll(status_url).error(
        TerminalError,
        "extraction-timeout",
        f"got no sign of life from the server for {human_seconds(silence)}",
        hint="pipeline continue asks for the same extraction again; services.extractor.extraction_timeout is the limit",
    )


def dead_handle(status_url: str, status: int, why: str) -> ServiceError:
    """Return the error for a missing job (404 or 410) that must not be submitted again."""
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
    """Return the error for a job that a person cancelled on the server."""
    return _poll(status_url).error(
        ServiceError,
        "extraction-cancelled",
        f"was answered {status}: extraction job {job_id} was cancelled on the server",
        hint="start a new job if the data is still wanted",
        status=status,
    )


def failed(status_url: str, answer: Answer) -> SluiceError:
    """Return the error for a status that ends the polling. After a 500 the Task is read: ``extraction_failed``."""
    if answer.status == 500:
        return extraction_failed(status_url).made_from(answer)
    return error_for(answer, _poll(status_url), transient=TRANSIENT)


def extraction_failed(
    status_url: str,
    told: Counter[str] | None = None,
    by_task: Counter[str] | None = None,
    kept: str | None = None,
    show: str | None = None,
) -> RefusedError:
    """Return the error for a failed job. ``told`` are the errors of the answer by severity and code, ``by_task`` those
    of its Task. ``kept`` is the file with details in the job directory, ``show`` the command that shows the job."""
    what = "was answered 500: the extraction job has failed"
    what += f": {_most(told)}" if told else ""
    what += f"; its Task reports {_most(by_task)}" if by_task else ""
    why = f"{kept} of the job directory says why, and may quote data" if kept else "the server's log says why"
    hint = f"{why}{f'; see also: {show}' if show else ''}. Then start a new job"
    return _poll(status_url).error(RefusedError, "extraction-failed", what, hint=hint, status=500)


def no_matching_data(status_url: str) -> TerminalError:
    """Return the error for a complete job without a single file."""
    return _poll(status_url).error(
        TerminalError,
        "no-matching-data",
        "was answered with a result that has no file: no data matches the CRTDL",
        hint="check with extraction preview that the criteria match patients, and check the period and the cohort",
    )


def reported_errors(status_url: str, errors: Counter[str], kept: Sequence[str]) -> TerminalError:
    """Return the error for a complete job without files whose result contains errors, by severity and code.

    ``kept`` are the files of the job directory that say more.
    """
    count = sum(errors.values())
    return _poll(status_url).error(
        TerminalError,
        "extraction-errors",
        f"was answered with a result that has no file, and the server reports {count} error{'s' if count > 1 else ''}: "
        + _most(errors),
        hint=f"what they say, which may quote data, is in {' and '.join(kept)} of the job directory",
    )


def result_unreadable(status_url: str, what: str) -> ServiceError:
    """Return the error for a 200 that is not a result of the query."""
    return _poll(status_url).error(
        ServiceError,
        "result-unreadable",
        f"was answered 200 with {what}",
        hint="is services.extractor.base_url the right server, or is a login or maintenance page in front of it? "
        "pipeline continue asks again",
        status=200,
    )


def not_complete(status_url: str, status: int) -> ServiceBusyError:
    """INPUT names a result that the server is still working on."""
    what = f"was answered {status}: the result that INPUT names is not complete yet"
    return _poll(status_url).error(
        ServiceBusyError, "result-not-complete", what, hint="continue the job when it is", status=status
    )


def unanswered(error: SluiceError) -> NetworkError:
    """Return the error for a submission without an answer."""
    return NetworkError(
        "submission-unanswered",
        f"{SERVICE}: submit got no usable answer ({error.reference}); the server may have created the job or not",
        context=error.context,
        hint="nothing is submitted twice: pipeline continue first looks for the job on the server",
        operation="submit",
        status=error.status,
    )


def unknown_submission(status_urls: Sequence[str]) -> TerminalError:
    """Return the error for an interrupted submission that may have created one of the jobs at ``status_urls``."""
    cut = f"{SERVICE}: an earlier run was cut off while it submitted the extraction, and "
    again = "pipeline continue submits the query again"
    if not status_urls:
        return TerminalError(
            "submission-unknown",
            cut + "the server does not say which jobs it has",
            context="extraction/submission.json",
            hint="ask its operator. If it has the job, pipeline start CONFIG with its status URL imports the "
            f"result; if not, {again}",
            operation="submit",
        )
    count = len(status_urls)
    found = "a new job there could be its own" if count == 1 else f"{count} new jobs there could be its own"
    shown = [*map(place, status_urls[:_SHOWN]), *(["…"] if count > _SHOWN else [])]
    return TerminalError(
        "submission-unknown",
        f"{cut}{found}, or another user's",
        context="\n  ".join(shown),
        hint="see: extraction show CONFIG ID. If one is yours, pipeline start CONFIG with its URL above imports the "
        f"result; if none is, {again}",
        operation="submit",
    )


def query_changed(what: Sequence[str]) -> InputError:
    """Return the error for a second submission whose query differs from the first one."""
    return InputError(
        "query-changed",
        f"{' and '.join(what)} changed since this job submitted the query: a job never submits another query",
        context="extraction/asked.json",
        hint="restore it and continue, or start a new job",
        operation="submit",
    )


def crtdl_refused(error: SluiceError, kept: str) -> ServiceError:
    """Return the error for a query that the server refused."""
    return ServiceError(
        "crtdl-refused",
        error.message,
        context=error.context,
        hint=f"the server does not accept the CRTDL; its answer is in {kept} of the job directory",
        operation="submit",
        status=error.status,
    )


def _most(errors: Counter[str]) -> str:
    shown = ", ".join(f"{number} {kind}" for kind, number in errors.most_common(_SHOWN))
    return shown + (", …" if len(errors) > _SHOWN else "")


def _poll(url: str) -> RequestContext:
    return RequestContext(SERVICE, "poll", "GET", url)
