"""One table: jobs are killed in the middle of each step, as a process, with the worker, and with the machine.

A worker dies with its run, and another worker on the same machine goes on; a machine dies, and another one that shares
``jobs_dir`` and Prefect's API with it goes on after one lease. ``tests/tasks/test_kills.py`` kills single steps.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.sandbox.child import start_child
from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.data import ANONYMIZATION_RULES, DATA, DEMO_CRTDL, DEMO_LOOKUP
from deployments.sandbox.fhir.app import FhirOptions, fhir_service
from deployments.sandbox.objectstore import ACCESS_KEY_ID, BUCKET, REGION, SECRET_ACCESS_KEY, start_object_store
from deployments.sandbox.options import SandboxOptions
from flows.job.running.proof import LeaseTimes
from tasks.flattening.flattening import FlatteningBounds
from tests.conftest import Commands, processes_with, seed, started, wait_until
from tests.e2e.kills import TIMES, DisturbedJob, HeldServices, Moment, ProcessRun, WorkerRun, digests, two_machines
from tests.peers.bridge import bridge
from tests.peers.lines import compressed_contents
from tests.peers.project import write_input
from tests.peers.server import Reply, SeenRequest, loopback

pytestmark = pytest.mark.timeout(1200)

_PATIENT = re.compile(r'"resourceType":"Patient","id":"([^"]+)"')
SEED = int(os.environ.get("KILL_SEED", "20250907"))
TRIALS = int(os.environ.get("KILL_TRIALS", "10"))
FILES = 1500
PERSONS = {"Umläut", *(one for path in DATA.glob("patients-*") for one in _PATIENT.findall(path.read_text()))}
"""Names and ids of patients of the input."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Journey:
    """A job and the moments at which it is killed, in their order."""

    steps: list[str]
    moments: list[Moment]
    send: Json


JOURNEYS = {
    "extraction": Journey(
        ["extractor", "send"],
        [
            # The submission was taken and not answered; the extraction runs; four files were fetched.
            Moment("extractor", "extraction", path="/fhir/$extract-data", at="applied", each=0),
            Moment("extractor", "extraction", 0, "GET", "/fhir/__status/*", each=0),
            Moment("extractor", "extraction", 4, "GET", "/output/*.ndjson", files=range(4, 5), at_once=4),
            Moment("send", "bucket", 2, "PUT", together=0, at_once=4),
        ],
        {
            "send_as": "s3_upload",
            "s3": {
                "bucket": BUCKET, "region": REGION, "access_key_id": ACCESS_KEY_ID, "use_path_style": True,
                "secret_access_key": SECRET_ACCESS_KEY,
            },
        },
    ),
    "directory": Journey(
        ["local_import", "send"],
        [
            # Nothing can hold a directory: there are more files than can be read before the first is noticed.
            Moment("local_import", files=range(100, FILES + 1)),
            # A transaction is there and not answered.
            Moment("send", "fhir", 2, at="applied", each=1000),
        ],
        {"send_as": "direct_resource_load", "batch_size": 1000, "max_concurrent_requests": 1},
    ),
    "tables": Journey(
        ["http_import", "validation", "pseudonymizer", "flattening", "send"],
        [
            Moment("http_import", "files", 2, "GET", files=range(2, 3), together=0, at_once=4),
            Moment("validation", "validation", 2),
            Moment("pseudonymizer", "pseudonymizer", 5),
            Moment("flattening", "flattening", 2, together=FlatteningBounds().groups),
            # The zip is there and not answered, then the document.
            Moment("send", "fhir", 0, "PUT", "/fhir/Binary/*", "applied"),
            Moment("send", "fhir", 0, "PUT", "/fhir/DocumentReference/*", "applied"),
        ],
        {
            "send_as": "transfer_load",
            "transfer": {"project_identifier": "Test_PROJECT", "organization_identifier": "test.example"},
        },
    ),
}  # fmt: skip


@contextmanager
def place(
    directory: Path, journey: Journey, *, files: int = FILES, batch_delay: float = 0.05
) -> Iterator[HeldServices]:
    """Yield a journey's services, with ``config.yaml`` for its job and ``reference.yaml`` for an undisturbed one."""
    bodies = {path.name: path.read_bytes() for path in DATA.glob("*.ndjson")}

    def answer(seen: SeenRequest) -> Reply:
        return Reply(200, bodies[seen.target.rpartition("/")[2]], {"Content-Type": "application/fhir+ndjson"})

    with ExitStack() as stack:
        sandbox = stack.enter_context(
            start_child(SandboxOptions(settings={"batchsize": "1", "batch_delay": str(batch_delay)}))
        )
        fhir = FhirOptions(state=directory / "reference-state")
        urls = sandbox.urls | {"reference": stack.enter_context(serve_in_thread(fhir_service(fhir))).url}
        services = HeldServices(urls)
        send = copy.deepcopy(journey.send)
        source = stack.enter_context(bridge(stack.enter_context(loopback(answer)).url))
        services.bridges["files"] = source
        if "s3" in send:
            services.store = stack.enter_context(start_object_store())
            services.bridges["bucket"] = stack.enter_context(bridge(services.store.url))
            send["s3"] |= {"endpoint": services.bridges["bucket"].url}
        if "local_import" in journey.steps:
            write_input(directory / "data", patients=files, files=files)
        blocks: Json = {
            "extractor": {
                "base_url": urls["extraction"], "polling_interval": "1s", "max_polling_interval": "1s",
                "file_ready_interval": "50ms",
            },
            "local_import": {"dir": "data"},
            "http_import": {"urls": [f"{source.url}/{name}" for name in sorted(bodies)]},
            "validation": {
                "url": urls["validation"], "fail_on_error": False, "max_concurrent_requests": 1,
                "bundle_chunk_size_mb": 1,
            },
            "pseudonymizer": {
                "url": urls["pseudonymizer"], "anonymization_config": str(ANONYMIZATION_RULES),
                "max_concurrent_requests": 1,
            },
            "flattening": {
                "service_url": urls["flattening"], "lookup_path": str(DEMO_LOOKUP), "formats": ["csv", "parquet"],
            },
        }  # fmt: skip
        for name, server in (("config.yaml", "fhir"), ("reference.yaml", "reference")):
            target = {} if "s3" in send else {"url": urls[server]}
            document = {
                "services": {key: blocks[key] for key in journey.steps if key in blocks} | {"send": send | target},
                "pipeline": {"enabled_steps": [step for step in journey.steps if step != "wait" or server == "fhir"]},
                "retry": {"max_attempts": 2, "initial_backoff_ms": 10, "max_backoff_ms": 20},
                "jobs_dir": "jobs",
                "report": {"enabled": False},  # with stops in these data a release would need a reason
            }
            (directory / name).write_text(yaml.safe_dump(document))
        yield services


def counted(sluice: Commands, job: str, config: str = "config.yaml") -> list[Json]:
    """Return what the status counts of each step, whoever did it, and the bytes that came in."""
    steps = sluice.status(job, config)["steps"]
    keys = ("name", "state", "files", "resources_in", "resources_out")
    told = [{key: step[key] for key in keys} for step in steps if step["name"] != "wait"]
    return [*told, {"bytes_in": steps[0]["bytes_in"]}]


class Undisturbed:
    """Outputs and requests of the job of ``reference.yaml``."""

    def __init__(self, sluice: Commands, services: HeldServices, journey: Journey) -> None:
        child = sluice.start("pipeline", "start", "reference.yaml", DEMO_CRTDL)
        job, began = started(child), time.monotonic()
        _, err = child.communicate(timeout=240)
        assert child.returncode == 0, err
        self.seconds = time.monotonic() - began
        self.job, self.steps = job, counted(sluice, job, "reference.yaml")
        self.files = digests(sluice.cwd / "jobs" / job)
        self.objects = services.objects(job)
        self.stored = services.stored("reference")
        self.effects = {
            (one.service, one.method): services.effects(
                "reference" if one.service == "fhir" else one.service, one.method
            )
            for one in journey.moments
            if one.service
        }
        services.forget()

    def check(self, sluice: Commands, job: DisturbedJob, journey: Journey) -> None:
        """Assert that a complete job is like this one, however often it was killed."""
        for (name, method), expected in self.effects.items():
            effects = job.services.effects(name, method)
            repeated = effects - expected
            print(f"{name}: repeated {dict(repeated) or 'nothing'}", flush=True)
            assert expected - effects == Counter()
            assert repeated.total() <= job.may_repeat(name, method, journey.steps)
        objects = job.services.objects(job.id)
        if "extractor" in journey.steps:  # the server gives its files other names each time
            kept = compressed_contents(job.directory / "import")
            assert kept == job.services.extracted()
            sent = {path.name: path.read_bytes() for path in (job.directory / "import").iterdir()}
            assert objects == {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in sent.items()}
        else:
            assert (digests(job.directory), objects) == (self.files, self.objects)
        assert job.services.stored("fhir") == self.stored
        assert counted(sluice, job.id) == self.steps
        text = (job.directory / "job.log").read_text()
        assert [one for one in PERSONS if one in text] == []


WHO = ("process", "worker", "machine")
OFTEN = {("extraction", "process"), ("tables", "process"), ("directory", "worker")}
"""Together every step, and a worker."""
KILLED = [
    pytest.param(
        name,
        who,
        id=f"{name}, {who}",
        marks=pytest.mark.e2e if (name, who) in OFTEN else pytest.mark.campaign,
    )
    for name in JOURNEYS
    for who in WHO
]


@pytest.mark.parametrize(("name", "who"), KILLED)
def test_a_job_killed_in_the_middle_of_each_step_ends_as_an_undisturbed_one(
    sluice: Commands, prefect_api: str, tmp_path: Path, name: str, who: str
) -> None:
    journey = JOURNEYS[name]
    with ExitStack() as stack:
        services = stack.enter_context(place(tmp_path, journey))
        whole = Undisturbed(sluice, services, journey)
        run: ProcessRun | WorkerRun = ProcessRun(sluice)
        if who != "process":
            times = LeaseTimes() if name == "directory" else TIMES
            run = stack.enter_context(two_machines(sluice, prefect_api, times, apart=who == "machine"))
        job = DisturbedJob(tmp_path / "jobs", run, services)
        for moment in journey.moments:
            services.hold(moment)
            died = time.monotonic()
            if job.id:
                run.go_on(job.id)
                assert time.monotonic() - died >= run.lapses
            else:
                job.id = run.start(DEMO_CRTDL)
            job.dies_at(moment)
        run.go_on(job.id)
        job.complete(journey.steps)
        whole.check(sluice, job, journey)


@pytest.mark.campaign
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", JOURNEYS)
def test_a_job_killed_at_random_moments_ends_as_an_undisturbed_one(
    tmp_path: Path, migrated_database: Path, name: str
) -> None:
    """Kill the processes of the command and its embedded server, once or twice, from the first moment on."""
    journey, draw = JOURNEYS[name], random.Random(SEED)
    whole, hits = None, 0
    for trial in range(TRIALS):
        there = tmp_path / f"trial-{trial}"
        seed(there / "jobs", migrated_database)
        with closing(Commands(there, None)) as sluice, place(there, journey) as services:
            files = {"path": "/output/*.ndjson", "method": "GET"}
            slow = {"action": "slow", "bytes": 2000, "seconds": 0.05, "times": None} | files
            services["extraction"].faults(slow)
            if whole is None:
                whole = Undisturbed(sluice, services, journey)
                print(f"KILL_SEED={SEED}; undisturbed: {whole.seconds:.1f} s")
            cut = {"action": "cut", "skip": draw.randrange(8), "times": 1} | files
            services["extraction"].faults(cut, slow)
            run = ProcessRun(sluice)
            job = DisturbedJob(there / "jobs", run, services, again=Counter({("extraction", "GET"): 1}))
            kills = draw.choice([1, 1, 2])
            for _ in range(kills):
                run.launch(*(["continue", job.id] if job.id else ["start", DEMO_CRTDL]))
                if draw.random() < 0.75:  # else in its start, too
                    job.id = job.id or run.started()
                time.sleep(draw.uniform(0, whole.seconds))
                hits += run.runs
                run.die()
                wait_until(lambda: not processes_with(str(there / "jobs")))  # noqa: B023 - called at once
                listed = json.loads(sluice("job", "list", "config.yaml", "--json").out)
                job.id = job.id or "".join(row["id"] for row in listed if row["id"] != whole.job)
                job.dies_anywhere(journey.moments)
            print(f"{trial}. after the last of {kills} kills: {job.log.splitlines()[-1:]}", flush=True)
            run.launch(*(["continue", job.id] if job.id else ["start", DEMO_CRTDL]))
            job.id = job.id or run.started()
            job.complete(journey.steps, exact=False)
            whole.check(sluice, job, journey)
    assert hits >= TRIALS / 2
