"""Announce how a run of a job ends: in its events, its summary and the last line of its log."""

from __future__ import annotations

import logging

from flows.job.job import Job
from flows.job.record import cancelled, without_names_of
from flows.job.watch import CANCEL
from flows.reports import summary
from flows.reports.events import JobEnd
from tasks.shared.errors import SluiceError
from tasks.shared.log import logger
from tasks.shared.report import Problem, Waiting

NAMED_BY_THE_LOG = "the file names are in job.log"


def problem_of(job: Job, error: SluiceError, step: str | None = None) -> Problem:
    """Return the record of an error, without names of files (R7): it refers to the log, which has them."""
    known = Problem.of(error, step=step)
    nameless = without_names_of(job.directory.path, job.step_names, known)
    if nameless == known:
        return nameless
    return nameless.model_copy(update={"hint": "; ".join(filter(None, (nameless.hint, NAMED_BY_THE_LOG)))})


def announce_end(
    job: Job,
    state: JobEnd,
    *,
    error: Problem | None = None,
    waiting: Waiting | None = None,
    reason: str | None = None,
) -> None:
    """Announce how this run ends, and write the summary. A summary that cannot be written fails no run."""
    ended = job.journal.ends(state, error=error.reference if error else None, reason=reason)
    document = summary.summary_of(
        job.record(), job.journal.run, state, job.inputs, ended=ended, waiting=waiting, error=error,
        k=job.config.report.k,
    )  # fmt: skip
    summary.write(job.directory.path, document)
    level, words = _last_line(job, state, error, waiting, reason)
    logger.log(level, "%s", words)


def _last_line(
    job: Job, state: JobEnd, error: Problem | None, waiting: Waiting | None, reason: str | None
) -> tuple[int, str]:
    """Return the level and text of the last line in the log of a run."""
    go_on = f"continue with: {job.continued_with}"
    match state:
        case "completed":
            return logging.INFO, "the job is complete"
        case "waiting" if waiting is not None:
            return logging.INFO, f"the job waits at step {waiting.position} for a person's decision; {go_on}"
        case "cancelled":
            return logging.WARNING, cancelled(error)
        case "failed" if error is not None:
            where = f"step {error.step}" if error.step else "preparation"
            return logging.ERROR, f"the job is failed: {error.reference} in {where}; {go_on}"
    return logging.WARNING, f"the job is stopped ({reason}); {go_on}"


def end_without_waiting(job: Job, reason: str) -> None:
    """Announce the end of a process that does not wait for its threads: after a cancel, or by a signal."""
    job.presenter.close()
    announce_end(job, "cancelled" if reason == CANCEL else "stopped", reason=reason)
    if reason != CANCEL:
        job.presenter.left(f"job {job.id} is stopped\ncontinue with: {job.continued_with}")


def end_without_record(job: Job, error: SluiceError) -> None:
    """Announce, in the job's own files, the end of a process whose Prefect API has gone away."""
    job.presenter.close()
    logger.error("%s", error.render())
    announce_end(job, "failed", error=problem_of(job, error))
