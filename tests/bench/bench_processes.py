"""The pseudonymizer step shared by several processes, with a core for each (performance.md, "answers at once").

    python -m tests.bench.bench_processes [--mb 300] [--core 0.19] [--processes 1 3 6] [--requests 18] [--rounds 3]

The target, 0.7 of what two threads of ``http.client`` reach with the same service, is one for a machine with enough
cores. Here every process has cores of its own, each of them a ``--core`` of a real one and no more (``cores.py``): the
ratio is that of a machine with cores for all, slower ones. The run has two, because it compresses in a thread that
needs no lock of Python, and so has ``http.client``, for its two threads; the service and each process that shares the
work have one. With six of these that is nine, so 0.19 keeps them below two real cores. Run it on a quiet machine, as
root.

The first fifth of the data is not counted: until all processes are there takes half a second of CPU time each, which
is seconds of such a core.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from config import PipelineConfig
from tasks.pseudonymizer.pseudonymization import run
from tasks.shared.progress import Progress
from tasks.shared.step import StepContext
from tests.bench.bench_pseudonymizer import RULES, load_line, make
from tests.bench.cores import Cores
from tests.bench.echo import MB, Rounds, in_turn, limit, ratio, serving


class Clock(Progress):
    """Notes when ``unmeasured`` bytes had come back, and how many exactly."""

    def __init__(self, unmeasured: int) -> None:
        super().__init__()
        self._unmeasured = unmeasured
        self._read = 0
        self.began: tuple[float, int] | None = None

    def add(self, *, files: int = 0, bytes: int = 0, resources: int = 0) -> None:  # noqa: A002
        """Count what came back."""
        super().add(files=files, bytes=bytes, resources=resources)
        self._read += bytes
        if self.began is None and self._read >= self._unmeasured:
            self.began = time.perf_counter(), self._read


def bare(answer: Connection, core: float, port: int, size: int) -> None:
    """MB/s of ``http.client``, with two cores of its own."""
    with Cores(2 * core) as two:
        two.give_me()
        answer.send(limit(port, size=size))


def step(answer: Connection, core: float, port: int, data: Path, job: Path, requests: int, processes: int) -> None:
    """MB/s of the step: two cores for the run, one for each of its processes."""
    rules = job.with_suffix(".yaml")
    rules.write_text(RULES)
    settings = {
        "url": f"http://127.0.0.1:{port}",
        "max_concurrent_requests": requests,
        "processes": processes,
        "anonymization_config": str(rules),
    }
    config = PipelineConfig.model_validate({"services": {"pseudonymizer": settings}})
    clock = Clock(sum(path.stat().st_size for path in data.iterdir()) // 5)
    context = StepContext(config=config, job_id="bench", job_dir=job, position=1, name="p", source=data, progress=clock)
    with Cores(2 * core) as two, Cores(core) as cores:
        two.give_me()
        cores.give_children()
        result = run(context)
        ended = time.perf_counter()
    assert clock.began is not None
    began, read = clock.began
    answer.send(((result.bytes_in or 0) - read) / (ended - began) / MB)


def apart(target: Callable[..., None], *arguments: Any) -> float:
    """What ``target`` sends, run in a process of its own."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        rate: float = mine.recv()
        return rate
    finally:
        process.join()
        mine.close()


def measure(place: Path, options: argparse.Namespace) -> None:
    """Print the rates and the ratios."""
    size = make(place / "data", options.mb, 8, compressed=False)
    print(f"input          {size / MB:6.0f} MB; a core is {options.core} of a real one")
    with serving() as port, Cores(options.core) as cores:
        for server in multiprocessing.active_children():
            assert server.pid is not None
            cores.give(server.pid)
        measures: list[Callable[[int], float]] = [
            lambda _: apart(bare, options.core, port, options.mb * MB // 2),
            *[
                lambda number, many=many: apart(
                    step, options.core, port, place / "data", place / f"job-{many}-{number}", options.requests, many
                )
                for many in options.processes
            ],
        ]
        limited, *shared = in_turn(options.rounds, *measures)
    print(f"http.client    {limited.median:6.0f} MB/s, best {limited.best:.0f}")
    for many, ours in zip(options.processes, shared, strict=True):
        print(line(many, ours, limited))
    print(load_line())


def line(many: int, ours: Rounds, limited: Rounds) -> str:
    """The result of one number of processes."""
    rates = f"{ours.median:6.0f} MB/s, best {ours.best:.0f}"
    return f"{many} processes    {rates}: ratio {ratio(ours, limited)} (target ≥ 0.7)"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=300, help="size of the data")
    parser.add_argument("--core", type=float, default=0.19, help="how much of a real core each has")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 3, 6], help="services.pseudonymizer.processes")
    parser.add_argument("--requests", type=int, default=18, help="max_concurrent_requests")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), options)


if __name__ == "__main__":
    main()
