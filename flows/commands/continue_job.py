"""``pipeline continue``: continue existing jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from pydantic import ValidationError

from flows.commands import decide
from flows.commands.start import doubt, execute, opened_with_prefect, report, run_here, warn
from flows.gate.answers import answer_left, leave_answer
from flows.job.directory import JobDirectory
from flows.job.inputs import JobInputs
from flows.job.lock import JobLock, is_held
from flows.job.record import JobRecord, refuse_changed_steps
from flows.job.session import Session, meant
from flows.job.state import JobState
from flows.job.which import exact, step_to_repeat
from flows.job.writer import RecordedHandle, RecordWriter
from flows.jobs_dir import load
from flows.output import on_terminal, print_findings, print_json, print_line
from flows.reports.status import status_of
from flows.shell import about
from tasks.extractor.submission import answer
from tasks.shared.errors import GateError, InputError, TerminalError


@dataclass(frozen=True)
class ContinueRequest:
    """The arguments of a command about an existing job."""

    config: str
    job_id: str
    overrides: tuple[str, ...] = ()
    progress: bool = True
    as_json: bool = False
    extraction: str | None = None
    """What became of a submission whose answer was lost: the id of a job of the server, or ``new``."""


def go_on(asked: ContinueRequest, decision: str | None = None, by: str | None = None, comment: str = "") -> int:
    """Continue a job: leave the answer at its wait, then run the remaining steps.

    ``decision`` is ``approve``, ``reject``, or ``None``: then a person at a terminal is asked, and otherwise a waiting
    job keeps waiting. A decision that the flow does not accept ends with the exit code of a gate.
    """
    with adopted(asked) as (session, record, inputs):
        if exact(asked.job_id) is None:
            print_line(f"job {record.id}", err=asked.as_json)  # before anything is decided
        if record.done and decision is None:
            return report(session, record.id, as_json=asked.as_json)
        refuse_ended(record, decision)
        answer = decide.answer(decision == "approve", by, comment) if decision is not None else None
        waiting = record.undecided
        if waiting is not None and answer is None and answer_left(session.api, record, waiting.position) is None:
            if on_terminal():
                answer = decide.ask(record, waiting, by, comment, err=asked.as_json)
            else:
                decide.show(record, waiting, err=asked.as_json)
            if answer is None and record.parked:
                print_line(f"nothing is decided: job {record.id} waits", err=asked.as_json)
                return report(session, record.id, as_json=asked.as_json)
        if answer is None or answer.approved:
            code = check_open_steps(record, inputs, reset=record.reset)
            if code:
                return code
        if waiting is not None and answer is not None:
            leave_answer(RecordWriter(session.api, record.id), waiting.position, answer)
        code = run_on(session, record, inputs, asked)
        return GateError.exit_code if answer is not None and is_refused(session.job(record.id)) else code


def is_refused(record: JobRecord) -> bool:
    """Return whether the flow did not accept the decision of this command."""
    return record.undecided is not None and record.undecided.reason is not None


def refuse_ended(record: JobRecord, decision: str | None) -> None:
    """Raise ``TerminalError`` for a cancelled job, ``InputError`` for a ``decision`` (a verb) without a wait."""
    if record.state is JobState.CANCELLED:
        raise TerminalError(
            "job-cancelled", "the job was cancelled and cannot be continued", context=record.id, hint="start a new job"
        )
    if decision and record.undecided is None:
        raise InputError(
            "not-waiting", f"the job is {record.state.value}, there is nothing to {decision}", context=record.id,
            hint="continue it without a decision and comment",
        )  # fmt: skip


def report_again(asked: ContinueRequest) -> None:
    """Run a waiting or complete job once more to make its release report. Its lines go to stderr.

    Raises:
        InputError: the workers of a deployment run the job.
    """
    with adopted(asked) as (session, record, _):
        if record.has_deployment:
            raise InputError(
                "job-deployed", "the workers of the job's deployment make its report", context=record.id,
                hint=f"to hand the job to them: {about('pipeline continue', record.id)}",
            )  # fmt: skip
        execute(session, record.id, progress=False, aside=True)


def leave_to_worker(session: Session, record: JobRecord, *, as_json: bool) -> int:
    """Print that workers run the job of a deployment; return the exit code."""
    session.api.set_state(record.id, "SCHEDULED", name="Continuing")
    print_line(f"job {record.id}: a worker of its deployment continues it", err=as_json)
    if as_json:
        print_json(status_of(session.job(record.id)))
    return 0


def go_on_from(asked: ContinueRequest, step: str, *, ask: bool) -> int:
    """Discard the results of a step and of all later ones, and continue the job; ``ask`` a person before."""
    with adopted(asked) as (session, record, inputs):
        refuse_ended(record, None)
        position = step_to_repeat(record, step)
        code = check_open_steps(record, inputs, reset=position)
        if code:
            return code
        results = f"the results of step {position}, {record.step(position).name}, and of all later steps"
        if ask and not click.confirm(f"Discard {results}?", default=False, err=asked.as_json):
            return report(session, record.id, as_json=asked.as_json)
        RecordWriter(session.api, record.id).reset_from(record, position)
        return run_on(session, record, inputs, asked)


def run_on(session: Session, record: JobRecord, inputs: JobInputs, asked: ContinueRequest) -> int:
    """Run the rest of a job here, or leave it to the workers of its deployment; return the exit code."""
    session.api.change(record.id, parameters=inputs.parameters())
    if record.has_deployment:
        return leave_to_worker(session, record, as_json=asked.as_json)
    return run_here(session, record.id, progress=asked.progress, as_json=asked.as_json)


@contextmanager
def adopted(asked: ContinueRequest) -> Iterator[tuple[Session, JobRecord, JobInputs]]:
    """Lock an existing job; yield its record and its inputs, with the configuration file as it is now.

    Raises:
        JobBusyError: another process runs it.
        InputError: there is no such job, or ``enabled_steps`` differ from the job's.
    """
    known_by_file = load(asked.config, asked.overrides)
    early = meant(known_by_file, asked.job_id)
    if early is not None and is_held(place := JobDirectory.of(known_by_file.config.jobs_dir, early).path):
        with JobLock(place):  # refused at once, without starting anything
            pass
    with opened_with_prefect(known_by_file) as session:
        record = session.job(session.find(asked.job_id))
        directory = JobDirectory.of(session.jobs_dir, record.id)
        known = [str(one) for one in record.parameters.get("overrides") or ()]
        given = {
            "config": str(Path(asked.config).absolute()),
            "overrides": [*(one for one in known if one not in asked.overrides), *asked.overrides],
        }
        try:
            inputs = JobInputs.model_validate(record.parameters | given)
        except ValidationError:
            raise InputError(
                "run-parameters", "the run was not started with the parameters of the pipeline", context=record.id,
                hint="look at the run in the Prefect UI, and start a new job",
            ) from None  # fmt: skip
        loaded = inputs.load()
        warn(loaded, inputs, directory.path)
        refuse_changed_steps(record, loaded.config.pipeline.enabled_steps)
        directory.create()
        with JobLock(directory.path):
            if asked.extraction is not None:
                store = RecordedHandle(RecordWriter(session.api, record.id))
                answer(store, directory.path, str(loaded.config.services.extractor.base_url), asked.extraction)
            yield session, session.job(record.id), inputs


def check_open_steps(record: JobRecord, inputs: JobInputs, *, reset: int | None) -> int:
    """Run the preflight of the remaining steps, print the findings and return the exit code.

    Steps from position ``reset`` on will be run again.
    """
    from flows.job.preflight import exit_code, preflight

    kept = record.steps if reset is None else record.steps[: reset - 1]
    done = [step.position for step in kept if step.state == "completed"]
    loaded = inputs.load()
    directory = JobDirectory.of(loaded.config.jobs_dir, record.id)
    findings = preflight(loaded, inputs, done=done, job_dir=directory.path, tell=doubt)
    print_findings(findings)
    return exit_code(findings)
