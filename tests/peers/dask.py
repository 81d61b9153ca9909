"""A Dask cluster on this machine: a scheduler and workers, each a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT, free_ports, wait_until

PROFILER = "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED"


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Cluster:
    """A scheduler and so many workers, with so many threads each."""

    def __init__(self, directory: Path, *, workers: int, threads: int) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        port = str(free_ports())
        self.address = f"tcp://127.0.0.1:{port}"
        self._start("scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard")
        wait_until(lambda: listens(int(port)), 120)  # it loads for some seconds
        for _ in range(workers):
            self._start("worker", self.address, "--nthreads", str(threads), "--no-nanny", "--no-dashboard")

    def _start(self, what: str, *words: str) -> None:
        with (self._directory / f"dask-{len(self._processes)}.log").open("wb") as log:
            command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *words]
            environment = {PROFILER: "false"} | os.environ | {"PYTHONPATH": str(ROOT)}
            process = subprocess.Popen(command, cwd=self._directory, env=environment, stdout=log, stderr=log)
        self._processes.append(process)

    @property
    def scheduler(self) -> int:
        """The process id of the scheduler."""
        return self._processes[0].pid

    @property
    def workers(self) -> list[int]:
        """The process ids of the workers."""
        return [process.pid for process in self._processes[1:]]

    def close(self) -> None:
        """End what still runs."""
        for process in self._processes:
            process.kill()
            process.wait()
