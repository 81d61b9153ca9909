"""The flow: prepare, then each enabled step; nothing else.

Document 1, "pipeline", and ``4-product.md`` §4. A step is complete when its label says so; the
flow run, run again, goes on with the first that is not.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from prefect import flow
from prefect.states import Completed, Failed
from pydantic import WithJsonSchema

from config import ConfigError
from flows.gate import release
from flows.gate.wait import Waits
from flows.job.inputs import JobInputs, config_error
from flows.job.job import RunningJob
from flows.job.lock import JobBusyError
from flows.job.outcome import (
    Ended,
    Outcome,
    ends_at,
    guarded,
    name_and_check,
    record_if_possible,
    refuse_scratch,
    show,
    watch_process,
)
from flows.job.steps import Sources, announce_end, finish_step, hold_back, recorded_as_running
from flows.job.writer import RecordWriter
from flows.prefect import runs
from flows.prefect.address import configured_api
from flows.prefect.api import FLOW_NAME, JOB_SECONDS, PrefectApi
from flows.reports import terminal
from tasks import declared
from tasks.shared.errors import SluiceError
from tasks.shared.log import logger
from tasks.shared.prefect_task import run_step as run_as_task
from tasks.shared.report import Corrections, Problem, StepReport
from tasks.shared.step import Source, Step

# In the form of the Prefect UI a union with None is a switch that hides the field: these show the field at once. The
# form sends the defaults, and its check of them knows no None.
OptionalText = Annotated[str | None, WithJsonSchema({"type": "string"})]
OptionalList = Annotated[Sequence[str] | None, WithJsonSchema({"type": "array", "items": {"type": "string"}})]

DESCRIPTION = """\
Moves FHIR data through the steps that a configuration enables. A run is a job.

- **Start**: Run → Custom run, with the path of the configuration, and of the CRTDL if a step needs one.
- **Follow**: the run's page lists a task run for each step. Its *Artifacts* tab has the job's page, with the progress
  of the running step in its title and a table for each step, and the short release report. Its *Logs* tab has the log.
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
    inputs = JobInputs(
        config=str(Path(config).absolute()), crtdl=crtdl, input=input, anonymization_config=anonymization_config,
        patients=patients, overrides=tuple(overrides or ()),
    )  # fmt: skip
    job_id, deployed = runs.current()
    os.umask(0o077)  # a worker's own may be wider
    with PrefectApi(configured_api(), patience=JOB_SECONDS) as api:
        try:
            if "" in (crtdl, input, anonymization_config, patients):
                api.change(job_id, parameters=inputs.parameters())  # pipeline continue takes them from the run
            if deployed:
                refuse_scratch(inputs)
            with ExitStack() as stack:
                job = stack.enter_context(RunningJob.opened(job_id, inputs, api, terminal.current(), deployed=deployed))
                watch_process(job, stack)
                runs.end(job_id, guarded(job, partial(run, job)), away=api.away)
        except JobBusyError as busy:
            logger.warning("%s: this one leaves it alone", busy.message)
            runs.leave()
        except (ConfigError, SluiceError) as problem:
            error = config_error(problem) if isinstance(problem, ConfigError) else problem
            logger.error("the job is failed: %s", error.render())
            record_if_possible(lambda: RecordWriter(api, job_id).set(error=Problem.of(error)))
            runs.end(job_id, Failed(message=error.render()), away=api.away)


def run(job: RunningJob) -> Outcome:
    """Prepare the job, run each step, and return the Prefect state that the run ends in."""
    job.prepare()
    if job.deployed and all(step.state == "pending" for step in job.steps.values()):
        name_and_check(job)
    show(job, "running")
    sources = Sources(job.step_names, job.config)
    waits = Waits(job, sources)
    sent: Source | None = None
    for position, name in enumerate(job.step_names, start=1):
        step = declared(name)
        source = sources.read_by(step)
        if step.is_wait:
            waits.decide(position)
        else:
            waits.check(position, source)
        if step.delivers:
            release.check_before_sending(job, position, sources)
            sent = source
        report = run_step(job, position, step, source, sources.corrections(position))
        if step.is_wait:
            waits.passed(position, report)
        elif report.output:
            sources.wrote(job.written(position, tables=step.tables))
    with ends_at(job, len(job.step_names)):
        release.at_the_end(job, sent or sources.newest)
    job.writer.set(progress=None)
    show(job, "completed")
    announce_end(job, "completed")
    return Completed(message="all steps are complete")


def run_step(job: RunningJob, position: int, step: Step, source: Source | None, corrections: Corrections) -> StepReport:
    """Run one step; a complete one has its report in the record.

    Raises:
        Ended: the run ends here.
    """
    with ends_at(job, position):
        job.stop.check()
        context = replace(job.context(position, step, source), corrections=corrections)
        result: StepReport | Exception = job.steps[position]
        if job.steps[position].state != "completed":
            with recorded_as_running(job, context):
                result = run_as_task(step, context)
        if isinstance(result, Exception):
            raise result
    finish_step(job, context, result, expected=source.lines if source else None)
    if step.gate is not None:
        found = step.gate(context, result)
        if found is not None:
            hold_back(job, position, found)
            show(job, "failed")
            raise Ended(Failed(message=found.render()))
    show(job, "running")
    return result
