"""A command's view of the jobs of one configuration: the configuration, the Prefect API, and its jobs.

A job of another jobs directory is refused: its lock is there, and two processes could run it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from config import LoadedConfig
from flows.job import which
from flows.job.directory import JobDirectory
from flows.job.record import JobRecord, asked_for
from flows.prefect.address import ApiAddress, configured_api
from flows.prefect.api import Json, PrefectApi
from flows.prefect.server import chosen_api
from flows.shell import about
from tasks.shared.errors import InputError

CLOCKS = timedelta(minutes=1)
"""By how much the clock of a Prefect server may be ahead of this machine's."""


@dataclass
class Session:
    """An open Prefect API and the configuration that selects the jobs."""

    loaded: LoadedConfig
    address: ApiAddress
    api: PrefectApi

    @property
    def jobs_dir(self) -> Path:
        """The absolute path of the jobs directory."""
        return self.loaded.config.jobs_dir.absolute()

    def find(self, text: str) -> str:
        """Return the id of the job given by an id, the beginning of one, or ``latest``.

        Raises:
            InputError: no job, or more than one.
            StorageError: the jobs directory cannot be read.
        """
        return which.in_record(
            self.jobs_dir, text,
            ids=lambda: self._ids(self.api.runs()),
            to_begin=lambda: self._ids(self.api.runs(states=("SCHEDULED", "PENDING"))),
            latest=self._latest,
        )  # fmt: skip

    def _ids(self, runs: Iterable[Json]) -> list[str]:
        return [str(run["id"]) for run in runs if self._ours(run)]

    def _latest(self) -> str | None:
        """Return the newest job that is due by now: a scheduler creates runs days earlier."""
        now = datetime.now(UTC)
        for days in (2, 60, None):  # all jobs of years are many
            since = now - timedelta(days=days) if days is not None else None
            asked = [
                (moment, str(run["id"]))
                for run in self.api.runs(after=since)
                if self._ours(run) and (moment := datetime.fromisoformat(str(asked_for(run)))) <= now + CLOCKS
            ]
            if asked and (since is None or max(asked)[0] >= since):
                return max(asked)[1]
        return None

    def job(self, job_id: str) -> JobRecord:
        """Return the record of one job of this jobs directory.

        Raises:
            InputError: it does not exist.
        """
        directory = JobDirectory.of(self.jobs_dir, job_id)
        run = self.api.read_run(directory.path.name)
        elsewhere = ((run or {}).get("labels") or {}).get("job.directory")
        if elsewhere and Path(str(elsewhere)) != directory.path:
            raise InputError(
                "job-elsewhere", "the job belongs to another jobs directory", context=str(elsewhere),
                hint=f"this configuration's is {self.jobs_dir}: use the job's configuration, or set jobs_dir",
            )  # fmt: skip
        if run is None or not self._ours(run):
            raise InputError(
                "job-unknown", "there is no such job", context=job_id,
                hint=f"see: {about('job list')}; the jobs of this configuration are in {self.jobs_dir}",
            )  # fmt: skip
        return JobRecord.of(run)

    def state_type(self, job_id: str) -> str:
        """Return Prefect's own state type of the run."""
        return str((self.api.read_run(job_id) or {}).get("state_type"))

    def runs(self, **which: Any) -> list[Json]:
        """Return the flow runs of this jobs directory; ``which`` goes to ``PrefectApi.runs``."""
        return [run for run in self.api.runs(**which) if self._ours(run)]

    def jobs(self, since: datetime | None = None) -> list[JobRecord]:
        """Return the jobs of this jobs directory requested ``since`` then (default: all), newest first."""
        # Prefect's time of a continued job is later than its request, so filter again.
        found = self.runs(after=since)
        ours = [run for run in found if since is None or datetime.fromisoformat(str(asked_for(run))) >= since]
        return [JobRecord.of(run) for run in sorted(ours, key=lambda run: asked_for(run) or "", reverse=True)]

    def _ours(self, run: dict[str, Any]) -> bool:
        """Return whether a run is a job of this jobs directory; True as well if its configuration is gone."""
        directory = (run.get("labels") or {}).get("job.directory")
        if directory:
            return Path(str(directory)).parent == self.jobs_dir
        config = (run.get("parameters") or {}).get("config")
        if config and Path(str(config)).absolute() == self.loaded.path.absolute():
            return True
        # os.path, not Path: a directory above that may not be entered is an answer here, no exception.
        nowhere = config and not os.path.exists(str(config))  # noqa: PTH110
        return bool(nowhere) and run.get("state_type") == "FAILED" and bool((run.get("labels") or {}).get("job.error"))


def meant(loaded: LoadedConfig, text: str) -> str | None:
    """Return the id that ``text`` selects as far as the disk shows, before a server is started for it.

    Raises as ``Session.find``.
    """
    jobs_dir = loaded.config.jobs_dir.absolute()
    if not has_any_job(loaded):
        return which.in_record(jobs_dir, text, ids=tuple, to_begin=tuple, latest=lambda: None)
    return which.by_directory(jobs_dir, text)


@contextmanager
def opened(loaded: LoadedConfig, job: str | None = None) -> Iterator[Session]:
    """Open the user's Prefect API, or the local one of the configuration's jobs directory, to find ``job``."""
    if job is not None:
        meant(loaded, job)
    address = chosen_api(loaded.config.jobs_dir)
    with PrefectApi(address) as api:
        yield Session(loaded, address, api)


def has_any_job(loaded: LoadedConfig) -> bool:
    """Return whether the record can hold any job; saves starting a server for an empty directory."""
    return configured_api() is not None or (loaded.config.jobs_dir / ".prefect" / "prefect.db").exists()
