"""The flow: prepare the job, then run each enabled step (docs/steps.md).

A step is complete when its label says so. A flow run that is executed again skips the complete steps.
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from prefect import flow
from pydantic import WithJsonSchema

from flows.gate import release
from flows.gate.wait import Waits
from flows.job.ends import end, ending, fail_early, give_up
from flows.job.inputs import JobInputs, job_name
from flows.job.lock import JobBusyError
from flows.job.preflight import preflight
from flows.job.problem import as_one_error
from flows.job.running import RunningJob
from flows.job.sources import Sources
from flows.job.state import JobState
from flows.prefect import runs
from flows.prefect.address import configured_api
from flows.prefect.api import FLOW_NAME, JOB_SECONDS, PrefectApi
from flows.reports import terminal
from flows.signals import stopping
from tasks import declared
from tasks.shared.log import logger
from tasks.shared.prefect_task import run_step
from tasks.shared.report import StepReport
from tasks.shared.step import Source, Step
from tasks.shared.stop import Stop

# For a union with None, the form of the Prefect UI hides the field behind a switch. These types show the field at once.
# The defaults are not None, because the form sends them and refuses None.
OptionalText = Annotated[str | None, WithJsonSchema({"type": "string"})]
OptionalList = Annotated[Sequence[str] | None, WithJsonSchema({"type": "array", "items": {"type": "string"}})]

DESCRIPTION = """\
Moves FHIR data through the steps that a configuration enables. A run is a job.

- **Start**: Run → Custom run, with the path of the configuration, and of the CRTDL if a step needs one.
- **Follow**: the run's page lists a task run for each step. Its *Artifacts* tab has the job's page, the progress of the
  running step, and the short release report. Its *Logs* tab has the log.
- **Decide**: a run in state *Suspended* waits for a decision. *Resume* shows the findings of the release report and the
  files to review, and asks for your decision, your name, and a reason if you release although the report has stops.
- **Cancel** ends a job within seconds, between files. **Retry** of a failed job continues with the failed step.
"""
"""The description on the page of a deployment, unless the deployment has its own."""


@flow(name=FLOW_NAME, description=DESCRIPTION, persist_result=False, validate_parameters=True)
def pipeline(
    config: str,
    crtdl: OptionalText = "",
    input: OptionalText = "",  # noqa: A002 - the name a person reads in the form
    anonymization_config: OptionalText = "",
    patients: OptionalText = "",
    overrides: OptionalList = (),
) -> None:
    """Move FHIR data through the enabled steps of a configuration.

    Args:
        config: Path of the YAML configuration file, on the machine where the run is executed.
        crtdl: Path of the CRTDL file, where an enabled step needs one (extractor, flattening).
        input: Directory or URL to import. Empty: as configured.
        anonymization_config: Path of an anonymization YAML file. Empty: as configured.
        patients: Path of a file with one patient id a line. Empty: the cohort of the CRTDL.
        overrides: KEY=VALUE for configuration keys, as with --set. Secrets as ${VAR} only.
    """
    stop, presenter, job_id = Stop(), terminal.current(), runs.current()
    inputs = JobInputs.of({
        "config": str(Path(config).absolute()), "crtdl": crtdl, "input": input, "overrides": tuple(overrides or ()),
        "anonymization_config": anonymization_config, "patients": patients,
    })  # fmt: skip
    giving_up = partial(give_up, job_id, inputs, presenter)
    with stopping(stop, giving_up), PrefectApi(configured_api(), patience=JOB_SECONDS) as api:
        os.umask(0o077)  # the umask of a worker may let other users read files
        opened = RunningJob.opened(job_id, inputs, api, presenter, stop)
        try:
            with opened as job, job.watch.running(), ending(job):
                run(job)
        except JobBusyError as busy:
            logger.warning("%s: this one leaves it alone", busy.message)
            runs.leave()
        except Exception as problem:  # noqa: BLE001 - a defect becomes an error of the job
            fail_early(api, job_id, problem)


def run(job: RunningJob) -> None:
    """Run each step on the data of the steps before it. Raises ``Pause`` at the end or at a wait, or a step's error."""
    prepare(job)
    sources = Sources(job.step_names, job.config)
    waits = Waits(job, sources)
    sent: Source | None = None
    for position, name in enumerate(job.step_names, start=1):
        job.position, step = position, declared(name)
        if step.is_wait:
            source: Source | None = waits.decide(position)
        else:
            source = sources.read_by(step)
            waits.check(position, source)
        if step.delivers:
            release.check_before_sending(job, source)
            sent = source
        report = do(job, step, source)
        if step.is_wait:
            waits.passed(position, report)
        elif report.output:
            sources.wrote(job.written(position, tables=step.tables))
    release.at_the_end(job, sent or sources.newest)
    end(job, JobState.COMPLETED, "all steps are complete")


def prepare(job: RunningJob) -> None:
    """Prepare the job. A new job of a deployment is also named and checked here, because no command did it."""
    job.prepare()
    record = job.record()
    if record.has_deployment and not any(step.started for step in record.steps):
        job.api.change(job.id, name=job_name(job.loaded, record.created))
        if findings := preflight(job.loaded, job.inputs, tell=logger.warning):
            raise as_one_error(findings)
    job.show()


def do(job: RunningJob, step: Step, source: Source | None) -> StepReport:
    """Run a step unless it is complete, then call its gate. Raises the error of the step or of the gate."""
    job.stop.check()
    context = job.context(step, source)
    report = job.steps[job.position]
    if report.state == "completed":
        job.presenter.step_finished(report, again=True)
    else:
        with job.step_running(context):
            done = run_step(step, context)
        if isinstance(done, Exception):
            raise done
        report = job.step_complete(context, done)
        job.show()
    found = step.gate(context, report) if step.gate is not None else None
    if found is not None:
        raise found
    return report
