"""Answers at a wait, in the record or in the form. Importing this does not import Prefect."""

from __future__ import annotations

from flows.job.record import JobRecord, now
from flows.job.state import JobState
from flows.job.waiting import Answer
from flows.prefect.api import PrefectApi
from flows.prefect.form import form_answer


def answer_left(api: PrefectApi, record: JobRecord, position: int) -> Answer | None:
    """Return the answer in the record or the form; of two answers, one that rejects."""
    in_record, shown = record.answers.get(position), record.shown.get(position)
    form = form_answer(api, record.id, shown.form) if shown is not None else None
    if form is None or (in_record is not None and not in_record.approved):
        return in_record
    in_form = Answer(approved=form.decision == "release", by=form.by, comment=form.comment, when=now(), where="ui")
    return in_form if in_record is None or not in_form.approved else in_record


def with_answer(api: PrefectApi, record: JobRecord) -> JobRecord:
    """Return the record of a job to be shown: ``decided`` if it waits only for the run that judges an answer."""
    waiting = record.undecided
    if waiting is None or record.in_prefect == "PAUSED" or answer_left(api, record, waiting.position) is None:
        return record
    return record.model_copy(update={"state": JobState.DECIDED})
