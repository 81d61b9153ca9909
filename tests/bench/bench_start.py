"""Start time of the commands: ``python -m tests.bench start``.

Each command's wall seconds and the CPU seconds of all processes that work for it, its Prefect server among them, beside
the targets of the performance page. The limits are the start of the interpreter and the import of Prefect. The smallest
of ``--runs`` counts: a busy machine only adds, and the first run leaves byte code beside the sources, as an installed
program has it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PR_SET_CHILD_SUBREAPER = 36


class Spent(NamedTuple):
    """Seconds: by the clock, and of CPU in all processes."""

    wall: float
    cpu: float


ANY = Spent(0, 0)
TARGETS = {
    "interpreter start": ANY,
    "import prefect": ANY,
    "--help": Spent(0.4, 0),
    "config check": Spent(0.4, 0),
    "start, first with this Prefect": Spent(12, 0),
    "start, fresh jobs directory": Spent(3.5, 4.6),
    "start, used jobs directory": Spent(3.5, 4.6),
    "job list, no server": Spent(2.6, 0),
    "status, no server": Spent(2.6, 0),
    "start, server runs": Spent(1.7, 1.7),
    "job list, server runs": Spent(0.5, 0),
    "status, server runs": Spent(0.5, 0),
    "status, right after a start": Spent(0.5, 0),
}


def cpu_spent() -> float:
    """CPU seconds of all descendants of this process, those that ended and those that live."""
    with _nothing_left():
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime + sum(_living(os.getpid()))


@contextmanager
def _nothing_left() -> Iterator[None]:
    try:
        yield
    except ChildProcessError:
        return


def _living(parent: int) -> Iterator[float]:
    """CPU seconds of the living descendants, with those that they have waited for."""
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields and int(fields[1]) == parent:
            yield sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            yield from _living(int(entry.name))


class TimedCommands:
    """Commands in a scratch directory of their own, and the smallest figures of each."""

    def __init__(self, scratch: Path) -> None:
        left_out = ("APP_", "PREFECT_", "PYTHONDONTWRITEBYTECODE")
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
        self.environment |= {"PYTHONPATH": str(ROOT), "PREFECT_HOME": str(scratch)}
        self.scratch = scratch
        self.best: dict[str, Spent] = {}
        (scratch / "data").mkdir()
        (scratch / "data" / "a.ndjson").write_text('{"resourceType":"Patient","id":"a"}\n')

    def timed(self, name: str, *command: str, **env: str) -> str:
        """Run a command, record its figures if they are the smallest, and return its output."""
        before, began = cpu_spent(), time.monotonic()
        ran = subprocess.run(
            [sys.executable, *command], cwd=self.scratch, env=self.environment | env, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        wall = time.monotonic() - began
        spent = Spent(wall, cpu_spent() - before)
        self.best[name] = Spent(*map(min, self.best.get(name, spent), spent))
        return ran.stdout

    def measure(self, turn: int) -> None:
        """All figures once, in a jobs directory that nothing has used."""
        sluice = ("-m", "flows.run")
        first, config = f"first{turn}.yaml", f"c{turn}.yaml"
        for name in (first, config):
            (self.scratch / name).write_text(
                "services: {local_import: {dir: data}}\npipeline: {enabled_steps: [local_import, wait]}\n"
                f"jobs_dir: jobs-{name}\n"
            )
        self.environment["XDG_CACHE_HOME"] = str(self.scratch / f"cache{turn}")
        self.timed("interpreter start", "-c", "pass")
        self.timed("import prefect", "-c", "import prefect")
        self.timed("--help", *sluice, "--help")
        self.timed("config check", *sluice, "config", "check", config)
        self.timed("start, first with this Prefect", *sluice, "pipeline", "start", first)
        start = (*sluice, "pipeline", "start", config)
        self.timed("start, fresh jobs directory", *start)
        job = self.timed("start, used jobs directory", *start).split()[1]
        self.timed("job list, no server", *sluice, "job", "list", config)
        self.timed("status, no server", *sluice, "pipeline", "status", config, job)
        self.timed("(server start)", *sluice, "server", "start", config)
        try:
            time.sleep(2)  # what a server does first is no matter of the commands that come later
            self.timed("start, server runs", *start)
            self.timed("job list, server runs", *sluice, "job", "list", config)
            self.timed("status, server runs", *sluice, "pipeline", "status", config, job)
        finally:
            self.timed("(server stop)", *sluice, "server", "stop", config)
        self.timed("(start, the server lingers)", *start, APP_SERVER_LINGER="PT1M")
        try:
            self.timed("status, right after a start", *sluice, "pipeline", "status", config, job)
        finally:
            self.timed("(server stop)", *sluice, "server", "stop", config)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--runs", type=int, default=3, help="how often each is measured [default: 3]")


def main(args: argparse.Namespace) -> None:
    """Print the table."""
    # Servers that outlive their command become children of this process, so that their CPU is known.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with tempfile.TemporaryDirectory() as scratch:
        commands = TimedCommands(Path(scratch))
        for turn in range(args.runs):
            commands.measure(turn)
    print(f"{'':32} wall s  CPU s")
    for name, target in TARGETS.items():
        said = ", ".join(f"{unit} {limit}" for unit, limit in zip(("wall", "CPU"), target, strict=True) if limit)
        found = commands.best[name]
        print(f"{name:32} {found.wall:6.2f} {found.cpu:6.2f}   {'target ' + said if said else 'limit'}")
