"""The flow: prepare, then each enabled step; nothing else.

Document 1, "pipeline", and ``4-product.md`` §4. Finished steps answer from their stored result, so running the flow run
again goes on where it stopped.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.exceptions import Pause
from prefect.states import Cancelled, Completed, Crashed, Failed
from pydantic import WithJsonSchema

from config import ConfigError
from flows.engine import runs
from flows.engine.api import FLOW_NAME, PATIENCE, PrefectApi
from flows.engine.api_address import current_api
from flows.engine.outage import BRIDGE
from flows.engine.patient_client import bridge_from_now_on
from flows.engine.reached import own_server
from flows.engine.run_log import nothing_after, shown_in_ui
from flows.engine.run_names import is_made_up
from flows.engine.server_watch import last_words, watched
from flows.gate import release, rules
from flows.gate.decisions import answered, rejected
from flows.gate.released import waits_again
from flows.job.inputs import JobInputs, config_error, job_name
from flows.job.job import Job
from flows.job.lock import JobBusyError
from flows.job.preflight import preflight, worst
from flows.job.record import AT_THE_END, RecordWriter, now
from flows.job.sources import Sources
from flows.job.watch import AWAY, CANCEL, SUSPEND, cancel_asked, end_now
from flows.reports import pages, presenter
from flows.signals import signals
from tasks import declared
from tasks.shared.errors import InputError, NetworkError, SluiceError, Stopped, StorageError, internal_error
from tasks.shared.log import logger
from tasks.shared.prefect_task import step_task
from tasks.shared.report import Approval, Problem, StepReport, Waiting
from tasks.shared.step import Parked, Source, Step
from tasks.shared.units import human_seconds

Outcome = State[Any]

# In the form of the Prefect UI a union with None is a switch that hides the field: these show the field at once. The
# form sends the defaults, and its check of them knows no None.
OptionalText = Annotated[str | None, WithJsonSchema({"type": "string"})]
OptionalList = Annotated[Sequence[str] | None, WithJsonSchema({"type": "array", "items": {"type": "string"}})]


DESCRIPTION = """\
Moves FHIR data through the steps that a configuration enables. A run is a job.

- **Start**: Run → Custom run, with the path of the configuration, and of the CRTDL if a step needs one.
- **Follow**: the run's page lists a task run for each step; its *Artifacts* tab has the page of the job, with the
  progress of the step that runs in its title, and a table for each step, and the release report in short; its *Logs*
  tab what the job says.
- **Decide**: a run in state *Suspended* waits for a person. *Resume* says what the release report found and which files
  to look at, and asks for the decision, a name, and a reason where the report says stop.
- **Cancel** ends a job within seconds, between files. **Retry** of a failed one goes on with the step that failed.
"""
"""What the page of a deployment says, unless the deployment has a text of its own."""


@flow(name=FLOW_NAME, description=DESCRIPTION, persist_result=False, validate_parameters=True)
def pipeline(
    config: str,
    crtdl: OptionalText = "",
    input: OptionalText = "",  # noqa: A002 - the name a person reads in the form
    anonymization_config: OptionalText = "",
    patients: OptionalText = "",
    overrides: OptionalList = (),
) -> Outcome:
    """Move FHIR data through the enabled steps of a configuration.

    Args:
        config: Path of the YAML configuration file, on the machine where the run is executed.
        crtdl: Path of the CRTDL file, where an enabled step needs one (extractor, flattening).
        input: Directory or URL to import. Empty: as configured.
        anonymization_config: Path of an anonymization YAML file. Empty: as configured.
        patients: Path of a file with one patient id a line. Empty: the cohort of the CRTDL.
        overrides: KEY=VALUE for configuration keys, as with --set. Secrets as ${VAR} only.
    """
    inputs = JobInputs(
        config=str(Path(config).absolute()), crtdl=crtdl, input=input, anonymization_config=anonymization_config,
        patients=patients, overrides=tuple(overrides or ()),
    )  # fmt: skip
    job_id, deployed = runs.current_run()
    os.umask(0o077)  # a worker's own may be wider
    # A worker's run has begun: it waits from its first call on. A command would have told that nothing answers.
    patience = BRIDGE if deployed else PATIENCE
    with shown_in_ui(job_id), PrefectApi(current_api(), patience=patience) as api:
        try:
            if "" in (crtdl, input, anonymization_config, patients):
                api.set_parameters(job_id, inputs.parameters())  # pipeline continue takes them from the run
            if deployed:
                refuse_scratch(inputs)
            with ExitStack() as stack:
                job = stack.enter_context(Job.opened(job_id, inputs, api, presenter.current(), deployed=deployed))
                stack.enter_context(
                    signals.stopping(job.stop, lambda name: end_now(api.address, job_id, name, job.leave))
                )
                stack.enter_context(last_words(job.lost))
                if deployed:  # a command is watched from its beginning
                    home = own_server(job.config.jobs_dir, api.address.url)
                    stack.enter_context(watched(replace(api.address, home=home)))
                    if home is None:
                        bridge_from_now_on(api.address.url)
                stack.enter_context(runs.results_in(str(job.config.jobs_dir.absolute())))
                try:
                    return guarded(job, deployed=deployed)
                finally:
                    nothing_after(job_id)  # ``Job.ended`` said how it ends
        except JobBusyError as busy:
            logger.warning("%s: this one leaves it alone", busy.message)
            runs.leave_alone()
            raise
        except (ConfigError, SluiceError) as problem:
            error = config_error(problem) if isinstance(problem, ConfigError) else problem
            logger.error("the job is failed: %s", error.render())
            record_if_possible(lambda: RecordWriter(api, job_id).set(error=Problem.of(error)))
            nothing_after(job_id)
            return Failed(message=error.render())


def refuse_scratch(inputs: JobInputs) -> None:
    """A job must not be kept where the worker removes everything when the run ends.

    Raises:
        InputError: ``jobs_dir`` is relative, and the worker gave the run a directory for the time being.
    """
    jobs_dir = inputs.load().config.jobs_dir
    if not jobs_dir.is_absolute() and runs.in_scratch_directory():
        raise InputError(
            "jobs-dir-scratch", "jobs_dir is relative, and this worker removes its directory when the run ends",
            context=f"jobs_dir: {jobs_dir}",
            hint="make jobs_dir absolute, or set working_dir of the work pool or deployment (deployments/prefect.yaml)",
        )  # fmt: skip


def guarded(job: Job, *, deployed: bool) -> Outcome:
    """Run the job; whatever goes wrong beside a step is recorded. An exception that left the flow would be pickled."""
    try:
        ended = run(job, deployed=deployed)
    except Pause:
        if job.writer.known().waiting is not None:
            raise  # the job parked itself
        # Prefect's engine saw first, between two steps, that somebody suspended the run.
        at = next((n for n, step in sorted(job.steps.items()) if step.state != "completed"), len(job.steps))
        return stopped(job, at, Stopped(SUSPEND), deployed=deployed)
    except SluiceError as problem:
        error = problem
    except Exception as defect:  # noqa: BLE001 - the seam where defects become reports
        error = internal_error(defect)
    else:
        settle(job)
        return ended
    record_if_possible(lambda: job.failed(None, error))
    show(job, "failed")
    return Failed(message=job.problem(error).render())


def settle(job: Job) -> None:
    """After an outage: no step that is complete stands in the UI as one that runs."""
    if job.api.outage is None or not job.api.outage.happened:
        return
    open_names = {step.name for step in job.steps.values() if step.state != "completed"}
    with pages.best_effort("the state of the task runs"):
        job.api.settle_task_runs(job.id, {step.name for step in job.steps.values()} - open_names)


def record_if_possible(write: Callable[[], object]) -> None:
    """Write how the job ends: the Prefect API may be what has failed, and the exit code says so then."""
    try:
        write()
    except SluiceError as unwritten:
        logger.error("the end of the job is not recorded: %s", unwritten.message)


def show(job: Job, state: pages.PageState, counted: Mapping[str, Any] | None = None) -> None:
    """Publish the job's page with the ``state`` it is about to have, and what the error of a failed step counted."""
    with pages.best_effort("the page of the job"):
        pages.job_page(
            job.page, job.record(), state=state, continued_with=job.continued_with, counted=counted or {},
            k=job.loaded.config.report.k, language=job.loaded.config.report.language,
        )  # fmt: skip


def run(job: Job, *, deployed: bool) -> Outcome:
    """Prepare, then each step; the state the run ends in."""
    job.prepare()
    if deployed and all(step.state == "pending" for step in job.steps.values()):
        if is_made_up(job.writer.known().name):  # what somebody typed in the form stays
            job.api.rename(job.id, job_name(job.loaded, job.id))
            job.writer.read()
        findings = preflight(job.loaded, job.inputs, tell=logger.warning)
        if findings:
            for finding in findings:
                logger.error("%s", finding.render())
            job.failed(None, worst(findings))
            show(job, "failed")
            return Failed(message="\n".join(job.problem(finding).render() for finding in findings))
    show(job, "running")
    sources = Sources(job.step_names, job.config)
    left: Source | None = None
    for position, name in enumerate(job.step_names, start=1):
        step = declared(name)
        left = sources.read_by(step) if step.delivers else left
        if (ended := before(job, position, step, sources, deployed=deployed)) is not None:
            return ended
        result = run_step(job, position, step, sources.read_by(step), deployed=deployed)
        if not isinstance(result, StepReport):
            return result
        if result.output:
            tables = step.tables or (step.asks and sources.newest is not None and sources.newest.tables)
            sources.wrote(job.written(position, tables=tables))
        if job.until == position and position < len(job.step_names):
            job.writer.set(until=None, stopped_by=None)
            job.ended("stopped", reason="alone")
            show(job, "stopped")
            return Crashed(name="Stopped", message=f"{name} was run alone; continue goes on after it")
    return completed(job, left or sources.newest, deployed=deployed)


def completed(job: Job, left: Source | None, *, deployed: bool) -> Outcome:
    """All steps are complete: the last release report, over the data that ``left``, and the end of the job."""
    try:
        release.at_the_end(job, left)
    except Stopped as reason:
        return stopped(job, len(job.step_names), reason, deployed=deployed)
    job.writer.set(**{"until": None, "progress": None, f"shown__{AT_THE_END}": job.at_the_end})
    show(job, "completed")
    job.ended("completed")
    return Completed(message="all steps are complete")


def run_step(job: Job, position: int, step: Step, source: Source | None, *, deployed: bool) -> StepReport | Outcome:
    """Run one step: its result, or the state in which the run ends here."""
    if job.stop.requested:
        return stopped(job, position, Stopped(job.stop.reason or "stopped"), deployed=deployed)
    context = job.context(position, step, source)
    with job.running(context):
        task = step_task(step.name, step.run, step.services)
        state: State[Any] = task.with_options(result_storage_key=job.directory.result_key(position, step.name))(
            runs.sealed(context), return_state=True
        )
    outcome = runs.result_of(state)
    if isinstance(outcome, Parked):
        outcome = park(job, position, outcome.directory, context.input_dir, deployed=deployed)
    if isinstance(outcome, Stopped):
        return stopped(job, position, outcome, deployed=deployed)
    if isinstance(outcome, SluiceError):
        return failed(job, position, outcome)
    if not isinstance(outcome, StepReport):
        raise outcome
    job.finished(position, outcome, expected=source.lines if source else None)
    if step.gate is not None:
        found = step.gate(context, outcome)
        job.passed_gate(position, found)
        if found is not None:
            show(job, "failed")
            return Failed(message=found.render())
    show(job, "running")
    return outcome


def failed(job: Job, position: int, error: SluiceError) -> Outcome:
    """Record that a step failed; the state in which the run ends."""
    name = job.step_names[position - 1]
    record = job.failed(position, error)
    show(job, "failed", error.details)
    return Failed(message=f"{name}: {record.render()}")


def decided(job: Job, position: int, sources: Sources, *, deployed: bool = False) -> Outcome | None:
    """Take in what there is to be seen at a wait, then look for the decision; the state in which the run ends here."""
    job.look_away()
    at = position
    try:
        if job.steps[position].state == "completed":
            to_read = [at for at in sources.readers(position) if job.steps[at].state != "completed"]
            if not to_read:
                return None
            at = to_read[0]  # what goes wrong keeps this step from its data; the wait stays complete
            if not waits_again(job, position, sources):
                return None
        elif sources.newest is not None:
            job.look(position, sources.newest, sources)
        ended = decide(job, position)
        if ended is None and position not in job.approvals:
            release.before_waiting(job, position, sources)
    except Stopped as reason:
        return stopped(job, at, reason, deployed=deployed)
    except SluiceError as error:
        return failed(job, at, error)
    return ended


def before(job: Job, position: int, step: Step, sources: Sources, *, deployed: bool) -> Outcome | None:
    """What a person says before a step that asks, or the release report before one with which data leave."""
    if step.asks:
        return decided(job, position, sources, deployed=deployed)
    return reported(job, position, sources, deployed=deployed) if step.delivers else None


def reported(job: Job, position: int, sources: Sources, *, deployed: bool) -> Outcome | None:
    """The release report where data leave with the step at ``position`` and nobody was asked; the state that ends the
    job where it says stop and the configuration is as strict as a person.
    """
    try:
        held = release.before_leaving(job, position, sources)
    except Stopped as reason:
        return stopped(job, position, reason, deployed=deployed)
    except SluiceError as error:
        return failed(job, position, error)
    if held is None:
        return None
    job.held_back(position, held)
    show(job, "failed")
    return Failed(message=held.render())


def decide(job: Job, position: int) -> Outcome | None:
    """Look for a person's decision at this wait; the state that ends the job when it was a no.

    A form answered in the UI becomes the record's approval here, once and for all. Where somebody approved with a
    command while another person rejected in the form, the no counts: labels have no compare-and-set.
    """
    job.check_first(position)
    known = job.approvals.get(position)
    if known is None or (known.approved and known.where == "cli"):
        take_answer(job, position, known)
    approval_now = job.approvals.get(position)
    if approval_now is not None and approval_now.approved and job.close_again(position):
        return None  # the wait parks the job
    if approval_now is not None:
        job.decided(position, approval_now)
        release.keep_decisions(job, position)
    elif position in job.reviews:
        release.keep_decisions(job, position)
    if approval_now is None or approval_now.approved:
        return None
    error = rejected(approval_now, job.step_names[position - 1])
    job.unfinished(position, "stopped", error=error)
    job.ended("cancelled", error=error)
    show(job, "cancelled")
    return Cancelled(message=error.message)


def take_answer(job: Job, position: int, known: Approval | None) -> None:
    """Take in what somebody answered in the form of this wait, beside the decision that is ``known``."""
    shown, first = job.shown.get(position), job.reviews.get(position)
    answer = answered(job.api, job.id, job.forms.get(position), job.seen.get(position, ""), shown)
    if answer is None:
        if known is None and position in job.forms and position in job.seen:
            logger.warning("step %d wait: resumed without a decision and a name, so the job waits again", position)
        return
    if known is not None and answer.approved:
        return
    if (why := rules.objection(answer, first, job.config)) is not None:
        job.refused = (f"not released: {why}",)
        logger.warning("step %d wait: the answer was not taken, and the job waits again, which says why", position)
    elif rules.is_first(answer, first, job.config):
        job.writer.review(position, answer)
        job.reviews[position] = answer
        job.forms.pop(position, None)
        logger.info("step %d wait was released by the first of two people", position)
    else:
        job.writer.approve(position, answer)
        job.approvals[position] = answer
        logger.info("step %d wait was decided in the Prefect UI or through its API", position)


def park(job: Job, position: int, directory: Path, looked_at: Path, *, deployed: bool) -> SluiceError:
    """Save the form, record where the job waits, park the run and leave the flow.

    In this order: a process that dies before the record leaves a job that is interrupted and comes back here; from the
    record on the job waits and can be decided with ``pipeline continue``, parked in Prefect or not. Returns what went
    wrong with the directory for corrected files.
    """
    waiting = job.as_seen(
        Waiting(
            position=position,
            step=job.step_names[position - 1],
            directory=str(directory),
            looked_at=str(looked_at),
            since=now(),
        )
    )
    again = "resumed without a decision; " if position in job.forms and position in job.seen else ""
    if job.refused:
        again = "resumed with an answer that was not taken; "
    language, by_hand = job.config.report.language, None if deployed else job.continued_with
    description = pages.wait_description(waiting, job.step_names, by_hand, language=language)
    fields = pages.field_words(language)
    form, state = runs.saved_form(job.id, position, description, fields, deployed=deployed)
    state.message = f"{again}step {position} waits for a decision: Resume asks for it"
    try:
        job.waits(waiting, form)
    except StorageError as error:
        return error
    show(job, "waiting")
    job.presenter.waits(waiting)
    return runs.park(job.id, state)


def away() -> NetworkError:
    """The error of a job whose record could not be written for longer than it waits."""
    return NetworkError(
        "prefect-away", f"the Prefect API was away for more than {human_seconds(BRIDGE)}",
        hint="check the Prefect server, then continue the job: what was done counts",
    )  # fmt: skip


def stopped(job: Job, position: int, reason: Stopped, *, deployed: bool = False) -> Outcome:
    """Record the stop; a cancel from the UI ends the job, a signal or a suspend leaves it to be continued.

    A worker passes a cancel on as a signal.

    Raises:
        prefect.exceptions.TerminationSignal: a runner asked this process to end.
        prefect.exceptions.Pause: somebody suspended the run, which stays so.
    """
    if str(reason) == AWAY:
        return failed(job, position, away())
    cancelled = str(reason) == CANCEL or cancel_asked(job.api, job.id)
    job.unfinished(position, "stopped", stopped_by=None if cancelled else str(reason))
    end: Literal["cancelled", "stopped"] = "cancelled" if cancelled else "stopped"
    job.ended(end, reason=CANCEL if cancelled else str(reason))
    show(job, end)
    # What the step's task run came to is sent before Prefect ends this process, when its runner asked.
    runs.drain()
    if str(reason) == SUSPEND and not cancelled:
        runs.stay_suspended(job.id, deployed=deployed)
    runs.raise_termination_if_asked()
    if cancelled:
        return Cancelled(message="cancelled in the Prefect UI")
    return Crashed(name="Stopped", message=f"stopped by {reason}")
