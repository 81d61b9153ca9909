"""Open Prefect, create or lock a job, run it in this process, and print its outcome: shared by commands."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from config import LoadedConfig
from flows.job.directory import JobDirectory
from flows.job.find import Session
from flows.job.inputs import JobInputs, job_name
from flows.job.lock import job_lock
from flows.job.record import JobRecord, RecordedHandle, RecordWriter, continue_hint, refuse_changed_steps
from flows.job.state import JobState
from flows.jobs_dir import load
from flows.output import patience, print_json, print_line
from flows.prefect import address, server
from flows.prefect.api import PrefectApi
from flows.reports import terminal
from flows.reports.status import status_of
from flows.signals import exit_code_of
from tasks.extractor import submission
from tasks.shared.errors import TerminalError


@contextmanager
def with_prefect(loaded: LoadedConfig) -> Iterator[Session]:
    """Load Prefect and open the jobs of a configuration, for a command that runs a job."""
    api = server.chosen_api(loaded.config.jobs_dir)
    address.use(api)  # before the import of Prefect, which reads these settings
    with patience("loading Prefect's Python packages"):
        from flows import pipeline  # noqa: F401
        from flows.prefect import runs
    with runs.drained(), PrefectApi(api) as opened:
        yield Session(loaded, opened)


@contextmanager
def new_job(session: Session, inputs: JobInputs) -> Iterator[str]:
    """Create a job with its directory, and hold its lock."""
    from flows.pipeline import pipeline
    from flows.prefect import runs

    job_id = runs.create(pipeline, name=job_name(session.loaded), parameters=inputs.parameters())
    directory = JobDirectory.of(session.jobs_dir, job_id)
    directory.create()
    with job_lock(directory.path):
        steps = ",".join(session.loaded.config.pipeline.enabled_steps)
        head = {"config": inputs.config, "directory": str(directory.path), "steps": steps}
        RecordWriter(session.api, job_id).write(head)
        yield job_id


@contextmanager
def taken_up(
    config: str, job: str, overrides: Sequence[str] = (), extraction: str | None = None
) -> Iterator[tuple[Session, JobRecord, JobInputs]]:
    """Lock an existing job; yield its record and its inputs, with the configuration file as it is now.

    ``extraction`` settles a submission whose answer was lost: the id of the server's job, or ``new`` to submit again.

    Raises:
        JobBusyError: another process runs the job.
        InputError: there is no such job, or ``enabled_steps`` differ from the job's.
    """
    loaded = load(config, overrides)
    with with_prefect(loaded) as session:
        record = session.job(session.find(job))
        known = [one for one in record.parameters.get("overrides") or () if one not in overrides]
        given = {"config": str(loaded.path.absolute()), "overrides": [*known, *overrides]}
        inputs = JobInputs.of(record.parameters | given)
        session.loaded = inputs.load()
        refuse_changed_steps(record, session.loaded.config.pipeline.enabled_steps)
        directory = JobDirectory.of(session.jobs_dir, record.id)
        directory.create()
        with job_lock(directory.path):
            if extraction is not None:
                store = RecordedHandle(RecordWriter(session.api, record.id))
                url = str(session.loaded.config.services.extractor.base_url)
                submission.answer(store, directory.path, url, extraction)
            yield session, session.job(record.id), inputs


def execute(session: Session, job_id: str, *, progress: bool, aside: bool, said: Collection[str] = ()) -> None:
    """Run a job in this process. Print step lines to stdout, or stderr if ``aside``, but no warning in ``said``."""
    from flows.job.ends import stop_recorded
    from flows.pipeline import pipeline
    from flows.prefect import runs

    shown = terminal.Presenter(terminal=True, progress=progress, summary_to_stderr=aside, said=said)
    with terminal.presented_by(shown), shown.beginning(), stop_recorded(session.api, job_id):
        runs.execute(pipeline, job_id)


def outcome(session: Session, job_id: str, *, as_json: bool) -> int:
    """Print how the run of a job ended, and return the exit code."""
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
    print_line(f"{error.render()}\n{continue_hint(record)}", err=True)
    return error.exit_code
