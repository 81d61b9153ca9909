"""Workers for tests that die with everything they started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.prefect.api import PrefectApi
from tests.conftest import Commands, address_of, wait_until
from tests.e2e.test_prefect_yaml import PrefectCommand


def descendants(pid: int) -> list[int]:
    """Return the processes that ``pid`` started, and those that they started; a run has a session of its own."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found[1:]


def freeze(pid: int) -> list[int]:
    """Stop a process and everything it started where they are; the process ids, its own first."""
    frozen: list[int] = []
    while new := [one for one in (pid, *descendants(pid)) if one not in frozen]:
        for one in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGSTOP)
        frozen += new
    return frozen


@dataclass
class WorkerProcess:
    """A worker with the runs it starts: a machine that can die as a whole.

    ``environment`` is what makes a command one of this machine, ``again`` starts another worker like this one.
    """

    process: subprocess.Popen[bytes]
    log: Path
    environment: dict[str, str]
    again: Callable[[str], WorkerProcess] | None = None

    @classmethod
    def start(cls, sluice: Commands, api: str, pool: str, name: str, environment: dict[str, str]) -> WorkerProcess:
        log = sluice.cwd / f"{name}.log"
        often = {"PREFECT_WORKER_QUERY_SECONDS": "1"}
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--name", name],
                cwd=sluice.cwd, env=PrefectCommand(sluice, api).environment | often | environment,
                stdout=file, stderr=file,
            )  # fmt: skip
        return cls(process, log, environment, lambda name: cls.start(sluice, api, pool, name, environment))

    @property
    def alive(self) -> bool:
        """Return whether the worker has not ended."""
        return self.process.poll() is None

    def ready(self) -> None:
        wait_until(lambda: b"started!" in self.log.read_bytes(), 90)

    @property
    def runs(self) -> bool:
        """Return whether the worker has a run now."""
        return bool(descendants(self.process.pid))

    def freeze(self) -> list[int]:
        """Stop the worker and everything it started where they are; the process ids, the worker's first."""
        return freeze(self.process.pid)

    def die(self, *, idle: bool = False) -> None:
        """``kill -9`` for the worker and everything it started, as when the machine loses its power.

        ``idle`` says that it has nothing to do; otherwise it has a run.
        """
        dying = self.freeze()
        assert (len(dying) == 1) is idle, dying
        for pid in dying:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=30)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(timeout=60)


def start_run(prefect: PrefectApi, deployed: str, parameters: dict[str, Any]) -> str:
    """Start a run of a deployment; return the job id."""
    return prefect.created(f"/deployments/{deployed}/create_flow_run", {"parameters": parameters})


def deployment(api: str, pool: str, working_dir: Path) -> str:
    """A pool and a deployment on it, made through the API: ``test_prefect_yaml.py`` does it with Prefect's commands."""

    template = {
        "job_configuration": {
            "command": "{{ command }}", "env": "{{ env }}", "labels": {}, "name": None, "stream_output": True,
            "working_dir": "{{ working_dir }}",
        },
        "variables": {"type": "object", "properties": {"command": {}, "env": {"default": {}}, "working_dir": {}}},
    }  # fmt: skip
    with PrefectApi(address_of(api)) as prefect:
        prefect.request("POST", "/work_pools/", {"name": pool, "type": "process", "base_job_template": template})
        flow = prefect.request("POST", "/flows/", {"name": "pipeline"})
        body = {
            "name": pool, "flow_id": flow["id"], "work_pool_name": pool, "tags": ["sluice"], "pull_steps": [],
            "entrypoint": "flows.pipeline.pipeline", "job_variables": {
                "working_dir": str(working_dir), "env": {"PREFECT_LOGGING_EXTRA_LOGGERS": "sluice"},
            },
        }  # fmt: skip
        return str(prefect.request("POST", "/deployments/", body)["id"])
