"""A machine dies while a run waits for a decision, or only sleeps; another one goes on (4-product.md §4, §6)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from deployments.sandbox.data import DEMO_CRTDL
from flows.job.record import JobRecord
from flows.job.writer import RecordWriter
from tasks.shared.report import Approval
from tests.conftest import Commands, wait_until
from tests.e2e.kills import TIMES, DisturbedJob, Moment, WorkerRun, facts, outputs, two_machines
from tests.e2e.machines import WorkerProcess
from tests.e2e.test_kills import JOURNEYS, Journey, Undisturbed, place
from tests.peers.lines import compressed_contents

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(400)]

DIRECT: dict[str, Any] = {"send_as": "direct_resource_load", "batch_size": 10, "max_concurrent_requests": 1}
RELEASE = ("--approve", "--comment", "looked at", "--despite", "made up")


@dataclass
class Machines(DisturbedJob):
    """A job on two machines."""

    run: WorkerRun
    last: JobRecord | None = None
    """The record of the complete job."""

    def record(self) -> JobRecord:
        run = self.run.prefect.read_run(self.id)
        assert run is not None
        return JobRecord.of(run)


@contextmanager
def machines(sluice: Commands, api: str, steps: list[str]) -> Iterator[Machines]:
    """Yield a job of these steps on two machines, which is like an undisturbed one in the end."""
    journey = Journey(steps, [Moment("send", "fhir")], DIRECT)
    with place(sluice.cwd, journey, files=30) as services:
        whole = Undisturbed(sluice, services, journey)
        with two_machines(sluice, api, TIMES) as run:
            job = Machines(sluice.cwd / "jobs", run, services)
            yield job
            job.complete(["local_import", "send"])
            assert "wait" not in steps or job.log.count("step 2 wait is complete") == 1
            whole.check(sluice, job, journey)
            job.last = job.record()


@contextmanager
def parked(sluice: Commands, api: str) -> Iterator[Machines]:
    """Yield a run that waits; afterwards it is complete, decided once, and nothing was done twice."""
    with machines(sluice, api, ["local_import", "wait", "send"]) as job:
        job.id = job.run.start(DEMO_CRTDL)
        job.reaches(lambda: job.run.state() == "PAUSED")
        wait_until(lambda: not any(worker.runs for worker in job.run.workers), 60)
        job.finished = {path: facts(path) for path in outputs(job.directory)}
        yield job
    assert job.last is not None
    assert job.last.approvals[2].approved
    events = [json.loads(line) for line in (job.directory / "events.ndjson").read_text().splitlines()]
    assert sum(event.get("event") == "wait" and event.get("state") == "asked" for event in events) == 1, events


def parker(job: Machines) -> WorkerProcess:
    """Return the machine whose run parked itself."""
    (found,) = (worker for worker in job.run.workers if worker.submitted_runs)
    return found


def test_a_parked_run_of_a_dead_machine_continues_elsewhere_when_approved(sluice: Commands, prefect_api: str) -> None:
    with parked(sluice, prefect_api) as job:
        parker(job).die(idle=True)
        assert sluice.status(job.id, env=job.run.living.environment)["state"] == "waiting"
        job.run.go_on(job.id, *RELEASE, lapses=False)
    assert job.last is not None
    assert job.last.approvals[2].comment == "looked at"


def test_a_parked_run_of_a_dead_machine_continues_elsewhere_when_approved_in_the_ui(
    sluice: Commands, prefect_api: str
) -> None:
    with parked(sluice, prefect_api) as job:
        parker(job).die(idle=True)
        answer = {"decision": "release", "by": "anna", "comment": "looked at"}
        job.run.prefect.request("POST", f"/flow_runs/{job.id}/resume", {"run_input": answer})
    assert job.last is not None
    assert job.last.approvals[2].comment == "looked at"


def test_a_command_that_dies_between_the_decision_and_the_resumption_has_decided(
    sluice: Commands, prefect_api: str
) -> None:
    """The record has the decision and the run is parked still, as such a command leaves it."""
    with parked(sluice, prefect_api) as job:
        parker(job).die(idle=True)
        decision = Approval(approved=True, by="anna", files=job.record().seen[2])
        RecordWriter(job.run.prefect, job.id).approve(2, decision)
        job.run.go_on(job.id, lapses=False)
    assert job.last is not None
    assert job.last.approvals[2].by == "anna"


@pytest.mark.parametrize("acts", [False, True], ids=["before it has begun", "before the next step"])
def test_a_machine_that_took_up_an_approved_run_dies(sluice: Commands, prefect_api: str, acts: bool) -> None:
    with parked(sluice, prefect_api) as job:
        approved = sluice("pipeline", "continue", "config.yaml", job.id, *RELEASE)
        assert approved.code == 0, approved.err
        if acts:
            job.reaches(lambda: bool((job.directory / ".lock").read_bytes()) and job.run.state() == "RUNNING")
        else:
            wait_until(lambda: any(worker.runs for worker in job.run.workers), 60)
        job.run.running().freeze()
        assert job.run.state() == ("RUNNING" if acts else "PENDING")
        assert "step 3 send begins" not in job.log
        job.run.die()
        job.run.go_on(job.id, lapses=acts)


@pytest.mark.parametrize("complete", [False, True], ids=["while the other works", "when the other is done"])
def test_a_machine_that_wakes_up_after_its_lease_ends_by_itself_and_harms_nothing(
    sluice: Commands, prefect_api: str, complete: bool
) -> None:
    with machines(sluice, prefect_api, ["local_import", "send"]) as job:
        services = job.services
        services.hold(Moment("send", "fhir", 6, at="applied"))
        job.id = job.run.start(DEMO_CRTDL)
        job.reaches(lambda: services.struck("fhir") > 0)
        asleep = job.run.running()
        asleep.freeze()
        (awake,) = (worker for worker in job.run.workers if worker is not asleep)
        job.died("send")
        job.again["fhir", "POST"] = 2 * DIRECT["batch_size"]
        services.slow("fhir", 0.0 if complete else 1.0)
        ran = sluice("pipeline", "continue", "config.yaml", job.id, env=awake.environment)
        assert ran.code == 0, ran.err
        job.reaches((lambda: job.run.state() == "COMPLETED") if complete else (lambda: services.struck("fhir") > 3))
        asleep.thaw()
        wait_until(lambda: not asleep.runs, 60)
        if not complete:
            assert awake.runs, "it was too late"
            assert job.run.state() == "RUNNING"
        job.run.completes()
        wait_until(lambda: b"error[job-lease-lost]" in asleep.log.read_bytes(), 60)
        assert sluice.status(job.id, env=awake.environment)["state"] == "completed"


def extracting(sluice: Commands, api: str, stack: ExitStack, batch_delay: float = 0.05) -> Machines:
    """Return a job with an extraction on two machines."""
    services = stack.enter_context(place(sluice.cwd, JOURNEYS["extraction"], batch_delay=batch_delay))
    run = stack.enter_context(two_machines(sluice, api, TIMES))
    return Machines(sluice.cwd / "jobs", run, services)


def test_an_extraction_paused_by_a_person_is_resumed_from_another_machine(sluice: Commands, prefect_api: str) -> None:
    with ExitStack() as stack:
        job = extracting(sluice, prefect_api, stack, batch_delay=1.0)
        moment = Moment("extractor", "extraction", 0, "GET", "/fhir/__status/*", each=0)
        job.services.hold(moment)
        job.id = job.run.start(DEMO_CRTDL)
        job.reaches(lambda: job.services.struck("extraction") > 0)
        (extraction,) = job.services.extractions()
        paused = sluice("extraction", "pause", "config.yaml", extraction)
        assert paused.code == 0, paused.err
        job.dies_at(moment)
        job.run.go_on(job.id)
        resumed = sluice("extraction", "resume", "config.yaml", extraction, env=job.run.living.environment)
        assert resumed.code == 0, resumed.err
        job.complete(["extractor", "send"])
        assert job.services.extractions() == [extraction]
        assert job.record().extraction.job_id == extraction


def test_the_files_of_a_given_result_are_fetched_once(sluice: Commands, prefect_api: str) -> None:
    with ExitStack() as stack:
        job = extracting(sluice, prefect_api, stack)
        given = job.services.submit(DEMO_CRTDL)
        job.services.forget()
        job.services.hold(moment := Moment("extractor", "extraction", 4, "GET", "/output/*.ndjson", files=range(4, 5)))
        job.id = job.run.start(input=given)
        job.dies_at(moment)
        job.run.go_on(job.id)
        job.complete(["extractor", "send"])
        assert job.services.effects("extraction", "POST") == {}
        fetched = job.services.effects("extraction", "GET").total()
        files = job.services.extracted()
        assert compressed_contents(job.directory / "import") == files
        assert fetched <= len(files) + job.again["extraction", "GET"]
