"""The pseudonymizer beside the limit of the machine, and beside a service that takes 20 ms.

    python -m tests.bench pseudonymizer [--mb 100] [--rounds 5]

The limit is two threads of ``http.client`` that post 80 kB to the same service.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.bench.data import bundles, write_files
from tests.bench.measure import MB, Run, in_turn, ratio, run_step, serving
from tests.bench.service import KILOBYTES, TAKES, limit, serve, serve_slowly

REQUESTS = 4


def step(port: int, data: Path, job: Path, requests: int) -> Run:
    """Run the step over the data."""
    rules = data.with_suffix(".yaml")
    rules.write_text("fhirPathRules:\n  - {path: Patient.name, method: redact}\n")
    settings = {
        "url": f"http://127.0.0.1:{port}", "max_concurrent_requests": requests, "anonymization_config": str(rules),
    }  # fmt: skip
    return run_step("pseudonymizer", job, data, settings)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--mb", type=int, default=100, help="size of the data, uncompressed")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")


def main(given: argparse.Namespace) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        place, runs = Path(name), list[Run]()
        size = write_files(place / "data", given.mb, 8, list(bundles(min(given.mb, 16.0), kilobytes=KILOBYTES)))

        def rate(number: int) -> float:
            runs.append(step(port, place / "data", place / f"job{number}", REQUESTS))
            return runs[-1].read / runs[-1].seconds / MB

        with serving(serve) as port:
            bare, ours = in_turn(given.rounds, lambda _: limit(port, given.mb), rate)
        cpu = min(run.cpu / run.requests for run in runs) * 1000
        print(f"input              {size / MB:6.0f} MB in 8 files, {runs[0].requests} requests")
        print(f"http.client, 80 kB {max(bare):6.0f} MB/s")
        print(f"step               {max(ours):6.0f} MB/s; ratio {ratio(ours, bare)}")
        print(f"CPU of a request   {cpu:9.2f} ms (target ≤ 1.8)")
        print(f"peak memory        {max(run.peak for run in runs) / MB:6.0f} MB (target ≤ 300)")
        for slots in (1, 4, 16):
            data = place / f"slow{slots}"
            write_files(data, 16 * slots, 4, list(bundles(16.0, kilobytes=KILOBYTES)))  # 200 requests for each slot
            with serving(serve_slowly, slots) as port:
                bare = limit(port, 8 * slots, slots) * MB / 80_000
                one = step(port, data, place / f"job-slow{slots}", slots)
            possible, rate_of = slots / TAKES, one.requests / one.seconds
            print(
                f"20 ms, N = {slots:<2}     {rate_of:6.0f} requests/s of {possible:.0f}: "
                f"{rate_of / possible:.2f} (target ≥ 0.9); http.client {bare / possible:.2f}"
            )
