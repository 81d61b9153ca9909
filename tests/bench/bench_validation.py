"""Speed of the validation step against the limits of machine and service (performance.md).

    python -m tests.bench validation [--mb 100] [--files 8] [--rounds 5] [--zst]
    python -m tests.bench validation --slow           only the service that takes 20 ms
    python -m tests.bench validation --line 400       one Bundle of 400 MB on one line

A service in another process (``echo.py``) answers every request with an OperationOutcome. What the step reaches and
what two threads of ``http.client`` reach that post 80 kB to the same service for it to send back (the limit of
performance.md) are measured in turn, in several rounds (target: a ratio of 0.7). A service that takes 20 ms for each
request, N at once, allows N / 20 ms requests a second (target: 0.95 of that for N = 1, 4, 16); every run there is of
4 seconds, so that starting the step is less than a hundredth of it. The peak memory is this process's (target: 300
MiB).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from config import PipelineConfig
from tasks.shared.fhir.long_line import lines_with_long
from tasks.shared.report import StepReport
from tasks.validation.chunks import ItemReader, pack
from tasks.validation.validation import ValidationBounds, run
from tests.bench.data import compress, one_line, write_files
from tests.bench.echo import MB, against_slow, in_turn, limit, ratio, serving, step_options
from tests.bench.memory import MIB
from tests.bench.memory import peak as peak_bytes
from tests.peers.job import context


def validate(
    url: str, source: Path, job: Path, requests: int, bounds: ValidationBounds | None = None
) -> tuple[float, int]:
    """Seconds, result and number of requests of one run."""
    config = PipelineConfig.model_validate(
        {"services": {"validation": {"url": url, "max_concurrent_requests": requests}}}
    )
    job.mkdir()
    given = context(job, "validation", config, source=source)
    started = time.perf_counter()
    result = run(given, bounds=bounds)
    return time.perf_counter() - started, result, given.meter.requests


def slow(directory: Path, rounds: int) -> Iterator[str]:
    """Measure the share of the possible rate with a service that takes 20 ms."""
    bounds = ValidationBounds(mebibyte=8000)  # chunks of 80 kB, a line each
    used: dict[int, list[float]] = {}

    def step(url: str, slots: int, number: int) -> float:
        data = directory / f"data-{slots}"
        if slots not in used:
            write_files(data, 16 * slots, 4)  # 200 requests for each slot
        cpu = time.process_time()
        seconds, _, count = validate(url, data, directory / f"slow-{slots}-{number}", slots, bounds)
        used.setdefault(slots, []).append(1000 * (time.process_time() - cpu) / count)
        return count / seconds

    yield from against_slow(rounds, "/validateResource", step)
    yield f"CPU for a request    {', '.join(f'{min(values):.2f} ms (N = {slots})' for slots, values in used.items())}"


def read(source: Path, size: int) -> float:
    """MB/s at which the input is read, cut and packed, without sending it."""
    started = time.perf_counter()
    for path in source.iterdir():
        reader = ItemReader(path.name)
        groups = reader.groups(lines_with_long(path, limit=10 << 20, spool=source))
        for _ in pack(((group, 0) for group in groups), file=path.name, limit=10 << 20):
            pass
    return size / (time.perf_counter() - started) / MB


def fast(directory: Path, given: argparse.Namespace) -> Iterator[str]:
    """Yield the rate and the memory with a service that answers at once."""
    data = directory / "data"
    size = one_line(data, given.line) if given.line else write_files(data, given.mb, given.files)
    if given.zst:
        compress(data)
    base = peak_bytes() / MIB
    results: list[StepReport] = []
    used: list[float] = []
    allowed: list[float] = []
    sent: list[int] = []
    with serving() as port:

        def step(number: int) -> float:
            cpu = time.process_time()
            seconds, result, count = validate(
                f"http://127.0.0.1:{port}", data, directory / f"job-{number}", given.requests
            )
            used.append(size / (time.process_time() - cpu) / MB)
            results.append(result)
            sent.append(count)
            return size / seconds / MB

        def bare_client(_: int) -> float:
            cpu = time.process_time()
            rate = limit(port)
            allowed.append(50 / (time.process_time() - cpu))
            return rate

        ours, bare = in_turn(given.rounds, step, bare_client)
    result, count = results[0], sent[0]
    yield f"input               {size / MB:6.0f} MB, {result.lines_in} lines, {result.resources_in} resources"
    yield f"http.client, 80 kB  {bare.median:6.0f} MB/s, best {bare.best:.0f}"
    each = f"{count} requests of {size / count / 1000:.0f} kB"
    yield f"validation          {ours.median:6.0f} MB/s of input, best {ours.best:.0f}; {each}"
    yield f"ratio                 {ratio(ours, bare)} (target ≥ 0.7)"
    by_cpu = f"limit {max(allowed):.0f}: {max(used) / max(allowed):.2f}"
    yield f"by CPU time         {max(used):6.0f} MB per second of this process, {by_cpu}"
    yield f"peak memory         {peak_bytes() / MIB:6.0f} MiB, {base:.0f} MiB before (target ≤ 300)"
    yield f"reading and packing {read(data, size):6.0f} MB/s"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    step_options(parser, requests=4)
    parser.add_argument("--slow", action="store_true", help="only the service that takes 20 ms")
    parser.add_argument("--line", type=int, metavar="MB", help="one Bundle of that size instead")


def main(given: argparse.Namespace) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        for line in slow(Path(name), given.rounds) if given.slow else fast(Path(name), given):
            print(line, flush=True)
