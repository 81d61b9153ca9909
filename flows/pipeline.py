"""The flow: prepare, then each enabled step; nothing else.

Document 1, "pipeline", and ``4-product.md`` §4. Finished steps answer from their stored result, so running the flow run
again goes on where it stopped.
"""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Crashed, Failed

from config import ConfigError
from flows import engine, gate, presenter, reporting
from flows.api import FLOW_NAME, PrefectApi
from flows.decisions import IN_THE_UI, rejected
from flows.inputs import JobInputs
from flows.job import Job, Source, config_error, job_name
from flows.lock import JobBusyError
from flows.preflight import preflight, worst
from flows.record import Approval, ErrorRecord, RecordWriter, now
from flows.signals import signals
from flows.watch import end_now
from tasks import CATALOGUE, Step
from tasks.shared.defects import translate_defect
from tasks.shared.errors import InputError, SluiceError, Stopped
from tasks.shared.log import logger
from tasks.shared.step import Parked

Outcome = State[Any]


@flow(name=FLOW_NAME, persist_result=False, validate_parameters=True)
def pipeline(
    config: str,
    crtdl: str | None = None,
    input: str | None = None,  # noqa: A002 - the name a person reads in the form
    anonymization_config: str | None = None,
    patients: str | None = None,
    overrides: list[str] | None = None,
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
        config=config, crtdl=crtdl, input=input, anonymization_config=anonymization_config,
        patients=patients, overrides=tuple(overrides or ()),
    )  # fmt: skip
    job_id, deployed = engine.current_run()
    os.umask(0o077)  # a worker's own may be wider
    with PrefectApi(engine.api_address()) as api:
        try:
            if deployed:
                refuse_scratch(inputs)
            with ExitStack() as stack:
                job = stack.enter_context(Job.opened(job_id, inputs, api, presenter.current()))
                stack.enter_context(
                    signals.stopping(job.stop, lambda name: end_now(api.address, job_id, name, lambda: job.leave(name)))
                )
                stack.enter_context(engine.results_in(str(job.config.jobs_dir.absolute())))
                return guarded(job, deployed=deployed)
        except JobBusyError:
            engine.leave_alone()
            raise
        except (ConfigError, SluiceError) as problem:
            error = config_error(problem) if isinstance(problem, ConfigError) else problem
            RecordWriter(api, job_id).set(error=ErrorRecord.of(error))
            return Failed(message=error.render())


def refuse_scratch(inputs: JobInputs) -> None:
    """A job must not be kept where the worker removes everything when the run ends.

    Raises:
        InputError: ``jobs_dir`` is relative, and the worker gave the run a directory for the time being.
    """
    jobs_dir = inputs.load().config.jobs_dir
    if not jobs_dir.is_absolute() and engine.in_scratch_directory():
        raise InputError(
            "jobs-dir-scratch", "jobs_dir is relative, and this worker removes its directory when the run ends",
            context=f"jobs_dir: {jobs_dir}",
            hint="make jobs_dir absolute, or set working_dir of the work pool or deployment (deployments/prefect.yaml)",
        )  # fmt: skip


def guarded(job: Job, *, deployed: bool) -> Outcome:
    """Run the job; whatever goes wrong beside a step is recorded. An exception that left the flow would be pickled."""
    try:
        return run(job, deployed=deployed)
    except SluiceError as problem:
        error = problem
    except Exception as defect:  # noqa: BLE001 - the seam where defects become reports
        error = translate_defect(defect)
    job.failed(None, error)
    return Failed(message=error.render())


def run(job: Job, *, deployed: bool) -> Outcome:
    """Prepare, then each step; the state the run ends in."""
    job.prepare()
    if deployed and all(step.state == "pending" for step in job.steps.values()):
        job.api.rename(job.id, job_name(job.loaded))
        findings = preflight(job.loaded, job.inputs)
        if findings:
            for finding in findings:
                logger.error("%s", finding.render())
            job.failed(None, worst(findings))
            return Failed(message="\n".join(finding.render() for finding in findings))
    source: Source | None = None
    resources: Source | None = None  # the same, or the NDJSON that flattening read
    for position, name in enumerate(job.step_names, start=1):
        step = CATALOGUE[name]
        reads = resources if name == "send" and job.config.services.send.send_as == "direct_resource_load" else source
        result = run_step(job, position, step, reads, deployed=deployed)
        if not isinstance(result, dict):
            return result
        if result.get("output"):
            tables = name == "flattening" or (name == "wait" and source is not None and source.tables)
            source = Source(job.directory.path / str(result["output"]), result.get("lines_out"), tables)
            resources = resources if tables else source
        if job.until == position and position < len(job.step_names):
            job.writer.set(until=None, stopped_by=None)
            job.ended("stopped", reason="alone")
            return Crashed(name="Stopped", message=f"{name} was run alone; continue goes on after it")
    job.writer.set(until=None)
    reporting.job_page(job.api, job.id, job.writer.read(), done=True)
    job.ended("completed")
    return Completed(message="all steps are complete")


def run_step(job: Job, position: int, step: Step, source: Source | None, *, deployed: bool) -> dict[str, Any] | Outcome:
    """Run one step: its result, or the state in which the run ends here."""
    if job.stop.requested:
        return stopped(job, position, Stopped(job.stop.reason or "stopped"))
    if step.name == "wait" and (rejection := decide(job, position)) is not None:
        return rejection
    context = job.context(position, step, source)
    with job.running(context):
        state: State[Any] = step.load().with_options(result_storage_key=job.directory.result_key(position, step.name))(
            engine.sealed(context), return_state=True
        )
    outcome = engine.result_of(state)
    if isinstance(outcome, Parked):
        park(job, position, outcome.directory, context.input_dir, deployed=deployed)
    if isinstance(outcome, Stopped):
        return stopped(job, position, outcome)
    if isinstance(outcome, SluiceError):
        job.failed(position, outcome)
        reporting.failure_table(job.api, job.id, position, step.name, outcome)
        reporting.job_page(job.api, job.id, job.writer.read(), done=True)
        return Failed(message=f"{step.name}: {outcome.render()}")
    result: dict[str, Any] = outcome
    job.finished(position, result)
    if step.name == "validation":
        found = gate.closed(job.config.services.validation, result, job.directory.path, position)
        job.passed_gate(position, found)
        if found is not None:
            reporting.job_page(job.api, job.id, job.writer.read(), done=True)
            return Failed(message=found.render())
    reporting.job_page(job.api, job.id, job.writer.read(), done=False)
    return result


def decide(job: Job, position: int) -> Outcome | None:
    """Look for a person's decision at this wait; the state that ends the job when it was a no.

    A form answered in the UI becomes the record's approval here, once and for all.
    """
    if position not in job.approvals:
        answer = engine.form_answer(job.api, job.id, job.forms.get(position))
        if answer is not None:
            approval = Approval(approved=answer.approved, comment=answer.comment, who=IN_THE_UI, when=now())
            job.writer.approve(position, approval)
            job.approvals[position] = approval
            logger.info("step %d wait was decided in the Prefect UI or through its API", position)
    approval_now = job.approvals.get(position)
    if approval_now is not None:
        job.decided(position, approval_now)
    if approval_now is None or approval_now.approved:
        return None
    job.unfinished(position, "stopped", error=rejected(approval_now))
    job.ended("cancelled", error=rejected(approval_now))
    return Cancelled(message=f"rejected by {approval_now.who or 'a person'}")


def park(job: Job, position: int, directory: Path, looked_at: Path, *, deployed: bool) -> None:
    """Record where the job waits, save the form, park the run and leave the flow."""
    form, state = engine.form_state(position, deployed=deployed)
    waiting = job.waits(position, directory, looked_at, form)
    reporting.job_page(job.api, job.id, job.writer.read(), done=False)
    job.presenter.waits(waiting)
    engine.park(job.id, state, reporting.wait_description(waiting))


def stopped(job: Job, position: int, reason: Stopped) -> Outcome:
    """Record the stop; a cancel from the UI ends the job, a signal leaves it to be continued."""
    if str(reason) == "cancel":
        job.unfinished(position, "stopped")
        job.ended("cancelled", reason="cancel")
        return Cancelled(message="cancelled in the Prefect UI")
    job.unfinished(position, "stopped", stopped_by=str(reason))
    job.ended("stopped", reason=str(reason))
    engine.raise_termination_if_asked()
    return Crashed(name="Stopped", message=f"stopped by {reason}")
