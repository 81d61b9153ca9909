"""One job that is killed again and again, as a process, with its worker, or with its machine (4-product.md §4, §6).

A service holds the requests that come at the moment of a kill, so the step is surely in its middle. Afterwards the job
must be what an undisturbed one is: no finished file was made again, and nothing but what was held was requested again.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from deployments.sandbox.objectstore import ObjectStoreChild
from flows.engine.api import PrefectApi
from flows.engine.flow_runs import run_deployment
from flows.job.running.proof import LeaseTimes
from tests.conftest import Commands, address_of, started, wait_until
from tests.e2e.machines import WorkerProcess, freeze, other_machine, this_machine, two_workers
from tests.peers.bridge import Bridge
from tests.peers.sandbox import Sandboxed

TIMES = LeaseTimes(lease=25.0, renew=2.0, retry=1.0, beat=2.0, give_up=18.0, sure=6.0)
"""Less than half of the real ones, which the journey ``directory`` uses."""
HELD = 3600.0
"""Seconds for which a service holds a request: longer than any test."""
UNFINISHED = (".part", ".partial", ".tmp")
OUTPUTS = ("import", "validation", "pseudonymized", "csv")
LOOKS = {"validation": (1, 1), "pseudonymizer": (2, 1), "flattening": (1, 1)}
"""Made-up requests of one look at a service, and how many of them the service takes. Whoever begins looks before the
job, and again in the step."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Moment:
    """A moment of a step: a service holds its requests after the first ``skip``, apart from the made-up ones."""

    step: str
    service: str = ""
    skip: int = 0
    method: str = "POST"
    path: str = "*"
    at: str = "head"
    each: int = 1
    """What a held request counts."""
    together: int = 1
    """Requests that may be answered and not kept yet: they come again, too."""
    at_once: int = 1
    """Requests at once."""
    files: range = range(10**6)
    """Finished files that there must be."""


class HeldServices:
    """Services by name, and bridges to those that hold nothing. ``reference`` is the undisturbed FHIR server."""

    def __init__(self, urls: dict[str, str]) -> None:
        self.urls = urls
        self.bridges: dict[str, Bridge] = {}
        self.store: ObjectStoreChild | None = None

    def __getitem__(self, name: str) -> Sandboxed:
        return Sandboxed(self.urls[name])

    def hold(self, moment: Moment) -> None:
        """Hold what comes at a moment. At ``applied`` a request takes effect and is not answered."""
        if moment.service in self.bridges:
            self.bridges[moment.service].hold(moment.method, after=moment.skip)
        elif moment.service:
            skip = moment.skip + 2 * LOOKS.get(moment.service, (0, 0))[0]
            rule = {"action": "delay", "seconds": HELD, "at": moment.at, "method": moment.method, "path": moment.path}
            self[moment.service].faults(rule | {"skip": skip, "times": None})

    def struck(self, service: str) -> int:
        """Count the requests that are held or slowed."""
        if service in self.bridges:
            return self.bridges[service].held
        (rule,) = self[service].call_sandbox("GET", "faults").json()
        return int(rule["struck"])

    def slow(self, service: str, seconds: float) -> None:
        """Delay every request."""
        self[service].faults({"action": "delay", "seconds": seconds, "method": "POST", "times": None})

    def release(self) -> None:
        for name in self.urls:
            self[name].faults()
        for one in self.bridges.values():
            one.release()
            one.held = 0

    def forget(self) -> None:
        """Forget the requests so far."""
        for name in self.urls:
            self[name].forget()
        for one in self.bridges.values():
            one.passed.clear()

    def effects(self, name: str, method: str) -> Counter[str]:
        """Count what took effect: by path, entries of a transaction, and files whatever their names are."""
        if name in self.bridges:
            return Counter("file" for one, path in self.bridges[name].passed if one == method and "ndjson" in path)
        if name == "extraction":
            seen = [one["path"] for one in self[name].requests() if one["method"] == method]
            return Counter(kind for path in seen for kind in (".ndjson", "$extract-data") if path.endswith(kind))
        return self[name].counted(entries=name in ("fhir", "reference"))

    def stored(self, server: str) -> list[bytes]:
        """Return all resources of a FHIR server, without the time of a transfer."""
        lines = self[server].call_sandbox("GET", "resources").content.splitlines()
        documents = [(json.loads(line), line) for line in lines]
        return sorted(
            json.dumps(document | {"date": None}).encode() if document["resourceType"] == "DocumentReference" else line
            for document, line in documents
        )

    def extractions(self) -> list[str]:
        """Return the ids of the server's extractions, oldest first."""
        jobs = [entry["resource"] for entry in self._get("/fhir/Task").json().get("entry", ())]
        return [str(job["id"]) for job in sorted(jobs, key=lambda job: str(job["authoredOn"]))]

    def submit(self, query: Path) -> str:
        """Submit an extraction as another client does, and return its status URL when it is complete."""
        value = {"name": "crtdl", "valueBase64Binary": base64.b64encode(query.read_bytes()).decode()}
        body = {"resourceType": "Parameters", "parameter": [value]}
        taken = httpx.post(f"{self.urls['extraction']}/fhir/$extract-data", json=body, trust_env=False, timeout=60)
        url = str(taken.raise_for_status().headers["content-location"])
        wait_until(lambda: self._get(url).status_code == 200, 60)
        return url

    def extracted(self) -> dict[str, bytes]:
        """Return the result files of the last extraction, by name."""
        urls = [one["url"] for one in self._get(f"/fhir/__status/{self.extractions()[-1]}").json()["output"]]
        return {url.rpartition("/")[2]: self._get(url).content for url in urls}

    def _get(self, what: str) -> httpx.Response:
        url = self["extraction"].url + what if what.startswith("/") else what
        return httpx.get(url, trust_env=False, timeout=60).raise_for_status()

    def objects(self, job: str) -> dict[str, tuple[int, str]]:
        """Return the size and the SHA-256 of a job's objects in the bucket, by name."""
        found = self.store.objects(prefix=job) if self.store else {}
        return {key.partition("/")[2]: (one.size, one.sha256) for key, one in found.items()}


class ProcessRun:
    """A job that runs as a process of the command line."""

    lapses = 0.0
    """Seconds without a sign of life after which the job goes on."""

    def __init__(self, sluice: Commands) -> None:
        self._sluice = sluice
        self.child: subprocess.Popen[str] | None = None

    def launch(self, command: str, *words: str | Path, env: dict[str, str] | None = None) -> None:
        self.child = self._sluice.start("pipeline", command, "config.yaml", *words, env=env)

    def start(self, *words: str | Path) -> str:
        self.launch("start", *words)
        return self.started()

    def started(self) -> str:
        """Return the id of the job that was started."""
        assert self.child is not None
        return started(self.child)

    def go_on(self, job: str) -> None:
        self.launch("continue", job)

    @property
    def runs(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def freeze(self, job: str) -> None:
        """Stop it where it is. Nobody else gets the job."""
        assert self.child is not None
        freeze(self.child.pid)
        second = self._sluice.here("pipeline", "continue", "config.yaml", job)
        assert (second.code, "error[job-busy]" in second.err) == (4, True), second.err

    def die(self) -> None:
        """``kill -9`` for the process and everything it started."""
        assert self.child is not None
        for pid in freeze(self.child.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.child.communicate(timeout=30)

    def completes(self) -> None:
        assert self.child is not None
        _, err = self.child.communicate(timeout=240)
        assert self.child.returncode == 0, err


class WorkerRun:
    """A job whose runs are taken by one of two workers, on one machine or on two. Those that die are replaced."""

    def __init__(
        self, sluice: Commands, prefect: PrefectApi, lapses: float, workers: list[WorkerProcess], deployed: str
    ) -> None:
        self._sluice = sluice
        self.prefect = prefect
        self.lapses = lapses
        self.workers = workers
        self.deployed = deployed
        self.job = ""
        self.dead = 0

    def start(self, crtdl: str | Path = "", **given: str) -> str:
        parameters = {"config": str(self._sluice.cwd / "config.yaml"), "crtdl": str(crtdl), **given}
        self.job = run_deployment(self.prefect, self.deployed, parameters)
        return self.job

    @property
    def living(self) -> WorkerProcess:
        return next(worker for worker in self.workers if worker.alive)

    def state(self) -> str:
        """Return the state that Prefect has."""
        run = self.prefect.read_run(self.job)
        assert run is not None
        return str(run["state_type"])

    @property
    def runs(self) -> bool:
        return self.state() not in {"FAILED", "CRASHED", "CANCELLED", "COMPLETED"}

    def running(self) -> WorkerProcess:
        """Return the worker that has the run."""
        (found,) = (worker for worker in self.workers if worker.alive and worker.runs)
        return found

    def freeze(self, job: str) -> None:
        del job
        self.running().freeze()

    def die(self) -> None:
        """Let the worker that has the run die with it, once the other one is there."""
        for worker in self.workers:
            worker.ready()
        self.running().die()

    def go_on(self, job: str, *words: str, lapses: bool = True) -> None:
        """``pipeline continue`` beside the living worker. A lease that has to lapse is watched first."""
        here = self.living.environment
        if lapses and not self.lapses:
            wait_until(lambda: self._sluice.status(job)["state"] == "interrupted", 60)
        ran = self._sluice("pipeline", "continue", "config.yaml", job, *words, env=here, timeout=200)
        assert ran.code == 0, ran.err
        assert ("waiting for a sign of life" in ran.err) is (lapses and self.lapses > 0), ran.err
        wait_until(lambda: self.living.runs or not self.runs, 60)
        for at, worker in enumerate(self.workers):  # a machine comes up again
            if not worker.alive:
                assert worker.again is not None
                self.dead += 1
                self.workers[at] = worker.again(f"again-{self.dead}")

    def completes(self) -> None:
        wait_until(lambda: not self.runs, 200)
        assert self.state() == "COMPLETED"


@contextlib.contextmanager
def two_machines(sluice: Commands, api: str, times: LeaseTimes, *, apart: bool = True) -> Iterator[WorkerRun]:
    """Two workers: on two machines that share the jobs directory and Prefect, or (not ``apart``) on this one."""
    here = this_machine(sluice.cwd / "this-machine", times)
    there = other_machine(sluice.cwd / "other-machine", times) if apart else here
    with PrefectApi(address_of(api)) as prefect, two_workers(sluice, api, here, there) as (one, two, deployed):
        run = WorkerRun(sluice, prefect, times.lease if apart else 0.0, [one, two], deployed)
        try:
            yield run
        finally:
            for worker in run.workers:
                worker.stop()


@dataclass
class DisturbedJob:
    """A job, who runs it, and what must stay as it is."""

    jobs: Path
    run: ProcessRun | WorkerRun
    services: HeldServices
    id: str = ""
    finished: dict[Path, tuple[int, int]] = field(default_factory=dict)
    begun: Counter[str] = field(default_factory=Counter)
    """Kills by step; those between steps under no name."""
    again: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests that may come again, by service and method."""
    done: dict[str, int] = field(default_factory=dict)
    """How often each step had begun that was complete before a kill."""

    @property
    def directory(self) -> Path:
        return self.jobs / self.id

    @property
    def log(self) -> str:
        path = self.directory / "job.log"
        return path.read_text() if path.exists() else ""

    def reaches(self, condition: Callable[[], bool]) -> None:
        """Wait for a moment of the job, which must not end before."""

        def there() -> bool:
            runs = self.run.runs
            if condition():
                return True
            assert runs, self.log
            return False

        wait_until(there, 150)

    def dies_at(self, moment: Moment) -> None:
        """Wait until the step is in its middle, and kill whoever runs it."""

        def there() -> bool:
            held = not moment.service or self.services.struck(moment.service) > 0
            return held and len(outputs(self.directory)) in moment.files

        self.reaches(there)
        self.run.freeze(self.id)
        assert there(), "it went on"
        assert f" {moment.step} begins" in self.log
        assert f" {moment.step} is complete" not in self.log
        self.run.die()
        held = self.services.struck(moment.service) if moment.service in self.services.urls else 0
        self.again[moment.service, moment.method] += moment.each * max(held, moment.together)
        self.died(moment.step)
        self.services.release()

    def dies_anywhere(self, moments: Iterable[Moment]) -> None:
        """Note what a kill at any moment leaves: requests of the step that was running may come again."""
        runs = [line.split()[-2] for line in self.log.splitlines() if line.endswith(" begins")][-1:]
        step = "".join(name for name in runs if f" {name} is complete" not in self.log)
        for moment in moments:
            if moment.step == step:
                self.again[moment.service, moment.method] += moment.each * max(moment.at_once, moment.together)
        self.died(step)

    def died(self, step: str) -> None:
        """Note what is finished after a kill in a step, and that nothing finished was made again until then."""
        self.unchanged()
        self.finished |= {path: facts(path) for path in outputs(self.directory)} if self.id else {}
        self.begun[step] += 1
        complete = set(re.findall(r" step \d+ (\w+) is complete", self.log))
        self.done = {name: self.log.count(f" {name} begins") for name in complete} | self.done

    def may_repeat(self, service: str, method: str, steps: list[str]) -> int:
        """Return how many requests may come again: those that were under way, and what looks at the service."""
        asking = max((steps.index(step) for step in steps if step == service), default=-1)
        before = sum(count for step, count in self.begun.items() if not step or steps.index(step) <= asking)
        return self.again[service, method] + LOOKS.get(service, (0, 0))[1] * (before + self.begun[service])

    def unchanged(self) -> None:
        """Assert that finished files were not made again."""
        assert [path.name for path, before in self.finished.items() if facts(path) != before] == []

    def complete(self, steps: Iterable[str], *, exact: bool = True) -> None:
        """Wait for the end. Each step began once, and again after a kill in it; ``exact``: all kills were in a step."""
        self.run.completes()
        self.unchanged()
        assert [path for path in self.directory.rglob("*") if path.name.endswith(UNFINISHED)] == []
        for name in steps:
            begun = self.log.count(f" {name} begins")
            assert self.done.get(name, begun) == begun, f"{name} began again after it was complete"
            assert not exact or begun == 1 + self.begun[name], name
            assert self.log.count(f" {name} is complete") == 1, name


def facts(path: Path) -> tuple[int, int]:
    """Return what changes when a file is made again."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def outputs(job: Path) -> list[Path]:
    """Return the finished files that the steps made; ledgers grow."""
    found = (path for name in OUTPUTS for path in (job / name).rglob("*") if path.is_file())
    return [path for path in found if not path.name.endswith((*UNFINISHED, "ledger.ndjson"))]


def digests(job: Path) -> dict[str, str]:
    """Of the outputs, and of the views that flattening derives from the query whenever it begins."""
    files = [*outputs(job), *(job / "viewdefinitions").glob("*")]
    return {str(path.relative_to(job)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
