"""Cost of the release report in a job (document 5, section 3): the whole job with it and without, in turns.

    python -m tests.bench release_job [--mb 200] [--files 8] [--rounds 3] [--requests 4]

``local_import, pseudonymizer, send`` as a command runs it, with services that answer at once and with services that
take 20 ms: wall seconds, CPU seconds of all processes, and the ratio of the wall seconds beside its limit. A job that
only imports makes no report, which is measured, too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.bench.bench_pseudonymizer import make
from tests.bench.bench_start import ROOT, Spent, cpu_spent
from tests.bench.echo import serve, serve_slowly, serving


class Case(NamedTuple):
    """A job that is measured: what its services do, where they are below their address, its steps, and the limit."""

    name: str
    slow: bool
    steps: str
    limit: float


CASES = (
    Case("services at once", False, "local_import, pseudonymizer, send", 1.25),
    Case("services of 20 ms", True, "local_import, pseudonymizer, send", 1.05),
    Case("import alone", False, "local_import", 1.05),
)


def job(place: Path, url: str, case: Case, requests: int, *, report: bool) -> Spent:
    """Run one job, from the command to its end."""
    config = place / "config.yaml"
    config.write_text(
        f"pipeline: {{enabled_steps: [{case.steps}]}}\njobs_dir: jobs\n"
        f"services:\n  local_import: {{dir: data}}\n"
        f"  pseudonymizer: {{url: '{url}', max_concurrent_requests: {requests}}}\n"
        f"  send: {{send_as: direct_resource_load, url: '{url}'}}\n"
        f"report: {{enabled: {str(report).lower()}, on_stop: tell}}\n"
    )
    left_out = ("APP_", "PREFECT_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
    environment |= {"PYTHONPATH": str(ROOT), "PREFECT_HOME": str(place)}
    before, began = cpu_spent(), time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "flows.run", "pipeline", "start", "config.yaml"], cwd=place, env=environment,
        check=True, capture_output=True,
    )  # fmt: skip
    return Spent(time.monotonic() - began, cpu_spent() - before)


def line(case: Case, without: Sequence[Spent], with_it: Sequence[Spent]) -> str:
    """Return the figures of a case with its limit."""
    walls = [[one.wall for one in spent] for spent in (without, with_it)]
    ratio = statistics.median(mine / other for other, mine in zip(*walls, strict=True))
    cpus = [min(one.cpu for one in spent) for spent in (without, with_it)]
    return (
        f"{case.name:20} {min(walls[0]):6.1f} s without, {min(walls[1]):6.1f} s with the report: "
        f"{min(walls[1]) / min(walls[0]):.2f} best to best, {ratio:.2f} median (limit {case.limit}); "
        f"CPU {cpus[0]:.1f} and {cpus[1]:.1f} s"
    )


def report(place: Path, given: argparse.Namespace) -> Iterator[str]:
    """Make the data, and measure."""
    size = make(place / "data", given.mb, given.files)
    yield f"input                {size / 1e6:6.0f} MB in {given.files} files"
    for case in CASES:
        with serving(serve_slowly if case.slow else serve) as port:
            url = f"http://127.0.0.1:{port}{'/slow4' if case.slow else ''}"
            spent: tuple[list[Spent], list[Spent]] = ([], [])
            job(place, url, case, given.requests, report=False)  # leaves byte code and a database
            for _ in range(given.rounds):
                for kind in (0, 1):
                    spent[kind].append(job(place, url, case, given.requests, report=bool(kind)))
        yield line(case, *spent)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--mb", type=int, default=200, help="size of the data")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--requests", type=int, default=4, help="max_concurrent_requests")


def main(given: argparse.Namespace) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        for text in report(Path(name), given):
            print(text, flush=True)
