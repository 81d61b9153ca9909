"""``pipeline start | continue | plan`` and ``job run | delete``: what the commands do, around the flow."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

import click

from config import LoadedConfig, load_config
from flows import presenter, server
from flows.decisions import approve, ask, reject
from flows.directory import JobDirectory
from flows.inputs import JobInputs
from flows.lock import JobLock
from flows.record import JobRecord, JobState, RecordWriter
from flows.session import Session, dump, opened
from flows.status import continue_hint
from flows.watch import exit_code_of
from tasks.shared.errors import InputError, SluiceError, TerminalError


def plan(inputs: JobInputs) -> int:
    """Preflight only: print every finding."""
    from flows.preflight import exit_code, preflight

    loaded = inputs.load()
    warn(loaded)
    findings = preflight(loaded, inputs)
    for finding in findings:
        click.echo(finding.render(), err=True)
    if not findings:
        click.echo("nothing found: the job can start")
    return exit_code(findings)


def start(inputs: JobInputs, *, progress: bool, as_json: bool, detach: bool) -> int:
    """Preflight, create the job, run it here or hand it to a deployment."""
    from flows.preflight import exit_code, preflight

    loaded = inputs.load()
    warn(loaded)
    findings = preflight(loaded, inputs)
    if findings:
        for finding in findings:
            click.echo(finding.render(), err=True)
        return exit_code(findings)
    if detach:
        return hand_over(loaded, inputs)
    with opened_with_prefect(loaded) as session:
        from flows import engine
        from flows.job import job_name
        from flows.pipeline import pipeline

        names = ",".join(str(name) for name in loaded.config.pipeline.enabled_steps)
        job_id = engine.create_run(
            pipeline,
            name=job_name(loaded),
            parameters=inputs.parameters(),
            labels={"job.config": inputs.config, "job.steps": names},
        )
        directory = JobDirectory.of(session.jobs_dir, job_id)
        directory.create()
        with JobLock(directory.path):
            session.api.set_labels(job_id, {"job.directory": str(directory.path)})
            click.echo(f"job {job_id}", err=as_json)
            return run_here(session, job_id, progress=progress, as_json=as_json)


def hand_over(loaded: LoadedConfig, inputs: JobInputs) -> int:
    """Start the job through a deployment of the flow, and print its id."""
    from flows.api import FLOW_NAME

    with opened(loaded) as session:
        body = {"flows": {"name": {"any_": [FLOW_NAME]}}, "limit": 10}
        deployments = session.api.request("POST", "/deployments/filter", body) or []
        if not deployments:
            raise InputError(
                "no-deployment", "there is no deployment of the flow to hand the run to", context=session.address.ui,
                hint="serve one (deployments/serve.py) against the same Prefect API, or leave out --detach",
            )  # fmt: skip
        run = session.api.request(
            "POST",
            f"/deployments/{deployments[0]['id']}/create_flow_run",
            {"parameters": inputs.parameters()},
        )
        click.echo(f"job {run['id']}")
    return 0


def go_on(config: str, job_id: str, *, decision: str | None, comment: str, progress: bool, as_json: bool) -> int:
    """Continue a job: decide a wait, then run what is left."""
    with adopted(config, job_id) as (session, record, inputs):
        if record.state is JobState.COMPLETED and decision != "reject":
            return report(session, job_id, as_json=as_json)
        if record.state is JobState.CANCELLED:
            raise TerminalError(
                "job-cancelled",
                "the job was cancelled and cannot go on",
                context=job_id,
                hint="start a new job",
            )
        if decision and record.state is not JobState.WAITING:
            raise InputError(
                "not-waiting", f"the job is {record.state.value}, there is nothing to {decision}", context=job_id,
                hint="continue it without --approve or --reject",
            )  # fmt: skip
        if decision == "reject":
            reject(session, record, comment)
            report(session, job_id, as_json=as_json)
            return 0
        code = check_open_steps(record, inputs)
        if code:
            return code
        session.api.set_parameters(job_id, inputs.parameters())
        if record.state is JobState.WAITING:
            if decision is None and not ask(record):
                click.echo("nothing is decided; the job goes on waiting", err=True)
                return 0
            approve(session, record, comment)
            if record.has_deployment:
                click.echo(f"job {job_id}: approved; a worker of its deployment goes on with it", err=as_json)
                return 0
        elif record.has_deployment:
            session.api.set_state(job_id, "SCHEDULED", name="Continuing", force=True)
            click.echo(f"job {job_id}: handed to a worker of its deployment", err=as_json)
            return 0
        return run_here(session, job_id, progress=progress, as_json=as_json)


def run_one(config: str, job_id: str, *, step: str, force: bool, progress: bool, as_json: bool) -> int:
    """Run one step again and stop after it; ``force`` resets it and the steps after it."""
    with adopted(config, job_id) as (session, record, inputs):
        if record.state in {JobState.CANCELLED, JobState.WAITING}:
            raise InputError(
                "job-state",
                f"the job is {record.state.value}",
                context=job_id,
                hint="start a new job"
                if record.state is JobState.CANCELLED
                else "decide its wait with pipeline continue",
            )
        position = find_step(record, step)
        before = [earlier.name for earlier in record.steps[: position - 1] if earlier.state != "completed"]
        if before:
            raise InputError(
                "step-order", f"steps before {step} are not complete: {', '.join(before)}", context=job_id,
                hint="pipeline continue runs them in order",
            )  # fmt: skip
        if record.step(position).state == "completed":
            if not force:
                raise InputError(
                    "step-complete", f"step {position}, {record.step(position).name}, is complete", context=job_id,
                    hint="--force runs it again, resets the steps after it and removes their outputs",
                )  # fmt: skip
            JobDirectory.of(session.jobs_dir, job_id).reset(record.step_names, position)
            cleared = [
                f"{kind}__{n}" for n in range(position, len(record.steps) + 1) for kind in ("step", "approval", "form")
            ]
            RecordWriter(session.api, job_id).set(**dict.fromkeys(cleared), waiting=None)
        code = check_open_steps(session.job(job_id), inputs, only=position)
        if code:
            return code
        session.api.set_parameters(job_id, inputs.parameters())
        RecordWriter(session.api, job_id).set(until=position)
        if record.state is JobState.COMPLETED:
            session.api.set_state(job_id, "PENDING", force=True)
        return run_here(session, job_id, progress=progress, as_json=as_json)


def find_step(record: JobRecord, step: str) -> int:
    """The position of a step given by name or position.

    Raises:
        InputError: there is no such step, or its name occurs more than once.
    """
    if step.isdigit() and 1 <= int(step) <= len(record.steps):
        return int(step)
    found = [candidate.position for candidate in record.steps if candidate.name == step]
    known = ", ".join(f"{candidate.position} {candidate.name}" for candidate in record.steps)
    if not found:
        raise InputError("step-unknown", f"the job has no step {step!r}", context=known)
    if len(found) > 1:
        raise InputError(
            "step-ambiguous", f"the job has {step} more than once", context=known, hint="give the position"
        )
    return found[0]


def delete(config: str, job_id: str) -> int:
    """Remove a job's directory and record."""
    with opened(load_config(Path(config))) as session:
        session.job(job_id)
        directory = JobDirectory.of(session.jobs_dir, job_id)
        if directory.path.exists():
            with JobLock(directory.path):
                session.api.delete_run(job_id)
                directory.delete()
        else:
            session.api.delete_run(job_id)
        click.echo(f"job {job_id} is deleted")
    return 0


@contextmanager
def adopted(config: str, job_id: str) -> Iterator[tuple[Session, JobRecord, JobInputs]]:
    """An existing job with its lock held: its record, and its inputs with the configuration file as it is now.

    Raises:
        JobBusyError: another process runs it.
        InputError: there is no such job, or ``enabled_steps`` differ from the job's.
    """
    from flows.job import refuse_changed_steps

    loaded = load_config(Path(config))
    with opened_with_prefect(loaded) as session:
        record = session.job(job_id)
        inputs = JobInputs.model_validate(record.parameters | {"config": str(Path(config).absolute())})
        now_loaded = inputs.load()
        warn(now_loaded)
        refuse_changed_steps(record, tuple(str(name) for name in now_loaded.config.pipeline.enabled_steps))
        directory = JobDirectory.of(session.jobs_dir, job_id)
        directory.create()
        with JobLock(directory.path):
            yield session, session.job(job_id), inputs


def check_open_steps(record: JobRecord, inputs: JobInputs, *, only: int | None = None) -> int:
    """The preflight of the steps still to do (or of one); prints its findings and returns the exit code."""
    from flows.preflight import exit_code, preflight

    done = [step.position for step in record.steps if step.state == "completed" or only not in {None, step.position}]
    findings = preflight(inputs.load(), inputs, done=done)
    for finding in findings:
        click.echo(finding.render(), err=True)
    return exit_code(findings)


@contextmanager
def opened_with_prefect(loaded: LoadedConfig) -> Iterator[Session]:
    """As ``session.opened``, for commands that run a flow: Prefect is imported while the server starts."""
    from flows.api import PrefectApi

    jobs_dir = loaded.config.jobs_dir.absolute()
    with ExitStack() as stack:
        embedded = None
        address = server.configured_api()
        if address is None:
            embedded = stack.enter_context(server.EmbeddedServer(jobs_dir))
            address = embedded.announced()
        server.use(address, jobs_dir)
        from flows import engine, pipeline  # noqa: F401 - imported here so that both overlap

        if embedded is not None:
            embedded.address()
        # Before the server may go: what Prefect's background threads still hold.
        stack.callback(engine.drain)
        api = stack.enter_context(PrefectApi(address))
        yield Session(loaded, address, api)


def run_here(session: Session, job_id: str, *, progress: bool, as_json: bool) -> int:
    """Run the job's flow run in this process; the exit code."""
    from flows import engine
    from flows.pipeline import pipeline
    from flows.run import Terminated
    from flows.terminal import Terminal

    out: TextIO = sys.stderr if as_json else sys.stdout
    terminal = Terminal(out, progress=progress)
    presenter.use(terminal)
    try:
        engine.execute(pipeline, job_id)
    except (KeyboardInterrupt, Terminated) as interrupt:
        name = signal.SIGTERM.name if isinstance(interrupt, Terminated) else signal.SIGINT.name
        session.api.set_labels(job_id, {"job.stopped_by": name})
        session.api.set_state(job_id, "CRASHED", name="Stopped", message=f"stopped by {name}", force=True)
    finally:
        terminal.close()
    return report(session, job_id, as_json=as_json)


def report(session: Session, job_id: str, *, as_json: bool) -> int:
    """Print how the job stands, and return the exit code for it."""
    record = session.job(job_id)
    if as_json:
        click.echo(dump(record.status()))
    error = record.error
    match record.state:
        case JobState.COMPLETED:
            click.echo(f"job {job_id} is complete; its files are in {record.directory}", err=as_json)
            return 0
        case JobState.WAITING:
            click.echo(continue_hint(record), err=as_json)
            return 0
        case JobState.STOPPED:
            click.echo(f"job {job_id} is stopped\n{continue_hint(record)}", err=True)
            return exit_code_of(record.stopped_by) if record.stopped_by else 0
        case JobState.CANCELLED:
            click.echo(f"job {job_id} is cancelled", err=True)
            return 1
    if error is None:
        raise TerminalError(
            "job-unfinished", f"the job ended as {record.state.value} without an error in its record", context=job_id,
            hint=f"see {record.directory}/job.log, then continue it",
        )  # fmt: skip
    problem = SluiceError(error.reference, error.message, context=error.context, hint=error.hint)
    click.echo(problem.render(), err=True)
    click.echo(continue_hint(record), err=True)
    return error.exit_code


def warn(loaded: LoadedConfig) -> None:
    """Print the configuration's warnings."""
    for warning in loaded.warnings:
        click.echo(warning.render(), err=True)
