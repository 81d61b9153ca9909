"""Prepare the run of a deployment, which no command has prepared: a worker takes it up as it was asked for."""

from __future__ import annotations

from prefect.states import Failed

from flows.engine import runs
from flows.engine.run_names import is_made_up
from flows.job.end import problem_of
from flows.job.inputs import JobInputs, job_name
from flows.job.job import Job
from flows.job.outcome import Ended, show
from flows.job.preflight import preflight, worst
from flows.job.steps import record_failure
from tasks.shared.errors import InputError
from tasks.shared.log import logger


def refuse_scratch(inputs: JobInputs) -> None:
    """Check that the job is not kept where the worker removes everything when the run ends.

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


def name_and_check(job: Job) -> None:
    """Name the run of a new job of a deployment, and check what a command checks before it makes a job.

    Raises:
        Ended: the checks found something.
    """
    if is_made_up(job.record().name):  # a name that somebody typed in the form stays
        job.api.rename(job.id, job_name(job.loaded, job.id))
        job.writer.read()
    findings = preflight(job.loaded, job.inputs, tell=logger.warning)
    if findings:
        for finding in findings:
            logger.error("%s", finding.render())
        record_failure(job, None, worst(findings))
        show(job, "failed")
        raise Ended(Failed(message="\n".join(problem_of(job, finding).render() for finding in findings)))
