"""How long the commands take that do next to nothing: the cost of starting them.

Wall seconds, the smallest of some turns, beside their targets. The local Prefect server is that of a scratch jobs
directory, with a hundred jobs in its record.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flows.prefect.api import PrefectApi
from flows.prefect.server import find
from tests.conftest import ROOT

JOBS = 100

TARGETS = {
    "--help": 0.4,
    "config check": 0.4,
    "start, first": 12.0,
    "start, later": 2.5,
    "status": 0.6,
    f"job list, {JOBS} jobs": 0.6,
}


class TimedCommands:
    """Commands in a scratch directory of their own, and the smallest time of each."""

    def __init__(self, scratch: Path) -> None:
        left_out = ("APP_", "PREFECT_", "PYTHONDONTWRITEBYTECODE")
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
        self.environment |= {"PYTHONPATH": str(ROOT), "HOME": str(scratch)}
        self.scratch = scratch
        self.best: dict[str, float] = {}
        (scratch / "data").mkdir()
        (scratch / "data" / "a.ndjson").write_text('{"resourceType":"Patient","id":"a"}\n')
        (scratch / "c.yaml").write_text(
            "services: {local_import: {dir: data}}\npipeline: {enabled_steps: [local_import, wait]}\n"
        )

    def timed(self, name: str, *words: str) -> str:
        """Run a command, record its time if it is the smallest, and return its output."""
        began = time.monotonic()
        ran = subprocess.run(
            [sys.executable, "-m", "flows.run", *words], cwd=self.scratch, env=self.environment, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        self.best[name] = min(self.best.get(name, 1e9), time.monotonic() - began)
        return ran.stdout

    def measure(self, runs: int) -> None:
        """Measure everything ``runs`` times."""
        job = self.timed("start, first", "pipeline", "start", "c.yaml").split()[1]
        try:
            self._fill(job)
            for _ in range(runs):
                self.timed("--help", "--help")
                self.timed("config check", "config", "check", "c.yaml")
                self.timed("start, later", "pipeline", "start", "c.yaml")
                self.timed("status", "pipeline", "status", "c.yaml", job)
                self.timed(f"job list, {JOBS} jobs", "job", "list", "c.yaml")
        finally:
            self.timed("server stop", "server", "stop", "c.yaml")

    def _fill(self, job: str) -> None:
        """Add jobs like ``job`` to the record."""
        address = find(self.scratch / "jobs" / ".prefect")
        assert address is not None
        with PrefectApi(address) as api:
            run = api.read_run(job) or {}
            for _ in range(JOBS):
                body = {"flow_id": run["flow_id"], "name": run["name"], "parameters": run["parameters"]}
                made = api.created("/flow_runs/", body)
                labels = {key: value for key, value in run["labels"].items() if key.startswith("job.")}
                api.set_labels(made, labels | {"job.directory": str(self.scratch / "jobs" / made)})
                api.set_state(made, "COMPLETED")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--runs", type=int, default=3, help="how often each is measured [default: 3]")


def main(args: argparse.Namespace) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as scratch:
        commands = TimedCommands(Path(scratch))
        commands.measure(args.runs)
    for name, target in TARGETS.items():
        print(f"{name:20} {commands.best[name]:6.2f} s   target {target} s")
