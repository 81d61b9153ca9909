"""Cost of jobs on a Prefect server: ``python -m tests.bench jobs`` prints the figures of docs/deployment.md.

Jobs import and send 19 resources, and are commands that start at the same moment. The server is the embedded one, with
SQLite or with a PostgreSQL of the bench's own, which is left out where PostgreSQL is not installed. Requests and bytes
are counted by a bridge between a job and the server, in a run of its own, so that it does not slow the others.
Each line is ``database | figure | value``; ``FIGURES`` says what each means.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.fhir.app import FhirOptions, fhir_service
from flows.engine.api_address import ApiAddress
from flows.engine.server.start import EmbeddedServer
from tests.peers.bridge import Bridge, bridge
from tests.peers.postgres import postgres_running
from tests.peers.project import Fhir, write_input

ROOT = Path(__file__).parents[2]
SLUICE = (sys.executable, "-m", "flows.run")

FIGURES = {
    "all complete, N at once": "seconds from the start of the first to the end of the last",
    "server CPU a job": "seconds of one core, while N ran at once",
    "server memory": "resident MB at its highest",
    "job memory": "resident MB of the process that runs a job, at its highest",
    "job CPU": "seconds of one core, interpreter and imports included",
    "requests a job": "calls of the Prefect API by a job that takes seconds",
    "traffic a job": "kB between such a job and the API, both directions",
    "requests a minute": "calls of the API by a job that runs, for each minute",
    "traffic a minute": "kB between it and the API, for each minute",
    "requests a minute, idle worker": "calls of the API by a worker that has nothing to do, as it is set up by default",
    "database a job": "kB that the database grows by",
    "rows a job": "rows that the database grows by, and how many of them are events",
    "of it events": "kB of that which goes when the events expire",
    "database a minute": "kB that a job which runs adds for each minute",
    "rows a minute": "rows that a job which runs adds for each minute",
    "artifacts a job": "kB that the UI shows of a job",
    "job list, N jobs": "seconds for `sluice job list` with N finished jobs in the database",
    "server CPU of job list, N jobs": "seconds of one core of the server for that, at most 1",
    "job prune --dry-run, N jobs": "seconds for the same with `sluice job prune`",
    "job prune, N jobs": "seconds until they are gone, directories, records and pages, at most 60",
    "left of N pruned jobs": "runs, task runs, artifacts and limits that the database still has of them",
    "database is locked": "how often it stands in the logs of server and jobs",
    "lost": "jobs that are not in the list, or not complete",
}
"""The figures, by the names that this prints and the page uses."""

FILES = ("import/a.ndjson", "pseudonymized/a.ndjson", ".results/1-local_import.json", "job.log")
"""What lies in the directory of one."""

EVENTS = ("events", "event_resources", "automation_event_follower")
RECORD = (
    "flow_run", "flow_run_state", "flow_run_input", "task_run", "task_run_state", "artifact", "artifact_collection",
    "log",
)  # fmt: skip


@contextlib.contextmanager
def counted(api: str) -> Iterator[tuple[Bridge, str]]:
    """Yield a bridge to the API, which counts, and the API's address behind it."""
    with bridge(api.removesuffix("/api")) as between:
        yield between, f"{between.url}/api"


@dataclass
class Database:
    """A database of Prefect, and how large it is."""

    name: str
    environment: dict[str, str]
    ask: Callable[[str], str]
    size_query: str
    events_query: str

    def size(self) -> float:
        """Used bytes."""
        return float(self.ask(self.size_query))

    def events(self) -> float:
        """Return the bytes of the events and their indexes."""
        return float(self.ask(self.events_query) or 0)

    def rows(self, tables: Sequence[str]) -> int:
        """Count the rows in those tables."""
        return int(self.ask("select " + " + ".join(f"(select count(*) from {table})" for table in tables)))

    def artifacts(self) -> float:
        """Return the bytes of the artifacts' data."""
        return float(self.ask("select coalesce(sum(length(cast(data as text))), 0) from artifact"))


def sqlite(home: Path) -> Database:
    """Return the embedded server's file. Only pages in use count: a file does not shrink by itself."""
    names = ", ".join(f"'{name}'" for name in EVENTS)

    def run_query(query: str) -> str:
        with contextlib.closing(sqlite3.connect(home / ".prefect/prefect.db", timeout=60)) as connection:
            return str(connection.execute(query).fetchone()[0])

    return Database(
        "SQLite", {}, run_query,
        "select (p.page_count - f.freelist_count) * s.page_size"
        " from pragma_page_count p, pragma_freelist_count f, pragma_page_size s",
        "select sum(pgsize) from dbstat where name in"
        f" (select name from sqlite_master where tbl_name in ({names}))",
    )  # fmt: skip


@contextlib.contextmanager
def postgresql() -> Iterator[Database]:
    """Yield a PostgreSQL of its own, on a socket alone."""
    with postgres_running() as made:
        psql = (str(shutil.which("psql")), "-h", str(made.place), "-U", "prefect", "-d", "postgres", "-Atc")

        def run_query(query: str) -> str:
            ran = subprocess.run([*psql, query], check=True, stdout=subprocess.PIPE, text=True, timeout=120)
            return ran.stdout.strip()

        names = ", ".join(f"'{name}'" for name in EVENTS)
        yield Database(
            "PostgreSQL", {"PREFECT_API_DATABASE_CONNECTION_URL": made.url},
            run_query, "select pg_database_size('postgres')",
            f"select coalesce(sum(pg_total_relation_size(oid)), 0) from pg_class where relname in ({names})",
        )  # fmt: skip


@dataclass
class BenchSite:
    """A server, a FHIR server to send to, and a directory with a configuration."""

    place: Path
    address: ApiAddress
    server: int
    fhir: Fhir
    database: Database
    a_job: float = 0.0
    """Bytes by which a short job makes the database grow."""
    rows_a_job: int = 0

    @property
    def api(self) -> str:
        """The URL of the server's API."""
        return self.address.url

    def show(self, figure: str, value: str, *, count: int | None = None) -> None:
        """Print one of the ``FIGURES``; ``count`` is its N."""
        assert figure in FIGURES
        name = figure if count is None else figure.replace("N", f"{count:,}", 1)
        print(f"{self.database.name:10} | {name:32} | {value}", flush=True)

    def environment(self, api: str | None = None) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "APP_"))}
        quick = {"PYTHONPATH": str(ROOT), "PREFECT_HOME": str(self.place / "home"), "PYTHONUNBUFFERED": "1"}
        api_environment = {"PREFECT_API_URL": api or self.api, "PREFECT_API_AUTH_STRING": str(self.address.secret)}
        return kept | quick | api_environment | {"DO_NOT_TRACK": "1"}

    def start(self, *words: str, api: str | None = None, log: Path | None = None) -> subprocess.Popen[bytes]:
        with (log or self.place / "out").open("wb") as file:
            return subprocess.Popen(words, cwd=self.place, env=self.environment(api), stdout=file, stderr=file)

    def run(self, *arguments: str, api: str | None = None) -> str:
        ran = subprocess.run(
            [*SLUICE, *arguments], cwd=self.place, env=self.environment(api), check=True, capture_output=True, text=True
        )
        return ran.stdout

    def cpu(self) -> float:
        """CPU seconds of the server so far."""
        fields = Path(f"/proc/{self.server}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Return the server's highest resident size in MB."""
        status = Path(f"/proc/{self.server}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1000

    def configure(self, *, batch: int = 100) -> None:
        (self.place / "config.yaml").write_text(
            f"""
services:
  local_import: {{dir: data}}
  send: {{send_as: direct_resource_load, url: "{self.fhir.url}", batch_size: {batch}, max_concurrent_requests: 1}}
pipeline: {{enabled_steps: [local_import, send]}}
jobs_dir: jobs
"""
        )


def at_once(site: BenchSite, count: int) -> int:
    """Start ``count`` jobs at the same moment; returns how many are lost."""
    logs = [site.place / f"out-{count}-{number}" for number in range(count)]
    size, events, artifacts = site.database.size(), site.database.events(), site.database.artifacts()
    record, of_events = site.database.rows(RECORD), site.database.rows(EVENTS)
    cpu, begun = site.cpu(), time.monotonic()
    children = [site.start(*SLUICE, "pipeline", "start", "config.yaml", "--no-progress", log=log) for log in logs]
    ended = []
    for child in children:
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        ended.append(used)
    seconds = time.monotonic() - begun
    site.show("all complete, N at once", f"{seconds:.0f} s, {seconds / count:.1f} s a job", count=count)
    site.show("server CPU a job", f"{(site.cpu() - cpu) / count:.2f} s")
    site.show("server memory", f"{site.memory():.0f} MB")
    site.show("job memory", f"{max(used.ru_maxrss for used in ended) / 1000:.0f} MB")
    site.show("job CPU", f"{sum(used.ru_utime + used.ru_stime for used in ended) / count:.1f} s")
    time.sleep(5)  # events and logs are written some seconds later
    site.a_job = (site.database.size() - size) / count
    site.show("database a job", f"{site.a_job / 1000:.0f} kB")
    of_events = round((site.database.rows(EVENTS) - of_events) / count)
    site.rows_a_job = round((site.database.rows(RECORD) - record) / count) + of_events
    site.show("rows a job", f"{site.rows_a_job}, {of_events} of events")
    site.show("of it events", f"{(site.database.events() - events) / count / 1000:.0f} kB")
    site.show("artifacts a job", f"{(site.database.artifacts() - artifacts) / count / 1000:.1f} kB")
    texts = [log.read_text() for log in logs]
    jobs = {found[1] for text in texts if (found := re.search(r"^job (\S+)$", text, re.MULTILINE))}
    rows = {row["id"]: row["state"] for row in json.loads(site.run("job", "list", "config.yaml", "--json"))}
    texts += [log.read_text() for log in (site.place / "jobs").glob("*/job.log")]
    texts.append((site.place / "server/.prefect/server.log").read_text())
    site.show("database is locked", str(sum(text.count("database is locked") for text in texts)))
    lost = count - len([job for job in jobs if rows.get(job) == "completed"])
    site.show("lost", str(lost))
    return lost


def one_job(site: BenchSite, seconds: float) -> None:
    """Count the API requests of a job: in all for a short one, and per minute while it runs."""
    with counted(site.api) as (between, api):
        site.run("pipeline", "start", "config.yaml", "--no-progress", api=api)
        short, traffic = len(between.passed), between.carried
        site.show("requests a job", f"{short}")
        site.show("traffic a job", f"{traffic / 1000:.0f} kB")
    transactions = 31
    shutil.rmtree(site.place / "data")
    write_input(site.place / "data", patients=30, files=3)
    site.configure(batch=3)
    site.fhir.faults({"action": "delay", "method": "POST", "times": None, "seconds": seconds / transactions})
    time.sleep(5)
    size, rows = site.database.size(), site.database.rows(RECORD + EVENTS)
    with counted(site.api) as (between, api):
        begun = time.monotonic()
        site.run("pipeline", "start", "config.yaml", "--no-progress", api=api)
        minutes = (time.monotonic() - begun) / 60
        site.show("requests a minute", f"{(len(between.passed) - short) / minutes:.0f}")
        site.show("traffic a minute", f"{(between.carried - traffic) / minutes / 1000:.0f} kB")
    time.sleep(5)
    site.show("database a minute", f"{(site.database.size() - size - site.a_job) / minutes / 1000:.0f} kB")
    rows = site.database.rows(RECORD + EVENTS) - rows - site.rows_a_job
    site.show("rows a minute", f"{rows / minutes:.0f}")
    site.fhir.faults()


def idle_worker(site: BenchSite, seconds: float) -> None:
    """Count the requests of an idle worker."""
    with counted(site.api) as (between, api):
        log = site.place / "worker.log"
        worker = site.start(
            sys.executable, "-m", "prefect", "worker", "start", "--pool", "bench", "--type", "process", api=api,
            log=log,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 90
            while b"started!" not in log.read_bytes() and time.monotonic() < deadline:
                time.sleep(0.2)
            before = len(between.passed)
            time.sleep(seconds)
            site.show("requests a minute, idle worker", f"{(len(between.passed) - before) / seconds * 60:.0f}")
        finally:
            worker.send_signal(signal.SIGINT)
            worker.wait(60)


def finished(site: BenchSite, count: int) -> None:
    """Put ``count`` finished jobs into the database: copies of a real one's record."""
    with httpx.Client(base_url=site.api, headers=dict(site.address.headers), trust_env=False, timeout=60) as client:

        def run_query(method: str, path: str, body: object) -> Any:
            for _ in range(30):
                answer = client.request(method, path, json=body)
                if answer.status_code != 503:
                    break
                time.sleep(0.2)
            answer.raise_for_status()
            return answer.json() if answer.content else None

        (real,) = run_query("POST", "/flow_runs/filter", {"limit": 1, "sort": "END_TIME_DESC"})
        known = run_query("POST", "/flow_runs/count", {})
        for number in range(count - known):
            body = {
                "flow_id": real["flow_id"], "name": f"finished {number}", "parameters": real["parameters"],
                "state": {"type": "COMPLETED", "name": "Completed"},
            }  # fmt: skip
            run = run_query("POST", "/flow_runs/", body)["id"]
            labels = real["labels"] | {"job.directory": str(site.place / "jobs" / run)}
            run_query("PATCH", f"/flow_runs/{run}/labels", {k: v for k, v in labels.items() if k.startswith("job.")})
            run_query("POST", "/artifacts/", {"flow_run_id": run, "type": "markdown", "data": "x" * 3000})
            for name in FILES:
                file = site.place / "jobs" / run / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("x")
    for figure, arguments in (
        ("job list, N jobs", ("list", "config.yaml", "--json")),
        ("job prune --dry-run, N jobs", ("prune", "config.yaml", "--older-than", "1s", "--dry-run", "--json")),
    ):
        begun, cpu = time.monotonic(), site.cpu()
        rows = json.loads(site.run("job", *arguments))
        site.show(figure, f"{time.monotonic() - begun:.1f} s", count=len(rows))
        if arguments[0] == "list":
            site.show("server CPU of job list, N jobs", f"{site.cpu() - cpu:.2f} s, limit 1 s", count=len(rows))
    begun = time.monotonic()
    out = site.run("job", "prune", "config.yaml", "--older-than", "1s")
    site.show("job prune, N jobs", f"{time.monotonic() - begun:.1f} s, limit 60 s", count=len(rows))
    tables = ("flow_run", "task_run", "artifact", "artifact_collection", "concurrency_limit_v2")
    left = {table: site.database.ask(f"select count(*) from {table}") for table in tables}
    left["directories"] = str(len([1 for path in (site.place / "jobs").iterdir() if path.name[:1] != "."]))
    site.show("left of N pruned jobs", ", ".join(f"{n} {name}" for name, n in left.items()), count=len(rows))
    assert out.splitlines()[-1].startswith(f"{len(rows)} jobs, ")


@contextlib.contextmanager
def site(place: Path, database: Database) -> Iterator[BenchSite]:
    """Yield a server over ``database`` in ``place``, and a sandbox FHIR server."""
    (place / "home").mkdir()
    kept = dict(os.environ)
    os.environ.update(database.environment)
    try:
        with (
            serve_in_thread(fhir_service(FhirOptions(state=place / "fhir-state"))) as fhir,
            EmbeddedServer(place / "server") as server,
        ):
            address = server.address()
            pid = json.loads((place / "server/.prefect/server.json").read_text())["pid"]
            made = BenchSite(place, address, pid, Fhir(fhir.url), database)
            write_input(place / "data")
            made.configure()
            made.run("pipeline", "start", "config.yaml")  # everything is warm, and the flow is known
            yield made
    finally:
        os.environ.clear()
        os.environ.update(kept)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--jobs", type=int, nargs="*", default=[20, 50], help="how many at once")
    parser.add_argument("--seconds", type=float, default=60, help="how long the job of the figures a minute takes")
    parser.add_argument("--finished", type=int, default=1000, help="how many finished jobs to list")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), help="only this one")


def main(args: argparse.Namespace) -> int:
    """Print the figures; 1 when a job was lost."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # what was started ends too
    lost = 0
    for kind in ("sqlite", "postgresql"):
        if args.database not in {None, kind}:
            continue
        if kind == "postgresql" and shutil.which("initdb") is None:
            print("PostgreSQL is not installed")
            continue
        with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch, contextlib.ExitStack() as stack:
            place = Path(scratch)
            database = sqlite(place / "server") if kind == "sqlite" else stack.enter_context(postgresql())
            print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
            at = stack.enter_context(site(place, database))
            for count in args.jobs:
                lost += at_once(at, count)
            one_job(at, args.seconds)
            idle_worker(at, args.seconds)
            finished(at, args.finished)
    return 1 if lost else 0
