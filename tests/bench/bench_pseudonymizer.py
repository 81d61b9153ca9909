"""Speed of the pseudonymizer step against the limits of service and machine (performance.md).

    python -m tests.bench pseudonymizer [--mb 100] [--files 8] [--requests 4] [--rounds 5] [--zst] [--large 400]
    python -m tests.bench pseudonymizer --slow           only the service that takes 20 ms

A service in another process (``echo.py``) gives every resource back. What the step reaches and what ``http.client``
reaches with the same service are measured in turn, in several rounds.

* It takes 20 ms for each request and lets N be under way at once, N = 1, 4, 16: the ratio to N / 20 ms (target 0.95),
  and to what N threads of ``http.client`` reach, which is what the machine makes of ``sleep(0.02)`` and loopback. Every
  run is of 4 seconds, so that starting the step (one probe, the first connections) is less than a hundredth of it.
* It answers at once: the ratio to two threads of ``http.client`` that post 80 kB (target 0.7). For comparison:
  ``ServiceClient`` alone with the same lines, and the CPU time of each. Of that nearly all is under the one lock of
  Python, so it is what one process can do at most, on any number of cores.
* ``--large`` MB in one Bundle on one line, which is split: peak memory (target ≤ 300 MiB, as for ``--mb`` of lines).

Every load runs in a process of its own, whose peak memory is its own too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from config import PipelineConfig
from tasks.pseudonymizer.client import Deidentify
from tasks.pseudonymizer.pseudonymization import run
from tasks.shared.http.client import ServiceClient
from tests.bench.data import bundles, compress, one_line, write_files
from tests.bench.echo import (
    KILOBYTES,
    MB,
    against_slow,
    in_threads,
    in_turn,
    limit,
    ratio,
    serving,
    step_options,
)
from tests.bench.memory import MIB, in_own_process
from tests.bench.memory import peak as peak_bytes
from tests.peers.job import context

RULES = "fhirPathRules:\n  - {path: Patient.name, method: redact}\n"


class PseudonymizerFigures(NamedTuple):
    """One run of the step: ``seconds`` by the clock and of CPU time, bytes read, requests, peak memory in MiB.

    ``cpu`` is that of the run's own process.
    """

    seconds: float
    cpu: float
    read: int
    requests: int
    before: float
    peak: float


def make(directory: Path, megabytes: float, files: int = 4) -> int:
    """Write Bundles of 80 kB on average into ``files`` files; return their bytes."""
    return write_files(directory, megabytes, files, list(bundles(min(megabytes, 16.0), kilobytes=KILOBYTES)))


def client(port: int, size: int, threads: int) -> tuple[float, float]:
    """Return MB/s of lines through ``ServiceClient``, and ms of CPU for each: the limit of every step that uses it."""
    config = PipelineConfig.model_validate({})
    lines = list(bundles(8.0, kilobytes=KILOBYTES))
    rounds = max(1, int(size / 8e6 / threads))
    with ServiceClient("pseudonymizer", tls=config.tls, retry=config.retry) as service:
        call = Deidentify(service, f"http://127.0.0.1:{port}", None, slots=threads)

        def work() -> None:
            for _ in range(rounds):
                for line in lines:
                    call(line)

        cpu = time.process_time()
        seconds = in_threads(threads, work)
        cpu = time.process_time() - cpu
    return sum(map(len, lines)) * rounds * threads / seconds / MB, 1000 * cpu / (len(lines) * rounds * threads)


def load(answer: Connection, url: str, directory: Path, job: Path, requests: int, compressed: bool) -> None:
    """One run of the step; sends its ``PseudonymizerFigures``."""
    rules = job.with_suffix(".yaml")
    rules.write_text(RULES)
    settings = {"url": url, "max_concurrent_requests": requests, "anonymization_config": str(rules)}
    config = PipelineConfig.model_validate(
        {"services": {"pseudonymizer": settings}, "compression": {"enabled": compressed}}
    )
    given = context(job, "p", config, source=directory)
    before = peak_bytes() / MIB
    started, cpu = time.perf_counter(), time.process_time()
    result = run(given)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    after = peak_bytes() / MIB
    answer.send(PseudonymizerFigures(seconds, cpu, result.bytes_in or 0, given.meter.requests, before, after))


def measured(*arguments: Any) -> PseudonymizerFigures:
    """``load`` in a process of its own."""
    figures: PseudonymizerFigures = in_own_process(load, *arguments)
    return figures


def slow(place: Path, rounds: int) -> Iterator[str]:
    """Measure the step with the slow service."""

    def step(url: str, slots: int, number: int) -> float:
        data = place / f"slow{slots}"
        if not data.exists():
            make(data, 16.0 * slots)  # 200 requests for each slot
        one = measured(url, data, place / f"job{slots}-{number}", slots, True)
        return one.requests / one.seconds

    yield from against_slow(rounds, "/", step)


def fast(place: Path, given: argparse.Namespace) -> Iterator[str]:
    """With the service that answers at once."""
    size = make(place / "data", given.mb, given.files)
    if given.zst:
        compress(place / "data")
    runs: list[PseudonymizerFigures] = []
    plain_cpu: list[float] = []
    alone_cpu: list[float] = []
    with serving() as port:

        def plain(_: int) -> float:
            cpu = time.process_time()
            rate = limit(port, size=given.mb * MB)
            plain_cpu.append((time.process_time() - cpu) * 1000 * 80_000 / (given.mb * MB))
            return rate

        def step(number: int) -> float:
            job = place / f"job{number}"
            url = f"http://127.0.0.1:{port}"
            runs.append(measured(url, place / "data", job, given.requests, True))
            return runs[-1].read / runs[-1].seconds / MB

        def ours_alone(_: int) -> float:
            rate, cpu = client(port, given.mb * MB, given.requests)
            alone_cpu.append(cpu)
            return rate

        bare, ours, alone = in_turn(given.rounds, plain, step, ours_alone)
        cpu = min(run.cpu / run.requests for run in runs) * 1000
        read, requests = runs[0].read, runs[0].requests
        yield f"input                {size / MB:6.0f} MB in {given.files} files, {'zst' if given.zst else 'plain'}"
        yield f"http.client, 80 kB   {bare.median:6.0f} MB/s, best {bare.best:.0f}; {min(plain_cpu):.2f} ms of CPU each"
        yield (
            f"ServiceClient        {alone.median:6.0f} MB/s, best {alone.best:.0f}; "
            f"{min(alone_cpu):.2f} ms of CPU each; ratio {ratio(alone, bare)}"
        )
        yield (
            f"step, N = {given.requests:<10} {ours.median:6.0f} MB/s, best {ours.best:.0f}; "
            f"{requests} requests of {read / requests / 1000:.0f} kB"
        )
        yield f"CPU of a request     {cpu:9.2f} ms, its answer checked (target ≤ 1.5)"
        yield f"ratio                  {ratio(ours, bare)} (target ≥ 0.7)"
        peak = max(run.peak for run in runs)
        yield f"peak memory          {peak:6.0f} MiB, {runs[0].before:.0f} MiB before (target ≤ 300)"
        if given.large:
            size = one_line(place / "large", given.large)
            url = f"http://127.0.0.1:{port}"
            one = measured(url, place / "large", place / "job-l", given.requests, True)
            rate = size / one.seconds / MB
            yield f"one Bundle           {size / MB:6.0f} MB in {one.requests} requests, {rate:.0f} MB/s"
            yield f"peak memory          {one.peak:6.0f} MiB, {one.before:.0f} MiB before (target ≤ 300)"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    step_options(parser, requests=4)
    parser.add_argument("--large", type=int, default=400, help="MB of the one large Bundle; 0 leaves it out")
    parser.add_argument("--slow", action="store_true", help="only the service that takes 20 ms")


def main(given: argparse.Namespace) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        for line in slow(Path(name), given.rounds) if given.slow else fast(Path(name), given):
            print(line, flush=True)
