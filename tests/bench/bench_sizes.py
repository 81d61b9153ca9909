"""Whether the model of ``deployments.sizes`` is right: ``python -m tests.bench.bench_sizes``. Docs: docs/sizes.md.

Runs two cohorts through local_import, pseudonymizer and send, as commands, and prints what the model says beside what
was measured: one job, and four jobs of which two run at once. The services take 20 ms a request, 4 and 16 at once for
all jobs together, so their speed is known. How fast a core is here is taken from a small job before.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deployments.sizes import COSTS, JOB_CPU, MB, Need, evaluate
from deployments.sizes import Site as Machines
from tests.bench.bench_jobs import SLUICE, Site, site, sqlite
from tests.bench.data import bundles, write_files
from tests.bench.echo import KILOBYTES, TAKES, load_line, serve_slowly, serving

STEPS = ("local_import", "pseudonymizer", "send")
AT_ONCE = {"pseudonymizer": 4, "send": 16}
"""How many requests the service of a step takes at once."""


def configure(place: Path, port: int) -> None:
    (place / "sizes.yaml").write_text(f"""
services:
  local_import: {{dir: cohort}}
  pseudonymizer: {{url: "http://127.0.0.1:{port}/slow4", max_concurrent_requests: 4}}
  send:
    send_as: direct_resource_load
    url: "http://127.0.0.1:{port}/slow16"
    max_concurrent_requests: 8
pipeline: {{enabled_steps: [{", ".join(STEPS)}]}}
jobs_dir: jobs
""")


def run(at: Site, jobs: int, at_once: int) -> tuple[float, float]:
    """Seconds until all jobs are complete, and CPU seconds of a job."""

    def one(number: int) -> float:
        log = at.place / f"sizes-{number}"
        child = at.start(*SLUICE, "pipeline", "start", "sizes.yaml", "--no-progress", log=log)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"a job failed:\n{log.read_text()}")
        return used.ru_utime + used.ru_stime

    begun = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        cpu = list(pool.map(one, range(jobs)))
    return time.monotonic() - begun, sum(cpu) / jobs


def stored(at: Site) -> float:
    """Bytes of the data files in the jobs directory."""
    return float(sum(path.stat().st_size for path in (at.place / "jobs").glob("*/*/*.ndjson.zst")))


def lines(at: Site, megabytes: float) -> Iterator[str]:
    """The figures, model beside measurement."""
    window = [*bundles(min(megabytes, 64.0), kilobytes=KILOBYTES)]
    mean = sum(map(len, window)) / len(window)
    services = {step: slots / TAKES * mean / MB for step, slots in AT_ONCE.items()}
    small = write_files(at.place / "cohort", megabytes / 2, 4, window)
    _, cpu = run(at, 1, 1)
    packed = 2 * small / stored(at)
    core = (sum(COSTS[step].cpu for step in STEPS) * small / MB + JOB_CPU) / cpu
    yield f"a core               {core:.2f} of that of the benches, by a job of {small / MB:.0f} MB; zstd {packed:.0f}"
    for jobs, at_once in ((1, 1), (4, 2)):
        for path in (at.place / "cohort").iterdir():
            path.unlink()
        size = write_files(at.place / "cohort", megabytes / jobs, 4, window) * jobs
        need: Need = evaluate(
            size, jobs, STEPS, Machines(1, os.cpu_count() or 1, at_once, core, 1000.0, packed, services)
        )
        disk = stored(at)
        seconds, cpu = run(at, jobs, at_once)
        yield f"{jobs} jobs, {at_once} at once, {size / MB:.0f} MB in all; first to give way: {need.first}"
        yield f"  seconds            {seconds:8.1f}   model {need.seconds:8.1f}   ratio {seconds / need.seconds:.2f}"
        of_model = (sum(COSTS[step].cpu for step in STEPS) * size / jobs / MB + JOB_CPU) / core
        yield f"  CPU seconds a job  {cpu:8.1f}   model {of_model:8.1f}   ratio {cpu / of_model:.2f}"
        disk = (stored(at) - disk) / MB
        yield f"  disk, MB           {disk:8.1f}   model {need.disk / MB:8.1f}   ratio {disk / need.disk * MB:.2f}"
    yield load_line()


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=400, help="size of each cohort, uncompressed")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        place = Path(scratch)
        with serving(serve_slowly) as port, site(place, sqlite(place / "server")) as at:
            configure(place, port)
            for line in lines(at, given.mb):
                print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
