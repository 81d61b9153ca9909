"""Find jobs of a configuration by id, by the unique beginning of an id, or by ``latest`` (docs/commands.md).

A job of another jobs directory is refused: its lock is in that directory, so two processes could run the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID

from config import LoadedConfig
from flows.job.directory import JobDirectory
from flows.job.record import JobRecord
from flows.job.state import JobState
from flows.prefect.address import configured_api
from flows.prefect.api import Json, PrefectApi
from flows.prefect.server import chosen_api
from flows.shell import about
from tasks.shared.errors import InputError, shown

SHORTEST: Final = 4
"""Fewest characters of an id that can name a job."""


@dataclass
class Session:
    """An open Prefect API and the configuration that selects the jobs."""

    loaded: LoadedConfig
    api: PrefectApi

    @property
    def jobs_dir(self) -> Path:
        """The absolute path of the jobs directory."""
        return self.loaded.config.jobs_dir.absolute()

    def find(self, text: str) -> str:
        """Return the id of the job given by an id, the beginning of one, or ``latest``. Raises ``InputError``."""
        with suppress(ValueError):
            return str(UUID(text))
        if text == "latest":
            found = [one.id for one in self.jobs() if not _is_planned(one)][:1]
        elif len(text) < SHORTEST or set(text.lower()) - set("0123456789abcdef-"):
            raise InputError(
                "job-id", f"not an id: give the id, or at least its first {SHORTEST} characters", context=shown(text),
                hint=f"see: {about('job list')}; latest is the newest one",
            )  # fmt: skip
        else:
            found = sorted(str(run["id"]) for run in self.runs() if str(run["id"]).startswith(text.lower()))
        if len(found) > 1:
            raise InputError(
                "id-ambiguous", f"{len(found)} ids begin with {text}", context=", ".join(found[:5]),
                hint="give more characters",
            )  # fmt: skip
        if not found:
            raise self._unknown(text)
        return found[0]

    def job(self, job_id: str) -> JobRecord:
        """Return the record of one job of this jobs directory. Raises ``InputError`` if it does not exist."""
        directory = JobDirectory.of(self.jobs_dir, job_id)
        run = self.api.read_run(directory.path.name)
        elsewhere = ((run or {}).get("labels") or {}).get("job.directory")
        if elsewhere and Path(str(elsewhere)) != directory.path:
            raise InputError(
                "job-elsewhere", "the job belongs to another jobs directory", context=str(elsewhere),
                hint=f"this configuration's is {self.jobs_dir}: use the job's configuration, or set jobs_dir",
            )  # fmt: skip
        if run is None or not self._has(run):
            raise self._unknown(job_id)
        return JobRecord.of(run)

    def runs(self, states: Sequence[str] = ()) -> list[Json]:
        """Return the flow runs of this jobs directory. ``states`` are Prefect's state types; without any, all runs."""
        return [run for run in self.api.runs(states) if self._has(run)]

    def jobs(self) -> list[JobRecord]:
        """Return the jobs of this jobs directory, newest first."""
        return sorted(map(JobRecord.of, self.runs()), key=lambda one: one.created or "", reverse=True)

    def _has(self, run: Json) -> bool:
        """Return whether a run is of this jobs directory; if it has none yet, whether it is of this configuration."""
        directory = (run.get("labels") or {}).get("job.directory")
        config = (run.get("parameters") or {}).get("config")
        if directory:
            return Path(str(directory)).parent == self.jobs_dir
        return bool(config) and Path(str(config)).absolute() == self.loaded.path.absolute()

    def _unknown(self, text: str) -> InputError:
        return InputError(
            "job-unknown", "there is no such job", context=shown(text),
            hint=f"see: {about('job list')}; the jobs of this configuration are in {self.jobs_dir}",
        )  # fmt: skip


@contextmanager
def opened(loaded: LoadedConfig) -> Iterator[Session]:
    """Open the user's Prefect API, or the local one of the configuration's jobs directory."""
    with PrefectApi(chosen_api(loaded.config.jobs_dir)) as api:
        yield Session(loaded, api)


def _is_planned(job: JobRecord) -> bool:
    """Return whether a job is scheduled for later. A started job is not, even if the server's clock is ahead."""
    when = datetime.fromisoformat(job.created) if job.created else None
    return job.state is JobState.PENDING and (when is None or when > datetime.now(UTC))


def has_any_job(loaded: LoadedConfig) -> bool:
    """Return whether there can be any job. If not, a command need not start the local server."""
    return configured_api() is not None or (loaded.config.jobs_dir / ".prefect" / "prefect.db").exists()


def step_to_repeat(record: JobRecord, step: str) -> int:
    """Return the position of a step that is given by name or position, and from which a job can run again.

    Raises ``InputError`` if the job has no such step or two of the name, or an earlier step is not complete.
    """
    known = ", ".join(f"{one.position} {one.name}" for one in record.steps)
    found = [one.position for one in record.steps if step in {one.name, str(one.position)}]
    if len(found) != 1:
        what = "has no step" if not found else "has more than one step"
        raise InputError(
            "step-unknown" if not found else "step-ambiguous", f"the job {what} {shown(step)}", context=known,
            hint="give its position",
        )  # fmt: skip
    before = [earlier.name for earlier in record.steps[: found[0] - 1] if earlier.state != "completed"]
    if before:
        raise InputError(
            "step-order", f"steps before {step} are not complete: {', '.join(before)}", context=record.id,
            hint=f"this runs them in order: {about('pipeline continue', record.id)}",
        )  # fmt: skip
    return found[0]
