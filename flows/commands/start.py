"""``pipeline start`` and ``plan``: the work of commands around the flow. ``continue_job.py`` continues a job."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from config import ConfigError, Finding, LoadedConfig
from flows.job.directory import JobDirectory
from flows.job.inputs import JobInputs, job_name
from flows.job.lock import JobLock
from flows.job.record import continue_hint
from flows.job.session import Session, opened
from flows.job.state import JobState
from flows.job.watch import record_end
from flows.output import patience, print_findings, print_json, print_line
from flows.prefect import address as api_address
from flows.prefect import server
from flows.prefect.deployments import choose_deployment, run_deployment
from flows.reports import terminal
from flows.reports.status import status_of
from flows.reports.terminal import Terminal
from flows.signals import exit_code_of, signals
from tasks.shared.errors import InputError, TerminalError
from tasks.shared.units import human_count

_said: set[str] = set()
"""What this command printed as doubtful before it ran the job."""


def plan(inputs: JobInputs, wrong: Sequence[InputError] = ()) -> int:
    """Run the preflight only: print every finding, and whether the job can start."""
    if (loaded := load_job(inputs, wrong)) is None:
        return 2
    code = check(loaded, inputs)
    if code == 0:
        doubtful = len(loaded.warnings) + len(_said)
        found = human_count(doubtful, "warning") + "." if doubtful else "All checks passed."
        print_line(f"{found} The job can start.")
    return code


def load_job(inputs: JobInputs, wrong: Sequence[InputError]) -> LoadedConfig | None:
    """Return the configuration of a new job, or ``None`` after all findings if it or an argument is ``wrong``."""
    from flows.job.preflight import file_findings

    findings: Sequence[Finding] = ()
    try:
        loaded = inputs.load()
    except ConfigError as error:
        findings = error.findings
    except InputError as error:  # of the jobs directory
        wrong = [*wrong, error]
    else:
        if not wrong:
            return loaded
        findings = [*loaded.warnings, *file_findings(loaded.config, inputs.step_inputs())]
    print_findings([*wrong, *findings])
    return None


def check(loaded: LoadedConfig, inputs: JobInputs) -> int:
    """Print all findings that can be found before a job exists; return their exit code, 0 without findings."""
    from flows.job.preflight import exit_code, preflight

    warn(loaded, inputs)
    findings = preflight(loaded, inputs, tell=doubt)
    print_findings(findings)
    return exit_code(findings)


def start(inputs: JobInputs, wrong: Sequence[InputError] = (), *, progress: bool, as_json: bool, detach: bool) -> int:
    """Run the preflight, create the job, and run it here or hand it to a deployment."""
    if (loaded := load_job(inputs, wrong)) is None:
        return 2
    if code := check(loaded, inputs):
        return code
    if detach:
        return hand_over(loaded, inputs, as_json=as_json)
    with opened_with_prefect(loaded) as session:
        from flows.pipeline import pipeline
        from flows.prefect import runs

        job_id = runs.create(
            pipeline,
            name=functools.partial(job_name, loaded),
            parameters=inputs.parameters(),
            labels={"job.config": inputs.config, "job.steps": ",".join(loaded.config.pipeline.enabled_steps)},
        )
        directory = JobDirectory.of(session.jobs_dir, job_id)
        directory.create()
        with JobLock(directory.path):
            session.api.set_labels(job_id, {"job.directory": str(directory.path)})
            print_line(f"job {job_id}", err=as_json)
            return run_here(session, job_id, progress=progress, as_json=as_json)


def hand_over(loaded: LoadedConfig, inputs: JobInputs, *, as_json: bool) -> int:
    """Start the job through a deployment of the flow, and print its id."""
    with opened(loaded) as session:
        job_id = run_deployment(session.api, choose_deployment(session.api), inputs.parameters())
        print_line(f"job {job_id}", err=as_json)
        if as_json:
            print_json(status_of(session.job(job_id)))
    return 0


@contextmanager
def opened_with_prefect(loaded: LoadedConfig) -> Iterator[Session]:
    """Open a session like ``session.opened``, for commands that run a flow: Prefect is imported while the server
    starts.
    """
    from flows.prefect.api import PrefectApi

    jobs_dir = loaded.config.jobs_dir.absolute()
    with ExitStack() as stack:
        address = api_address.configured_api()
        if address is not None:
            api_address.reach(address)
        with patience(server.waiting(jobs_dir / ".prefect") if address is None else "starting Prefect"):
            local = address is None
            address = address or server.begin(jobs_dir)[0]
            api_address.use(address)
            from flows import pipeline  # noqa: F401 - imported here so that both overlap

            if local:
                server.wait(jobs_dir / ".prefect")
        stack.callback(_drained)

        api = stack.enter_context(PrefectApi(address))
        yield Session(loaded, address, api)


def _drained() -> None:
    from flows.prefect import runs

    with patience("sending the last lines and events to Prefect"):
        runs.drain()


def run_here(session: Session, job_id: str, *, progress: bool, as_json: bool) -> int:
    """Run the job's flow run in this process; return the exit code."""
    execute(session, job_id, progress=progress, aside=as_json)
    return report(session, job_id, as_json=as_json)


def execute(session: Session, job_id: str, *, progress: bool, aside: bool) -> None:
    """Run the job's flow run in this process, with step lines on stdout (on stderr if ``aside``)."""
    from flows.pipeline import pipeline
    from flows.prefect import runs

    if session.state_type(job_id) in {"COMPLETED", "PAUSED"}:
        session.api.set_state(job_id, "PENDING")
    try:
        shown = Terminal(progress=progress, summary_to_stderr=aside, said=_said)
        with terminal.presented_by(shown), shown.beginning():
            runs.execute(pipeline, job_id)
    except BaseException:
        # A signal between two steps of Prefect's own surfaces as anything; without one it is an error to tell.
        if signals.seen is None:
            raise
        record_end(session.api, job_id, signals.seen)


def report(session: Session, job_id: str, *, as_json: bool) -> int:
    """Print the state of a job and return its exit code."""
    record = session.job(job_id)
    if as_json:
        print_json(status_of(record))
    error = record.error
    match record.state:
        case JobState.COMPLETED:
            print_line(f"job {job_id} is complete; its files are in {record.directory}", err=as_json)
            return 0
        case JobState.WAITING:
            print_line(continue_hint(record), err=as_json)
            return 0
        case JobState.STOPPED:
            print_line(f"job {job_id} is stopped\n{continue_hint(record)}", err=True)
            return exit_code_of(record.stopped_by)
        case JobState.CANCELLED:
            print_line(f"job {job_id} is cancelled{f': {error.message}' if error else ''}", err=True)
            return 0 if error is not None and error.reference == "rejected" else 1
    if error is None:
        raise TerminalError(
            "job-unfinished", f"the job ended as {record.state.value} without an error in its record", context=job_id,
            hint=f"see {record.directory}/job.log, then continue it",
        )  # fmt: skip
    print_line(error.render(), err=True)
    print_line(continue_hint(record), err=True)
    return error.exit_code


def warn(loaded: LoadedConfig, inputs: JobInputs, job_dir: Path | None = None) -> None:
    """Print warnings about the configuration and its files; ``job_dir`` is that of a job to be continued."""
    from flows.job.preflight import warnings

    _said.clear()
    print_findings(loaded.warnings)
    for text in warnings(loaded.config, inputs, job_dir):
        doubt(text)


def doubt(text: str) -> None:
    """Print a warning once; the steps do not repeat it."""
    if text not in _said:
        _said.add(text)
        print_line(f"warning: {text}", err=True)
