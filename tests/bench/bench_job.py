"""A whole job with the release report and without, in turns.

    python -m tests.bench job [--mb 200] [--rounds 3]

``local_import, pseudonymizer, send`` as a command runs it, with services that answer at once and with services that
take 20 ms.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.data import bundles, write_files
from tests.bench.measure import MB, Spent, cpu_spent, in_turn, serving
from tests.bench.service import KILOBYTES, serve, serve_slowly
from tests.conftest import ROOT


def job(place: Path, port: int, *, report: bool) -> Spent:
    """Run one job, from the command to its end."""
    (place / "config.yaml").write_text(
        f"""
pipeline: {{enabled_steps: [local_import, pseudonymizer, send]}}
jobs_dir: jobs
services:
  local_import: {{dir: data}}
  pseudonymizer: {{url: "http://127.0.0.1:{port}", max_concurrent_requests: 4, residual_identifiers: warn}}
  send: {{send_as: direct_resource_load, url: "http://127.0.0.1:{port}"}}
report: {{enabled: {str(report).lower()}, on_stop: tell}}
"""
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("APP_", "PREFECT_"))}
    environment |= {"PYTHONPATH": str(ROOT), "PREFECT_HOME": str(place)}
    before, began = cpu_spent(), time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "flows.run", "pipeline", "start", "config.yaml"], cwd=place, env=environment,
        check=True, capture_output=True,
    )  # fmt: skip
    return Spent(time.monotonic() - began, cpu_spent() - before)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--mb", type=int, default=200, help="size of the data")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")


def main(given: argparse.Namespace) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        size = write_files(place / "data", given.mb, 8, list(bundles(min(given.mb, 16.0), kilobytes=KILOBYTES)))
        print(f"input              {size / MB:6.0f} MB in 8 files")
        for title, target, service in (
            ("services at once", "", (serve,)),
            ("services of 20 ms", " (target ≤ 1.2)", (serve_slowly, 4)),
        ):
            cpu: dict[bool, list[float]] = {False: [], True: []}

            def wall(_: int, *, report: bool, port: int, cpu: dict[bool, list[float]] = cpu) -> float:
                spent = job(place, port, report=report)
                cpu[report].append(spent.cpu)
                return spent.wall

            with serving(*service) as port:
                job(place, port, report=False)  # leaves byte code and a database
                without, with_it = in_turn(
                    given.rounds,
                    lambda number, port=port: wall(number, report=False, port=port),  # type: ignore[misc]
                    lambda number, port=port: wall(number, report=True, port=port),  # type: ignore[misc]
                )
            median = statistics.median(mine / other for mine, other in zip(with_it, without, strict=True))
            print(
                f"{title:18} {min(without):6.1f} s without, {min(with_it):.1f} s with the report: ratio "
                f"{median:.2f}{target}; CPU {min(cpu[False]):.1f} and {min(cpu[True]):.1f} s",
                flush=True,
            )
