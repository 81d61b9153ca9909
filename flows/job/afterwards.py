"""The end of a job while nobody runs it: a no at its wait, or a cancel in the UI while it is parked.

Told in the job's log and summary like every other end, as a part of the run that parked it.
"""

from __future__ import annotations

from pathlib import Path

from flows.reports import summary
from flows.reports.event_file import EventLog
from flows.reports.events import Wait
from flows.reports.journal import Journal
from flows.reports.trace import Trace
from tasks.shared.errors import StorageError
from tasks.shared.log import logger
from tasks.shared.report import Problem


def cancelled(directory: Path, job: str, rejection: Problem | None = None) -> None:
    """Tell that a parked job is cancelled: by a person's ``rejection``, else in the Prefect UI.

    The caller holds the job's lock. Never raises: the record says so anyway.
    """
    try:
        with EventLog(directory) as log:
            journal = Journal(job, log, Trace(), goes_on=True)
            if rejection is not None:
                journal.tell(Wait(state="decided", approved=False))
                ended = journal.ends("cancelled", error=rejection.reference)
            else:
                ended = journal.ends("cancelled", reason="cancel")
            summary.amend(directory, "cancelled", ended, rejection)
    except StorageError as error:
        logger.warning("the end of job %s is not told: %s", job, error.message)
