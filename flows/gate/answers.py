"""Find a person's answer at a wait: in the record or in the form. Does not import Prefect."""

from __future__ import annotations

from flows.job.record import JobRecord, now
from flows.job.state import JobState
from flows.job.waiting import Answer
from flows.prefect.api import PrefectApi
from flows.prefect.form import form_answer


def answer_left(api: PrefectApi, record: JobRecord, position: int) -> Answer | None:
    """Return the answer in the record or in the form, if any. Of two answers, a rejection takes precedence."""
    in_record, shown = record.answers.get(position), record.shown.get(position)
    form = form_answer(api, record.id, shown.form) if shown is not None else None
    if form is None or (in_record is not None and not in_record.approved):
        return in_record
    in_form = Answer(approved=form.decision == "release", by=form.by, comment=form.comment, when=now(), where="ui")
    return in_form if in_record is None or not in_form.approved else in_record


def with_answer(api: PrefectApi, record: JobRecord) -> JobRecord:
    """Return the record to show. Its state is ``decided`` if a person has answered and no run has judged the answer."""
    waiting = record.undecided
    if waiting is None or record.in_prefect == "PAUSED" or answer_left(api, record, waiting.position) is None:
        return record
    return record.model_copy(update={"state": JobState.DECIDED})
