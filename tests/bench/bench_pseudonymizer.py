"""How fast the pseudonymizer step is, beside what the service and the machine allow (performance.md).

    python -m tests.bench.bench_pseudonymizer [--mb 100] [--files 8] [--requests 4] [--rounds 5] [--zst] [--large 400]
    python -m tests.bench.bench_pseudonymizer --slow           only the service that takes 20 ms

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
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from config import PipelineConfig
from tasks.pseudonymizer.client import Deidentify
from tasks.pseudonymizer.pseudonymization import run
from tasks.shared.http.client import ServiceClient
from tests.bench.data import bundles
from tests.bench.echo import KILOBYTES, MB, in_threads, in_turn, limit, ratio, requests_a_second, serve_slowly, serving
from tests.bench.memory import peak as peak_bytes
from tests.peers.job import context

RULES = "fhirPathRules:\n  - {path: Patient.name, method: redact}\n"

TAKES = 0.02
"""Seconds that the slow service takes for a request."""


class Figures(NamedTuple):
    """One run of the step: ``seconds`` by the clock and of CPU time, bytes read, requests, peak memory in MiB.

    ``cpu`` is that of the run's own process.
    """

    seconds: float
    cpu: float
    read: int
    requests: int
    before: float
    peak: float


def make(directory: Path, megabytes: float, files: int, *, compressed: bool) -> int:
    """Write Bundles of 80 kB on average into ``files`` files; the bytes written, uncompressed."""
    directory.mkdir(parents=True)
    lines = list(bundles(min(megabytes, 16.0), kilobytes=KILOBYTES))
    total = number = 0
    for index in range(files):
        with (directory / f"batch-{index}.ndjson{'.zst' if compressed else ''}").open("wb") as raw:
            file = zstandard.ZstdCompressor(3).stream_writer(raw, closefd=False) if compressed else raw
            while total < megabytes * MB * (index + 1) / files:
                line = lines[number % len(lines)] + b"\n"
                file.write(line)
                total += len(line)
                number += 1
            if compressed:
                file.close()
    return total


def make_large(directory: Path, megabytes: int) -> int:
    """Write one Bundle of that size on one line; its bytes."""
    directory.mkdir(parents=True)
    entry = json.dumps(json.loads(next(bundles(0.1)))["entry"][1], ensure_ascii=False, separators=(",", ":")).encode()
    with (directory / "large.ndjson").open("wb") as file:
        size = file.write(b'{"resourceType":"Bundle","id":"large","type":"transaction","entry":[' + entry)
        while size < megabytes * MB:
            size += file.write(b"," + entry)
        return size + file.write(b"]}\n")


def client(port: int, size: int, threads: int) -> tuple[float, float]:
    """MB/s of lines that ``ServiceClient`` posts and gets back, and ms of CPU time for each: no step that uses it can
    be faster.
    """
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
    """One run of the step; sends its ``Figures``."""
    rules = job.with_suffix(".yaml")
    rules.write_text(RULES)
    settings = {
        "url": url,
        "max_concurrent_requests": requests,
        "anonymization_config": str(rules),
    }
    config = PipelineConfig.model_validate(
        {"services": {"pseudonymizer": settings}, "compression": {"enabled": compressed}}
    )
    given = context(job, "p", config, source=directory)
    before = peak_bytes() / 2**20
    started, cpu = time.perf_counter(), time.process_time()
    result = run(given)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    after = peak_bytes() / 2**20
    answer.send(Figures(seconds, cpu, result.bytes_in or 0, given.meter.requests, before, after))


def measured(*arguments: Any) -> Figures:
    """``load`` in a process of its own."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=load, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        figures: Figures = mine.recv()
        return figures
    finally:
        process.join()
        mine.close()


def slow(place: Path, rounds: int) -> Iterator[str]:
    """With the service that takes its time."""
    with serving(serve_slowly, TAKES) as port:
        for slots in (1, 4, 16):
            data = place / f"slow{slots}"
            make(data, 16.0 * slots, 4, compressed=False)  # 200 requests for each slot

            def step(number: int, slots: int = slots, data: Path = data) -> float:
                url = f"http://127.0.0.1:{port}/slow{slots}"
                one = measured(url, data, place / f"job{slots}-{number}", slots, True)
                return one.requests / one.seconds

            def plain(_: int, slots: int = slots) -> float:
                return requests_a_second(port, f"/slow{slots}/", 200 * slots, slots)

            ours, bare = in_turn(rounds, step, plain)
            possible = slots / TAKES
            yield (
                f"20 ms, N = {slots:<2}         {ours.median:6.0f} requests/s of {possible:.0f}: ratio "
                f"{ours.best / possible:.3f} best, {ours.median / possible:.3f} median (target ≥ 0.95)"
            )
            yield (
                f"    http.client       {bare.median:6.0f} requests/s: {bare.best / possible:.3f} best, "
                f"{bare.median / possible:.3f} median; ours to it {ratio(ours, bare)}"
            )
    yield load_line()


def fast(place: Path, options: argparse.Namespace) -> Iterator[str]:
    """With the service that answers at once."""
    size = make(place / "data", options.mb, options.files, compressed=options.zst)
    runs: list[Figures] = []
    plain_cpu: list[float] = []
    alone_cpu: list[float] = []
    with serving() as port:

        def plain(_: int) -> float:
            cpu = time.process_time()
            rate = limit(port, size=options.mb * MB)
            plain_cpu.append((time.process_time() - cpu) * 1000 * 80_000 / (options.mb * MB))
            return rate

        def step(number: int) -> float:
            job = place / f"job{number}"
            url = f"http://127.0.0.1:{port}"
            runs.append(measured(url, place / "data", job, options.requests, True))
            return runs[-1].read / runs[-1].seconds / MB

        def ours_alone(_: int) -> float:
            rate, cpu = client(port, options.mb * MB, options.requests)
            alone_cpu.append(cpu)
            return rate

        bare, ours, alone = in_turn(options.rounds, plain, step, ours_alone)
        cpu = min(run.cpu / run.requests for run in runs) * 1000
        read, requests = runs[0].read, runs[0].requests
        yield f"input                {size / MB:6.0f} MB in {options.files} files, {'zst' if options.zst else 'plain'}"
        yield f"http.client, 80 kB   {bare.median:6.0f} MB/s, best {bare.best:.0f}; {min(plain_cpu):.2f} ms of CPU each"
        yield (
            f"ServiceClient        {alone.median:6.0f} MB/s, best {alone.best:.0f}; "
            f"{min(alone_cpu):.2f} ms of CPU each; ratio {ratio(alone, bare)}"
        )
        yield (
            f"step, N = {options.requests:<10} {ours.median:6.0f} MB/s, best {ours.best:.0f}; {cpu:.2f} ms of CPU for "
            f"each of {requests} requests of {read / requests / 1000:.0f} kB"
        )
        yield f"ratio                  {ratio(ours, bare)} (target ≥ 0.7)"
        peak = max(run.peak for run in runs)
        yield f"peak memory          {peak:6.0f} MiB, {runs[0].before:.0f} MiB before (target ≤ 300)"
        yield load_line()
        if options.large:
            size = make_large(place / "large", options.large)
            url = f"http://127.0.0.1:{port}"
            one = measured(url, place / "large", place / "job-l", options.requests, True)
            rate = size / one.seconds / MB
            yield f"one Bundle           {size / MB:6.0f} MB in {one.requests} requests, {rate:.0f} MB/s"
            yield f"peak memory          {one.peak:6.0f} MiB, {one.before:.0f} MiB before (target ≤ 300)"


def load_line() -> str:
    """How busy the machine is."""
    return f"load of the machine  {os.getloadavg()[0]:6.1f} in the last minute, on {os.cpu_count()} cores"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=100, help="size of the data, uncompressed")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--requests", type=int, default=4, help="max_concurrent_requests when it answers at once")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument("--zst", action="store_true", help="compressed input")
    parser.add_argument("--large", type=int, default=400, help="MB of the one large Bundle; 0 leaves it out")
    parser.add_argument("--slow", action="store_true", help="only the service that takes 20 ms")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for line in slow(Path(name), options.rounds) if options.slow else fast(Path(name), options):
            print(line, flush=True)


if __name__ == "__main__":
    main()
