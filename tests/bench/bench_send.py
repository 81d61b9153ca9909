"""A direct load beside the limit of the machine.

    python -m tests.bench send [--mb 100] [--rounds 5]

The limit is two threads of ``http.client`` that post 80 kB to the same service.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.bench.data import as_input, bundles, write_files
from tests.bench.measure import MB, Run, in_turn, ratio, run_step, serving
from tests.bench.service import KILOBYTES, limit, serve


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--mb", type=int, default=100, help="size of the data, uncompressed")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")


def main(given: argparse.Namespace) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name, serving(serve) as port:
        place, runs = Path(name), list[Run]()
        size = write_files(place / "data", given.mb, 8, list(bundles(min(given.mb, 16.0), kilobytes=KILOBYTES)))

        def rate(number: int) -> float:
            job = place / f"job{number}"
            settings = {"send_as": "direct_resource_load", "url": f"http://127.0.0.1:{port}"}
            runs.append(run_step("send", job, as_input(place / "data", job), settings))
            return runs[-1].read / runs[-1].seconds / MB

        bare, ours = in_turn(given.rounds, lambda _: limit(port, given.mb), rate)
    cpu = min(run.cpu / run.requests for run in runs) * 1000
    print(f"input              {size / MB:6.0f} MB in 8 files, {runs[0].requests} requests")
    print(f"http.client, 80 kB {max(bare):6.0f} MB/s")
    print(f"direct load        {max(ours):6.0f} MB/s; ratio {ratio(ours, bare)}")
    print(f"CPU of a request   {cpu:9.2f} ms (target ≤ 0.8)")
    print(f"peak memory        {max(run.peak for run in runs) / MB:6.0f} MB (target ≤ 300)")
