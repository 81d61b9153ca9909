"""How long a cohort takes and what it needs: ``python -m deployments.sizes --patients 100000``. Docs: docs/sizes.md.

A model of few words. The cohort is cut into jobs; every machine runs some at once, and all of them go through the steps
side by side. A step is then as fast as the least of three: the cores that its jobs may use, its service (for all jobs
together, as the services' own speed is what a site knows), and the directory that all machines share. The hours of the
steps add up; what is busy for the largest part of them is what gives way first. Jobs that drift apart, so that each is
in another step, take as long as that one thing is busy, at best.

The unit costs are those of ``tests/bench``, with all checks on (2 cores, Zen 4). ``--core`` says how fast a core is
beside that one.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tasks.shared.units import human_bytes, human_seconds

MB = 1e6


class Cost(msgspec.Struct, frozen=True):
    """What a step costs for each byte of NDJSON, uncompressed, that comes in."""

    cpu: float
    """Seconds of one core for a MB."""
    reads: float
    """Bytes read from the jobs directory, as they would be uncompressed."""
    writes: float
    """Bytes written into it, which stay, as they would be uncompressed."""
    service: bool = True


TABLES = 0.3
"""Of NDJSON, as tables: ``bench_flattening``, a row of eight columns for each resource."""

COSTS: Mapping[str, Cost] = {
    "extractor": Cost(0.0035, 0, 1),
    "http_import": Cost(0.0035, 0, 1),
    "local_import": Cost(0.0035, 1, 1, service=False),
    "pseudonymizer": Cost(0.0220, 1, 1),
    "validation": Cost(0.0100, 1, 0),
    "flattening": Cost(0.0260, 1, TABLES),
    "send": Cost(0.0065, 1, 0),
}
"""bench_import, bench_pseudonymizer, bench_validation, bench_flattening, bench_send."""

JOB_CPU = 2.2
"""Seconds of a core for a job, whatever its data: the interpreter, Prefect (``bench_jobs``)."""
JOB_MEMORY = 300 * MB
"""At most, whatever the data (``bench_jobs``)."""
SERVER_CPU = 0.010
"""Seconds of a core of the Prefect server for a request (``bench_jobs``)."""
JOB_REQUESTS = 41
REQUESTS_A_MINUTE = 81
JOB_ROWS = 61
ROWS_A_MINUTE = 12
"""Rows of Prefect's database that a job adds, a third of them events, which expire (``bench_jobs``)."""
JOB_DATABASE = 102e3
DATABASE_A_MINUTE = 52e3
"""Bytes, with PostgreSQL."""


@dataclass(frozen=True)
class Site:
    """What is there to do it with. Speeds in MB/s of NDJSON, uncompressed; ``share`` of bytes as they are stored,
    which are ``packed`` times fewer.
    """

    machines: int = 1
    cores: int = 2
    at_once: int = 2
    core: float = 1.0
    share: float = 100.0
    packed: float = 13.0
    services: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StepTime:
    """How long all jobs together are in a step, in seconds, and what holds them up there."""

    name: str
    seconds: float
    limit: str


@dataclass(frozen=True)
class Need:
    """The answer of the model. Bytes and seconds; ``busy`` is the part of the time that each thing works, 0 to 1."""

    data: float
    jobs: int
    steps: tuple[StepTime, ...]
    seconds: float
    memory: float
    disk: float
    requests: float
    rows: float
    database: float
    busy: tuple[tuple[str, float], ...]

    @property
    def least(self) -> float:
        """Seconds, when every job is in another step than the others; one alone is in one at a time."""
        return self.seconds if self.jobs == 1 else self.busy[0][1] * self.seconds

    @property
    def first(self) -> str:
        """What gives way first."""
        return self.busy[0][0]


def evaluate(data: float, jobs: int, steps: Sequence[str], site: Site, costs: Mapping[str, Cost] = COSTS) -> Need:
    """What ``data`` bytes of NDJSON in ``jobs`` jobs of equal size need at ``site``."""
    slots = min(jobs, site.machines * site.at_once)
    cores = min(slots, site.machines * site.cores) * site.core
    rounds = math.ceil(jobs / slots) * slots / jobs  # the last round may leave slots empty
    busy: dict[str, float] = {"cores": 0.0, "shared directory": 0.0}
    times = []
    for name in steps:
        cost = costs[name]
        needs = {
            "cores": cost.cpu * data / MB / cores,
            "shared directory": (cost.reads + cost.writes) * data / site.packed / MB / site.share,
        }
        if cost.service and name in site.services:
            needs[f"service of {name}"] = data / MB / site.services[name]
        for what, seconds in needs.items():
            busy[what] = busy.get(what, 0.0) + seconds
        limit = max(needs, key=lambda what: needs[what])
        held = needs[limit] * (1.0 if limit.startswith("service") else rounds)
        times.append(StepTime(name, held, limit))
    starting = jobs * JOB_CPU / cores
    busy["cores"] += starting
    seconds = sum(step.seconds for step in times) + starting
    minutes = seconds / 60 * slots  # of jobs
    requests = jobs * JOB_REQUESTS + minutes * REQUESTS_A_MINUTE
    busy["Prefect server"] = requests * SERVER_CPU
    seconds = max(seconds, busy["Prefect server"])
    written = sum(costs[name].writes for name in steps) * data / site.packed
    return Need(
        data=data, jobs=jobs, steps=tuple(times), seconds=seconds, memory=min(slots, site.at_once) * JOB_MEMORY,
        disk=written, requests=requests, rows=jobs * JOB_ROWS + minutes * ROWS_A_MINUTE,
        database=jobs * JOB_DATABASE + minutes * DATABASE_A_MINUTE,
        busy=tuple(sorted(((what, used / seconds) for what, used in busy.items()), key=lambda pair: -pair[1])),
    )  # fmt: skip


ADVICE = {
    "cores": "more machines, or a larger --at-once where a machine has idle cores",
    "shared directory": "a faster one, or a jobs directory for each machine with jobs of its own",
    "Prefect server": "a core of its own for the server, PostgreSQL beside it, fewer and larger jobs",
    "service": "more of its processes, and max_concurrent_requests of the step to match; more machines do not help",
}


def advice(what: str) -> str:
    """What to do when ``what`` gives way."""
    return ADVICE[what.split(" of ")[0]]


def render(need: Need, site: Site, patients: int) -> list[str]:
    """The answer, for a person."""
    machines = f"{site.machines} machine{'s' if site.machines > 1 else ''}"
    where = f"{site.at_once} at once on {'each of ' if site.machines > 1 else ''}{machines}"
    lines = [
        f"{patients:,} patients, {human_bytes(need.data)} of NDJSON in {need.jobs:,} jobs, {where}",
        "",
        *(f"{step.name:15} {human_seconds(step.seconds):>14}   held up by: {step.limit}" for step in need.steps),
        f"{'in all':15} {human_seconds(need.seconds):>14}   {human_seconds(need.least)} when the jobs drift apart",
        "",
        f"{'memory':26} {human_bytes(need.memory)} on each machine",
        f"{'disk, jobs directory':26} {human_bytes(need.disk)}",
        f"{'Prefect, requests':26} {need.requests:,.0f}",
        f"{'Prefect, database':26} {human_bytes(need.database)}, {need.rows:,.0f} rows",
        "",
        "busy:",
        *(f"  {what:24} {used:6.1%}" for what, used in need.busy),
        f"first to give way: {need.first}: {advice(need.first)}",
    ]
    missing = [step.name for step in need.steps if COSTS[step.name].service and step.name not in site.services]
    if missing:
        lines.append(f"no speed is given for the service of {', '.join(missing)}: it is taken to hold up nothing")
    return lines


def speed(text: str) -> tuple[str, float]:
    """``STEP=MB/s`` of ``--service``."""
    name, _, value = text.partition("=")
    if name not in COSTS or not COSTS[name].service:
        steps = ", ".join(step for step, cost in COSTS.items() if cost.service)
        raise argparse.ArgumentTypeError(f"{name!r} is no step with a service: {steps}")
    return name, positive(value)


def positive(text: str) -> float:
    """A number above zero."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def count(text: str) -> int:
    """A whole number above zero."""
    if not text.replace("_", "").isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def names(text: str) -> tuple[str, ...]:
    """The steps of ``--steps``; ``wait`` costs nothing."""
    wanted = [name.strip() for name in text.split(",") if name.strip() != "wait"]
    if unknown := [name for name in wanted if name not in COSTS]:
        raise argparse.ArgumentTypeError(f"no such step: {', '.join(unknown)}; there are {', '.join(COSTS)}")
    return tuple(wanted)


def main(argv: Sequence[str] | None = None) -> int:
    """Print what a cohort takes."""
    parser = argparse.ArgumentParser(
        prog="deployments.sizes", description="How long a cohort takes, what it needs, and what gives way first."
    )
    parser.add_argument("--patients", type=count, required=True, help="how many, in all jobs together")
    parser.add_argument("--kb", type=positive, default=79.0, help="kB of NDJSON a patient, uncompressed [default: 79]")
    parser.add_argument(
        "--steps", type=names, default="extractor,pseudonymizer,flattening,send", metavar="LIST",
        help="as in pipeline.enabled_steps [default: %(default)s]",
    )  # fmt: skip
    parser.add_argument(
        "--service", type=speed, action="append", default=[], metavar="STEP=SPEED",
        help="MB/s of NDJSON that the service of a step reaches for all jobs together; repeatable",
    )  # fmt: skip
    parser.add_argument("--machines", type=count, default=1, help="workers, one a machine [default: 1]")
    parser.add_argument("--at-once", type=count, default=2, help="--limit of each worker [default: 2]")
    parser.add_argument("--jobs", type=count, help="how many jobs the cohort is cut into [default: as run at once]")
    parser.add_argument("--cores", type=count, default=2, help="of each machine [default: 2]")
    parser.add_argument("--core", type=positive, default=1.0, help="speed of a core, 1 is that of the benches")
    parser.add_argument(
        "--share", type=positive, default=100.0, help="MB/s of the jobs directory, all machines [default: 100]"
    )
    parser.add_argument("--packed", type=positive, default=13.0, help="how many times zstd shrinks it [default: 13]")
    parser.add_argument("--json", action="store_true", help="as JSON: bytes, seconds, and busy from 0 to 1")
    given = parser.parse_args(argv)
    site = Site(given.machines, given.cores, given.at_once, given.core, given.share, given.packed, dict(given.service))
    need = evaluate(given.patients * given.kb * 1000, given.jobs or given.machines * given.at_once, given.steps, site)
    if given.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(need)).decode() + "\n")
    else:
        sys.stdout.write("\n".join(render(need, site, given.patients)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
