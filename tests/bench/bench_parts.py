"""The pseudonymizer in four parts on a Dask cluster of four processes, beside one part.

    python -m tests.bench parts [--mb 150] [--kilobytes 20] [--rounds 3]

The service takes 20 ms and bears 16 requests at once. One part has 4 of them under way, four parts have 16 in all. The
cluster runs already, as at a site that has one; what it costs to start processes for a step is printed beside. The
Bundles are small because client and service share this machine: 800 of 80 kB a second would take two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.data import bundles, write_files
from tests.bench.measure import in_turn, serving
from tests.bench.service import KILOBYTES, serve_slowly
from tests.conftest import ROOT
from tests.peers.dask import Cluster

PARTS, WINDOW = 4, 4


class Place:
    """A directory with a job's input, and its commands."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("APP_", "PREFECT_"))}
        self.environment = environment | {"PYTHONPATH": str(ROOT), "PREFECT_HOME": str(directory)}
        (directory / "config.yaml").write_text(
            f"""
pipeline: {{enabled_steps: [local_import, pseudonymizer]}}
jobs_dir: jobs
services:
  local_import: {{dir: data}}
  pseudonymizer: {{url: "http://127.0.0.1:{port}", residual_identifiers: warn}}
report: {{enabled: false}}
"""
        )

    def command(self, *words: str) -> str:
        """Run a command, and return its output."""
        return subprocess.run(
            [sys.executable, "-m", "flows.run", *words], cwd=self.directory, env=self.environment, check=True,
            capture_output=True, text=True,
        ).stdout  # fmt: skip

    def step(self, requests: int, **keys: Any) -> tuple[float, int]:
        """Run a job; return seconds and requests of the pseudonymizer."""
        given = {"services.pseudonymizer.max_concurrent_requests": requests} | keys
        words = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
        self.command("pipeline", "start", "config.yaml", *words)
        report = json.loads(self.command("pipeline", "status", "config.yaml", "latest", "--json"))["steps"][1]
        return report["seconds"], report["requests"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--mb", type=int, default=150, help="size of the data, uncompressed")
    parser.add_argument("--kilobytes", type=int, default=20, help="size of a Bundle")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")


def main(given: argparse.Namespace) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name, serving(serve_slowly, PARTS * WINDOW) as port:
        place, kilobytes = Place(Path(name), port), KILOBYTES * given.kilobytes // 80
        write_files(place.directory / "data", given.mb, 32, list(bundles(min(given.mb, 16.0), kilobytes=kilobytes)))
        cluster = Cluster(place.directory, workers=PARTS, threads=1)
        divided = {"pipeline.parts": PARTS, "pipeline.dask_address": cluster.address}
        try:
            place.step(PARTS * WINDOW, **divided)  # the workers import what they need

            def rate(parts: dict[str, Any], requests: int) -> float:
                seconds, made = place.step(requests, **parts)
                return made / seconds

            one, window, four = in_turn(
                given.rounds, lambda _: rate({}, WINDOW), lambda _: rate({}, PARTS * WINDOW),
                lambda _: rate(divided, PARTS * WINDOW),
            )  # fmt: skip
            local, made = place.step(PARTS * WINDOW, **{"pipeline.parts": PARTS})
        finally:
            cluster.close()
            place.command("server", "stop", "config.yaml", "--yes")
    ratio = statistics.median(mine / other for mine, other in zip(four, one, strict=True))
    print(f"input              {given.mb:6} MB in 32 files, {made} requests")
    print(f"one part, N = 4    {max(one):6.0f} requests/s of 200")
    print(f"one part, N = 16   {max(window):6.0f} requests/s of 800")
    print(f"4 parts, N = 16    {max(four):6.0f} requests/s of 800; ratio {ratio:.2f} to N = 4 (target ≥ {0.8 * PARTS})")
    print(f"without a cluster  {local - made / max(four):6.1f} s more, to start {PARTS} processes")
