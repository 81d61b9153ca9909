"""How fast the validation step is, beside what the machine and the service allow (performance.md).

    python -m tests.bench.bench_validation [--mb 100] [--files 8] [--rounds 5] [--zst]
    python -m tests.bench.bench_validation --slow           only the service that takes 20 ms
    python -m tests.bench.bench_validation --line 400       one Bundle of 400 MB on one line

A service in another process (``echo.py``) answers every request with an OperationOutcome. What the step reaches and
what two threads of ``http.client`` reach that post 80 kB to the same service for it to send back (the limit of
performance.md) are measured in turn, in several rounds (target: a ratio of 0.7). A service that takes 20 ms for each
request, N at once, allows N / 20 ms requests a second (target: 0.95 of that for N = 1, 4, 16); every run there is of
4 seconds, so that starting the step is less than a hundredth of it. The peak memory is this process's (target: 300
MiB).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import zstandard

from config import PipelineConfig
from tasks.shared.fhir.long_line import lines_with_long
from tasks.shared.report import StepReport
from tasks.validation.chunks import pack
from tasks.validation.items import ItemReader
from tasks.validation.validation import Bounds, run
from tests.bench.data import bundles, write_files
from tests.bench.echo import MB, in_turn, limit, ratio, requests_a_second, serve_slowly, serving
from tests.bench.memory import peak as peak_bytes
from tests.peers.job import context

TAKES = 0.02
"""Seconds that the slow service takes for a request."""


def validate(place: str, source: Path, job: Path, requests: int, bounds: Bounds | None = None) -> tuple[float, int]:
    """Seconds, result and number of requests of one run; ``place`` is the port of the service, and a path."""
    config = PipelineConfig.model_validate(
        {"services": {"validation": {"url": f"http://127.0.0.1:{place}", "max_concurrent_requests": requests}}}
    )
    job.mkdir()
    given = context(job, "validation", config, source=source)
    started = time.perf_counter()
    result = run(given, bounds=bounds)
    return time.perf_counter() - started, result, given.meter.requests


def slow(directory: Path, rounds: int) -> None:
    """Print the share of the possible rate that is reached with a service that takes 20 ms."""
    bounds = Bounds(mebibyte=8000)  # chunks of 80 kB, a line each
    with serving(serve_slowly, TAKES) as port:
        for slots in (1, 4, 16):
            data = directory / f"data-{slots}"
            write_files(data, 16 * slots, 4)  # 200 requests for each slot
            used: list[float] = []

            def step(number: int, slots: int = slots, data: Path = data, used: list[float] = used) -> float:
                cpu = time.process_time()
                job = directory / f"slow-{slots}-{number}"
                seconds, _, count = validate(f"{port}/slow{slots}", data, job, slots, bounds)
                used.append(1000 * (time.process_time() - cpu) / count)
                return count / seconds

            def plain(_: int, slots: int = slots) -> float:
                return requests_a_second(port, f"/slow{slots}/validateResource", 200 * slots, slots)

            ours, bare = in_turn(rounds, step, plain)
            possible = slots / TAKES
            print(
                f"20 ms, N = {slots:<2}       {ours.median:6.0f} requests/s of {possible:.0f}: ratio "
                f"{ours.best / possible:.3f} best, {ours.median / possible:.3f} median (target ≥ 0.95); "
                f"{min(used):.2f} ms of CPU for a request"
            )
            print(
                f"    http.client     {bare.median:6.0f} requests/s: {bare.best / possible:.3f} best, "
                f"{bare.median / possible:.3f} median; ours to it {ratio(ours, bare)}",
                flush=True,
            )
    print(f"load of the machine {os.getloadavg()[0]:6.1f} in the last minute, on {os.cpu_count()} cores")


def peak() -> float:
    """Most memory of this process so far, in MiB."""
    return peak_bytes() / 2**20


def one_line(directory: Path, megabytes: int) -> None:
    """Write one Bundle of that size on one line, without holding it."""
    directory.mkdir()
    with (directory / "a.ndjson").open("wb") as file:
        size = file.write(b'{"resourceType":"Bundle","type":"transaction","entry":[')
        first = True
        number = 0
        block = [line[line.index(b"[") + 1 : line.rindex(b"]")] for line in bundles(20)]
        while size < megabytes * MB:
            size += file.write((b"" if first else b",") + block[number % len(block)])
            first = False
            number += 1
        file.write(b"]}\n")


def read(source: Path, size: int) -> float:
    """MB/s at which the input is read, cut and packed, without sending it."""
    started = time.perf_counter()
    for path in source.iterdir():
        reader = ItemReader(path.name)
        groups = reader.groups(lines_with_long(path, limit=10 << 20, spool=source))
        for _ in pack(((group, 0) for group in groups), file=path.name, limit=10 << 20):
            pass
    return size / (time.perf_counter() - started) / MB


def fast(directory: Path, options: argparse.Namespace) -> None:
    """Print the rate and the memory with a service that answers at once."""
    data = directory / "data"
    if options.line:
        one_line(data, options.line)
    else:
        write_files(data, options.mb, options.files)
    size = sum(path.stat().st_size for path in data.iterdir())
    if options.zst:
        for path in list(data.iterdir()):
            with path.open("rb") as plain, path.with_name(f"{path.name}.zst").open("wb") as packed:
                zstandard.ZstdCompressor(3).copy_stream(plain, packed)
            path.unlink()
    base = peak()
    results: list[StepReport] = []
    used: list[float] = []
    allowed: list[float] = []
    sent: list[int] = []
    with serving() as port:

        def step(number: int) -> float:
            cpu = time.process_time()
            seconds, result, count = validate(str(port), data, directory / f"job-{number}", options.requests)
            used.append(size / (time.process_time() - cpu) / MB)
            results.append(result)
            sent.append(count)
            return size / seconds / MB

        def bare_client(_: int) -> float:
            cpu = time.process_time()
            rate = limit(port)
            allowed.append(50 / (time.process_time() - cpu))
            return rate

        ours, bare = in_turn(options.rounds, step, bare_client)
    result, count = results[0], sent[0]
    cpu_ratio = max(used) / max(allowed)
    print(f"input               {size / MB:6.0f} MB, {result.lines_in} lines, {result.resources_in} resources")
    print(f"http.client, 80 kB  {bare.median:6.0f} MB/s, best {bare.best:.0f}")
    print(f"validation          {ours.median:6.0f} MB/s of input, best {ours.best:.0f}; {count} requests", end=" ")
    print(f"of {size / count / 1000:.0f} kB")
    print(f"ratio                 {ratio(ours, bare)} (target ≥ 0.7)")
    print(
        f"by CPU time         {max(used):6.0f} MB per second of this process, limit {max(allowed):.0f}: {cpu_ratio:.2f}"
    )
    print(f"peak memory         {peak():6.0f} MiB, {base:.0f} MiB before (target ≤ 300)")
    print(f"reading and packing {read(data, size):6.0f} MB/s")
    print(f"load of the machine {os.getloadavg()[0]:6.1f} in the last minute, on {os.cpu_count()} cores")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=100, help="size of the data, uncompressed")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--requests", type=int, default=4, help="max_concurrent_requests")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument("--zst", action="store_true", help="compressed input")
    parser.add_argument("--slow", action="store_true", help="only the service that takes 20 ms")
    parser.add_argument("--line", type=int, metavar="MB", help="one Bundle of that size instead")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.slow:
            slow(Path(name), options.rounds)
        else:
            fast(Path(name), options)


if __name__ == "__main__":
    main()
