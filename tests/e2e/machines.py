"""Workers and deployments for tests."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import Commands, ask_prefect, wait_until
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


@dataclass
class WorkerProcess:
    """A worker with the runs it starts."""

    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, sluice: Commands, api: str, pool: str, name: str) -> WorkerProcess:
        log = sluice.cwd / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--name", name],
                cwd=sluice.cwd, env=PrefectCommand(sluice, api).environment, stdout=file, stderr=file,
            )  # fmt: skip
        return cls(process, log)

    def ready(self) -> None:
        wait_until(lambda: b"started!" in self.log.read_bytes(), 150)

    @property
    def runs(self) -> bool:
        """Return whether the worker has a run now."""
        return bool(descendants(self.process.pid))

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(timeout=120)


@contextlib.contextmanager
def working(sluice: Commands, api: str, pool: str, name: str) -> Iterator[WorkerProcess]:
    """Run a worker that polls for runs every second."""
    worker = WorkerProcess.start(sluice, api, pool, name)
    try:
        worker.ready()
        yield worker
    finally:
        worker.stop()


def start_run(api: str, deployed: str, parameters: dict[str, Any]) -> str:
    """Start a run of a deployment; return the job id."""
    run = ask_prefect("POST", f"{api}/deployments/{deployed}/create_flow_run", {"parameters": parameters})
    return str(run["id"])


def deployment(api: str, pool: str, working_dir: Path) -> str:
    """A pool and a deployment on it, made through the API: ``test_prefect_yaml.py`` does it with Prefect's commands."""

    template = {
        "job_configuration": {
            "command": "{{ command }}", "env": "{{ env }}", "labels": {}, "name": None, "stream_output": True,
            "working_dir": "{{ working_dir }}",
        },
        "variables": {"type": "object", "properties": {"command": {}, "env": {"default": {}}, "working_dir": {}}},
    }  # fmt: skip
    ask_prefect("POST", f"{api}/work_pools/", {"name": pool, "type": "process", "base_job_template": template})
    flow = ask_prefect("POST", f"{api}/flows/", {"name": "pipeline"})
    body = {
        "name": pool, "flow_id": flow["id"], "work_pool_name": pool, "tags": ["sluice"], "pull_steps": [],
        "entrypoint": "flows.pipeline.pipeline", "job_variables": {
            "working_dir": str(working_dir), "env": {"PREFECT_LOGGING_EXTRA_LOGGERS": "sluice"},
        },
    }  # fmt: skip
    return str(ask_prefect("POST", f"{api}/deployments/", body)["id"])
