"""A command's view of the jobs of one configuration: the configuration, the Prefect API, the jobs in it.

A job of another jobs directory is refused: its lock lies there, and two processes could run it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config import LoadedConfig
from flows.engine.api import PrefectApi
from flows.engine.api_address import ApiAddress, configured_api
from flows.engine.reached import chosen_api
from flows.engine.server import EmbeddedServer
from flows.engine.server_database import diagnosed
from flows.job.directory import JobDirectory
from flows.job.record import JobRecord
from tasks.shared.errors import InputError


@dataclass
class Session:
    """An open Prefect API and the configuration whose jobs are meant."""

    loaded: LoadedConfig
    address: ApiAddress
    api: PrefectApi

    @property
    def jobs_dir(self) -> Path:
        """The jobs directory, absolute."""
        return self.loaded.config.jobs_dir.absolute()

    def job(self, job_id: str) -> JobRecord:
        """The record of one job of this jobs directory.

        Raises:
            InputError: there is none.
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
                hint=f"see: job list CONFIG; the jobs of this configuration are in {self.jobs_dir}",
            )  # fmt: skip
        return JobRecord.of(run)

    def state_type(self, job_id: str) -> str:
        """Prefect's own state type of the run."""
        return str((self.api.read_run(job_id) or {}).get("state_type"))

    def jobs(self) -> list[JobRecord]:
        """The jobs of this jobs directory, newest first."""
        return [
            JobRecord.of(run)
            for run in sorted(self.api.runs(), key=lambda run: str(run.get("created") or ""), reverse=True)
            if self._ours(run)
        ]

    def _ours(self, run: dict[str, Any]) -> bool:
        directory = (run.get("labels") or {}).get("job.directory")
        if directory:
            return Path(str(directory)).parent == self.jobs_dir
        config = (run.get("parameters") or {}).get("config")
        return bool(config) and Path(str(config)).absolute() == self.loaded.path.absolute()


@contextmanager
def opened(loaded: LoadedConfig) -> Iterator[Session]:
    """Open the user's Prefect API, or the embedded one of the configuration's jobs directory."""
    chosen = chosen_api(loaded.config.jobs_dir)
    if chosen is not None:
        with diagnosed(chosen.home), PrefectApi(chosen, told=True) as api:
            yield Session(loaded, chosen, api)
        return
    with EmbeddedServer(loaded.config.jobs_dir) as server:
        address = server.address()
        with diagnosed(address.home), PrefectApi(address, told=True) as api:
            yield Session(loaded, address, api)


def has_any_job(loaded: LoadedConfig) -> bool:
    """Whether a look at the record can find anything; spares starting a server over an empty directory."""
    return configured_api() is not None or (loaded.config.jobs_dir / ".prefect" / "prefect.db").exists()
