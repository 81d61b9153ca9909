"""Speed of a step that sends the data to a service, against the limits of service and machine (performance.md).

    python -m tests.bench.bench_step {pseudonymizer,validation,send} [--mb 100] [--files 8] [--requests N] [--rounds 5]
                                     [--zst]
    python -m tests.bench.bench_step validation --slow         only the service that takes 20 ms
    python -m tests.bench.bench_step pseudonymizer --line 400  one Bundle of 400 MB on one line

A service in another process (``echo.py``) reads each request and answers. What the step reaches and what
``http.client`` reaches with the same service are measured in turn, in several rounds.

* It answers at once: the ratio to two threads of ``http.client`` that post 80 kB. For comparison: ``ServiceClient``
  alone with the same lines, and the CPU time of each. Of that nearly all is under the one lock of Python, so it is what
  one process can do at most, on any number of cores. Then what reading and cutting the input costs alone.
* It takes 20 ms for each request and lets N be under way at once, N = 1, 4, 16: the ratio to N / 20 ms (target 0.95),
  and to what N threads of ``http.client`` reach, which is what the machine makes of ``sleep(0.02)`` and loopback. Every
  run is of about 4 seconds, so that starting the step (one probe, the first connections) is hardly any of it.

Every load runs in a process of its own, whose peak memory is its own too (target ≤ 300 MiB, also with ``--mb 2000
--rounds 1`` and with ``--line``).
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from config import PipelineConfig
from tasks.pseudonymizer import pseudonymization
from tasks.send import direct
from tasks.send.batches import HEADERS
from tasks.send.comparison import compare
from tasks.shared.fhir.bundle import cut
from tasks.shared.fhir.long_line import lines_with_long
from tasks.shared.files.names import data_files
from tasks.shared.http.client import ServiceClient
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tasks.validation import validation
from tasks.validation.chunks import pack
from tasks.validation.items import ItemReader
from tests.bench.data import as_input, bundles, compress, one_line, write_files
from tests.bench.echo import KILOBYTES, MB, against_slow, in_threads, in_turn, limit, load_line, ratio, serving
from tests.bench.memory import MIB, in_own_process
from tests.bench.memory import peak as peak_bytes
from tests.peers.job import context
from tests.peers.lines import numbered_lines

RULES = "fhirPathRules:\n  - {path: Patient.name, method: redact}\n"


class StepFigures(NamedTuple):
    """One run of a step: seconds by the clock and of CPU time, bytes read, requests, peak memory in MiB.

    ``cpu`` is that of the run's own process.
    """

    seconds: float
    cpu: float
    read: int
    requests: int
    before: float
    peak: float


class MeasuredStep(NamedTuple):
    """The functions that run a step, and its targets.

    ``run`` gets the context and whether the service is the slow one; ``settings`` are its own keys, given a directory;
    ``cut_alone`` reads a file and cuts it as the step does.
    """

    run: Callable[[StepContext, bool], StepReport]
    settings: Callable[[Path], dict[str, Any]]
    cut_alone: Callable[[Path], object]
    path: str
    requests: int
    ratio: float
    cpu: float | None = None


def rules(place: Path) -> dict[str, Any]:
    """Write the rules of the pseudonymizer; return the setting that names them."""
    (path := place.with_suffix(".yaml")).write_text(RULES)
    return {"anonymization_config": str(path)}


def chunks(path: Path) -> None:
    """Read and pack a file as the validation does."""
    lines = lines_with_long(path, limit=10 << 20, spool=path.parent)
    for _ in pack(((group, 0) for group in ItemReader(path.name).groups(lines)), file=path.name, limit=10 << 20):
        pass


def resources(path: Path) -> None:
    """Read a file and cut it into resources."""
    for number, line in numbered_lines(path):
        cut(line, file=path.name, number=number)


LINE_EACH = validation.ValidationBounds(mebibyte=8000)
"""Chunks of 80 kB, a line each, so that the slow service gets as many requests as from the other steps."""

STEPS = {
    "pseudonymizer": MeasuredStep(
        lambda given, _: pseudonymization.run(given), rules, resources, "/", requests=4, ratio=0.7, cpu=1.5
    ),
    "validation": MeasuredStep(
        lambda given, slow: validation.run(given, bounds=LINE_EACH if slow else None),
        lambda _: {}, chunks, "/validateResource", requests=4, ratio=0.7,
    ),
    "send": MeasuredStep(
        lambda given, _: direct.run(given, compare(given)),
        lambda _: {"send_as": "direct_resource_load"}, resources, "/fhir", requests=2, ratio=0.6, cpu=0.6,
    ),
}  # fmt: skip


def make(directory: Path, megabytes: float, files: int = 4) -> int:
    """Write Bundles of 80 kB on average into ``files`` files; return their bytes."""
    return write_files(directory, megabytes, files, list(bundles(min(megabytes, 16.0), kilobytes=KILOBYTES)))


def load(answer: Connection, step: str, url: str, data: Path, job: Path, requests: int, slow: bool) -> None:
    """Run the step once; send its ``StepFigures``."""
    settings = STEPS[step].settings(job) | {"url": url, "max_concurrent_requests": requests}
    config = PipelineConfig.model_validate({"services": {step: settings}})
    given = context(job, step, config, source=as_input(data, job))
    before = peak_bytes() / MIB
    started, cpu = time.perf_counter(), time.process_time()
    result = STEPS[step].run(given, slow)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    answer.send(StepFigures(seconds, cpu, result.bytes_in or 0, given.meter.requests, before, peak_bytes() / MIB))


def measured(step: str, url: str, data: Path, job: Path, requests: int, slow: bool = False) -> StepFigures:
    """``load`` in a process of its own."""
    figures: StepFigures = in_own_process(load, step, url, data, job, requests, slow)
    return figures


def client(url: str, size: int, threads: int) -> tuple[float, float]:
    """Return MB/s of lines through ``ServiceClient``, and ms of CPU for each: the limit of every step that uses it."""
    config = PipelineConfig.model_validate({})
    lines = list(bundles(8.0, kilobytes=KILOBYTES))
    rounds = max(1, int(size / 8e6 / threads))
    with ServiceClient("send", tls=config.tls, retry=config.retry) as service:

        def work() -> None:
            for _ in range(rounds):
                for line in lines:
                    service.send("POST", url, operation="send", content=line, headers=HEADERS)

        cpu = time.process_time()
        seconds = in_threads(threads, work)
        cpu = time.process_time() - cpu
    return sum(map(len, lines)) * rounds * threads / seconds / MB, 1000 * cpu / (len(lines) * rounds * threads)


def slow(place: Path, given: argparse.Namespace) -> Iterator[str]:
    """Measure the step with the slow service."""
    used: dict[int, float] = {}

    def step(url: str, slots: int, number: int) -> float:
        data = place / f"slow{slots}"
        if not data.exists():
            make(data, 16.0 * slots)  # 200 requests for each slot
        one = measured(given.step, url, data, place / f"job{slots}-{number}", slots, True)
        used[slots] = min(used.get(slots, math.inf), 1000 * one.cpu / one.requests)
        return one.requests / one.seconds

    yield from against_slow(given.rounds, STEPS[given.step].path, step)
    yield f"CPU of a request     {', '.join(f'{cpu:.2f} ms (N = {slots})' for slots, cpu in used.items())}"
    yield load_line()


def fast(place: Path, given: argparse.Namespace) -> Iterator[str]:
    """Measure the step with the service that answers at once."""
    bench, data = STEPS[given.step], place / "data"
    size = one_line(data, given.line) if given.line else make(data, given.mb, given.files)
    if given.zst:
        compress(data)
    runs: list[StepFigures] = []
    plain_cpu: list[float] = []
    alone_cpu: list[float] = []
    with serving() as port:
        url = f"http://127.0.0.1:{port}"

        def plain(_: int) -> float:
            cpu = time.process_time()
            rate = limit(port, size=size)
            plain_cpu.append((time.process_time() - cpu) * 1000 * 80_000 / size)
            return rate

        def step(number: int) -> float:
            runs.append(measured(given.step, url, data, place / f"job{number}", given.requests or bench.requests))
            return size / runs[-1].seconds / MB

        def ours_alone(_: int) -> float:
            rate, cpu = client(f"{url}{bench.path}", size, given.requests or bench.requests)
            alone_cpu.append(cpu)
            return rate

        bare, ours, alone = in_turn(given.rounds, plain, step, ours_alone)
    cpu = min(run.cpu / run.requests for run in runs) * 1000
    first = runs[0]
    yield f"input                {size / MB:6.0f} MB, {'zst' if given.zst else 'plain'}"
    yield f"http.client, 80 kB   {bare.median:6.0f} MB/s, best {bare.best:.0f}; {min(plain_cpu):.2f} ms of CPU each"
    yield f"ServiceClient        {alone.median:6.0f} MB/s, best {alone.best:.0f}; {min(alone_cpu):.2f} ms of CPU each"
    yield f"step                 {ours.median:6.0f} MB/s of input, best {ours.best:.0f}"
    yield f"                     {first.requests} requests of {size / first.requests / 1000:.0f} kB"
    target = f" (target ≤ {bench.cpu} for 80 kB)" if bench.cpu else ""
    yield f"CPU of a request     {cpu:9.2f} ms, its answer checked{target}"
    yield f"ratio                  {ratio(ours, bare)} (target ≥ {bench.ratio})"
    yield f"peak memory          {max(run.peak for run in runs):6.0f} MiB, {first.before:.0f} MiB before (target ≤ 300)"
    if not given.line:
        started = time.perf_counter()
        for path in data_files(data):
            bench.cut_alone(path)
        yield f"reading and cutting  {size / (time.perf_counter() - started) / MB:6.0f} MB/s (target of send: ≥ 500)"
    yield load_line()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--mb", type=int, default=100, help="size of the data, uncompressed")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--requests", type=int, help="max_concurrent_requests")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument("--zst", action="store_true", help="compressed input")
    parser.add_argument("--slow", action="store_true", help="only the service that takes 20 ms")
    parser.add_argument("--line", type=int, metavar="MB", help="one Bundle of that size instead")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for line in (slow if given.slow else fast)(Path(name), given):
            print(line, flush=True)


if __name__ == "__main__":
    main()
