"""A machine dies in each step of a run, and another continues it (4-product.md §4 and §6).

Two workers on one pool, each a machine: they share ``jobs_dir`` and Prefect's API, nothing else. One takes the run; in
the middle of the step it loses its power, worker and run at once. ``pipeline continue`` watches for a sign of life for
one lease; then the other worker goes on. No step that was finished begins again, no file that was
finished is made, fetched or sent again, and the outputs are those of a run that nobody disturbed.

The middle is sure: the service holds the requests that come then, until the machine is dead.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deployments.sandbox.child import start_child
from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.data import ANONYMIZATION_RULES, DATA, DEMO_CRTDL, DEMO_LOOKUP
from deployments.sandbox.fhir.app import FhirOptions, fhir_service
from deployments.sandbox.objectstore import ACCESS_KEY_ID, BUCKET, REGION, SECRET_ACCESS_KEY, start_object_store
from deployments.sandbox.options import SandboxOptions
from flows.engine.api import PrefectApi
from flows.engine.flow_runs import run_deployment
from flows.job.record import JobRecord
from flows.job.running.proof import LeaseTimes
from flows.job.writer import RecordWriter
from tasks.flattening.flattening import FlatteningBounds
from tasks.shared.report import Approval
from tests.conftest import Commands, address_of, wait_until
from tests.e2e.extraction_kill import FILES, QUERY, Extractor, contents, write_hospital
from tests.e2e.machines import WorkerProcess, other_machine, this_machine, two_workers
from tests.e2e.test_kill_campaign import write_input
from tests.peers.bridge import Bridge, bridge
from tests.peers.sandbox import Sandboxed
from tests.peers.server import Raw, Reply, SeenRequest, loopback

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(400)]

TIMES = LeaseTimes(lease=25.0, renew=2.0, retry=1.0, beat=2.0, give_up=18.0, sure=6.0)
"""Less than half of the real ones, which ``test_workers.py`` waits for."""
HELD = 3600.0
"""Seconds for which a service holds a request: longer than any test."""
Json = dict[str, Any]


@dataclass
class WorkerKillTrial:
    """One job, two machines."""

    sluice: Commands
    prefect: PrefectApi
    workers: tuple[WorkerProcess, WorkerProcess]
    deployed: str
    name: str
    job: str = ""
    dead: WorkerProcess | None = None
    died: float = 0.0
    continued: float = 0.0
    finished: dict[Path, tuple[int, int]] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        return self.sluice.cwd / "jobs" / self.job

    @property
    def log(self) -> str:
        path = self.directory / "job.log"
        return path.read_text() if path.exists() else ""

    @property
    def living(self) -> WorkerProcess:
        one, two = self.workers
        return two if self.dead is one else one

    def start(self, **parameters: str) -> None:
        """Start a run for whichever worker picks it up."""
        config = {"config": str(self.sluice.cwd / "config.yaml")}
        self.job = run_deployment(self.prefect, self.deployed, config | parameters)

    def record(self) -> JobRecord:
        run = self.prefect.read_run(self.job)
        assert run is not None
        return JobRecord.of(run)

    def state(self) -> str:
        """As Prefect has it."""
        run = self.prefect.read_run(self.job)
        assert run is not None
        return str(run["state_type"])

    def shown(self) -> str:
        """As a person at the living machine sees it."""
        return str(self.sluice.status(self.job, env=self.living.environment)["state"])

    def reaches(self, condition: Callable[[], bool], seconds: float = 120) -> None:
        """Wait until the run is there; it must not end before."""

        def there() -> bool:
            state = self.state()
            if condition():
                return True
            assert state not in {"FAILED", "CRASHED", "CANCELLED", "COMPLETED"}, self.log
            return False

        wait_until(there, seconds)

    def machine_dies_in(self, step: str, condition: Callable[[], bool]) -> None:
        """Wait until the step is in its middle, and end the machine that runs it."""
        self.reaches(condition)
        (runs,) = (worker for worker in self.workers if worker.runs)
        runs.freeze()
        assert f"{step} begins" in self.log
        assert f"{step} is complete" not in self.log
        assert condition(), "it went on"
        self.finished = {path: facts(path) for path in outputs(self.directory)}
        self.dies(runs)

    def dies(self, machine: WorkerProcess, *, idle: bool = False) -> None:
        machine.die(idle=idle)
        self.dead, self.died = machine, time.monotonic()

    def go_on(self, *words: str, lapses: bool = True) -> None:
        """``pipeline continue`` at the machine that lives; ``lapses``: a lease has to, first, for which it watches."""
        ran = self.sluice("pipeline", "continue", "config.yaml", self.job, *words, env=self.living.environment)
        assert ran.code == 0, ran.err
        assert ("waiting for a sign of life" in ran.err) is lapses, ran.err
        self.continued = time.monotonic() - self.died
        assert not lapses or self.continued >= TIMES.lease

    def completes(self) -> float:
        """Wait for the end at the other machine; the seconds since the death."""
        self.reaches(lambda: self.state() == "COMPLETED")
        assert self.living.submitted_runs >= 1
        for path, before in self.finished.items():
            assert facts(path) == before, f"{path.name} was made again"
        assert [path for path in self.directory.rglob("*") if path.name.endswith((".part", ".partial", ".tmp"))] == []
        return time.monotonic() - self.died

    def begun(self, steps: list[str], killed: str) -> None:
        """Each step began once and was finished once; the one with the kill began twice."""
        for position, name in enumerate(steps, start=1):
            step = f"step {position} {name}"
            assert self.log.count(f"{step} is complete") == 1, step
            assert self.log.count(f"{step} begins") == (2 if name == killed else 1), step

    def print_result(self, repeated: object) -> None:
        """One line for the table of the campaign."""
        seconds = time.monotonic() - self.died
        print(
            f"{self.name}: machine {1 + self.workers.index(self.living)} went on after {self.continued:.0f} s "
            f"complete after {seconds:.0f} s; repeated: {repeated or 'nothing'}",
            flush=True,
        )


def facts(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


OUTPUTS = ("import", "validation", "pseudonymized", "csv")


def outputs(job: Path) -> list[Path]:
    """Return the finished files that the steps made; ledgers grow."""
    found = (path for name in OUTPUTS for path in (job / name).rglob("*") if path.is_file())
    return [path for path in found if not path.name.endswith((".part", ".partial", ".tmp", "ledger.ndjson"))]


def digests(job: Path) -> dict[str, str]:
    """Of the outputs, and of the views that flattening derives from the query whenever it begins."""
    files = [*outputs(job), *(job / "viewdefinitions").glob("*")]
    return {str(path.relative_to(job)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def prefect(prefect_api: str) -> Iterator[PrefectApi]:
    with PrefectApi(address_of(prefect_api)) as api:
        yield api


@contextmanager
def machines(sluice: Commands, prefect: PrefectApi, name: str) -> Iterator[WorkerKillTrial]:
    here = this_machine(sluice.cwd / "this-machine", TIMES)
    there = other_machine(sluice.cwd / "other-machine", TIMES)
    with two_workers(sluice, prefect.address.url, here, there) as (one, two, deployed):
        yield WorkerKillTrial(sluice, prefect, (one, two), deployed, name)


@dataclass
class HeldServices:
    """The sandbox services by name; ``reference`` is the FHIR server of the undisturbed run."""

    urls: dict[str, str]

    def __getitem__(self, name: str) -> Sandboxed:
        return Sandboxed(self.urls[name])

    def hold(self, service: str, *, skip: int, at: str = "head", method: str = "POST", path: str = "*") -> None:
        """Hold the requests after the first ``skip``; at ``applied`` they take effect and are not answered."""
        rule = {"action": "delay", "seconds": HELD, "at": at, "method": method, "path": path, "skip": skip}
        self[service].faults(rule | {"times": None})

    def struck(self, service: str) -> int:
        """Count the requests that were held or slowed."""
        (rule,) = self[service].call_sandbox("GET", "faults").json()
        return int(rule["struck"])

    def slow(self, service: str, seconds: float) -> None:
        """Delay every request."""
        self[service].faults({"action": "delay", "seconds": seconds, "method": "POST", "times": None})

    def release(self) -> None:
        for name in self.urls:
            self[name].faults()

    def count_effects(self, name: str) -> Counter[str]:
        """Count applied and held requests by method and path; of a FHIR transaction, its entries."""
        return self[name].counted(entries=name in ("fhir", "reference"))

    def forget(self) -> None:
        for name in self.urls:
            self[name].forget()

    def held(self, server: str) -> list[bytes]:
        """Return all resources of a FHIR server, without the time of a transfer."""
        lines = self[server].call_sandbox("GET", "resources").content.splitlines()
        documents = [(json.loads(line), line) for line in lines]
        return sorted(
            json.dumps(document | {"date": None}).encode() if document["resourceType"] == "DocumentReference" else line
            for document, line in documents
        )


@pytest.fixture
def services(tmp_path: Path) -> Iterator[HeldServices]:
    with (
        start_child(SandboxOptions(data=DATA)) as sandbox,
        serve_in_thread(fhir_service(FhirOptions(state=tmp_path / "reference-state"))) as reference,
    ):
        yield HeldServices(sandbox.urls | {"reference": reference.url})


def configure(directory: Path, steps: list[str], blocks: Json, *, server: str, name: str = "config.yaml") -> None:
    """Write a configuration; ``server`` is the FHIR server that ``send`` gets unless ``blocks`` name another place."""
    send = {"url": server} | blocks.get("send", {})
    document = {
        "services": blocks | {"send": send},
        "pipeline": {"enabled_steps": steps},
        "retry": {"max_attempts": 2, "initial_backoff_ms": 10, "max_backoff_ms": 20},
        "jobs_dir": "jobs",
        "report": {"enabled": False},  # with stops in these data a release would need a reason; test_release_kill.py
    }
    (directory / name).write_text(yaml.safe_dump(document))


def configure_both(directory: Path, steps: list[str], blocks: Json, services: HeldServices) -> None:
    """A configuration for the job, and ``reference.yaml`` for a run that nothing disturbs."""
    configure(directory, steps, blocks, server=services.urls["reference"], name="reference.yaml")
    configure(directory, steps, blocks, server=services.urls["fhir"])


def undisturbed(sluice: Commands, *words: str | Path) -> Callable[[], Path]:
    """Start a run of ``reference.yaml``, for as long as workers start; to be called for its job's directory."""
    child = sluice.start("pipeline", "start", "reference.yaml", *words)

    def end() -> Path:
        out, err = child.communicate(timeout=240)
        assert child.returncode == 0, err
        return sluice.cwd / "jobs" / out.split()[1]

    return end


@dataclass(frozen=True)
class Middle:
    """Point at which a step is held: the service's request after the first ``skip``, apart from made-up ones.

    What was held may come again, ``each`` times as much as there are requests, and what is made up: ``made_up`` are the
    requests of one look at the service; whoever begins looks before the job, and again in the step.
    """

    step: str
    service: str
    skip: int
    steps: list[str]
    each: int = 1
    together: int = 1
    """Requests that are under way at once: what was answered and not kept yet comes again, too."""
    made_up: int = 0
    refused: int = 0
    """Of those, what the service does not take."""
    at: str = "head"
    method: str = "POST"
    path: str = "*"
    send: Json = field(default_factory=lambda: DIRECT)


DIRECT: Json = {"send_as": "direct_resource_load", "batch_size": 10, "max_concurrent_requests": 1}
TRANSFER: Json = {
    "send_as": "transfer_load",
    "transfer": {"project_identifier": "Test_PROJECT", "organization_identifier": "test.example"},
}
FLATTENED = ["local_import", "flattening", "send"]
MIDDLES = {
    "validation, two of four reports written": Middle(
        "validation", "validation", 2, ["local_import", "validation", "send"], made_up=1
    ),
    "pseudonymizer, five of thirteen Bundles answered": Middle(
        "pseudonymizer", "pseudonymizer", 5, ["local_import", "pseudonymizer", "send"], made_up=2, refused=1
    ),
    "flattening, three batches answered": Middle(
        "flattening", "flattening", 3, FLATTENED, made_up=1, together=FlatteningBounds().groups
    ),
    "send, a transaction is there and not answered": Middle(
        "send", "fhir", 6, ["local_import", "send"], each=10, at="applied"
    ),
    "transfer, the zip is there and not answered": Middle(
        "send", "fhir", 0, FLATTENED, at="applied", method="PUT", path="/fhir/Binary/*", send=TRANSFER
    ),
    "transfer, the document is there and not answered": Middle(
        "send", "fhir", 0, FLATTENED, at="applied", method="PUT", path="/fhir/DocumentReference/*",
        send=TRANSFER,
    ),
}  # fmt: skip


@pytest.mark.parametrize("where", MIDDLES)
def test_a_machine_dies_in_the_middle_of_a_step_that_asks_a_service(
    sluice: Commands, prefect: PrefectApi, tmp_path: Path, services: HeldServices, where: str
) -> None:
    middle = MIDDLES[where]
    blocks: Json = {
        "local_import": {"dir": str(DATA)},
        "validation": {
            "url": services.urls["validation"], "fail_on_error": False, "max_concurrent_requests": 1,
            "bundle_chunk_size_mb": 1,
        },
        "pseudonymizer": {
            "url": services.urls["pseudonymizer"], "anonymization_config": str(ANONYMIZATION_RULES),
            "max_concurrent_requests": 1,
        },
        "flattening": {"service_url": services.urls["flattening"], "lookup_path": str(DEMO_LOOKUP)},
        "send": middle.send,
    }  # fmt: skip
    configure_both(tmp_path, middle.steps, blocks, services)
    crtdl = {"crtdl": str(DEMO_CRTDL)} if "flattening" in middle.steps else {}
    reference = undisturbed(sluice, *crtdl.values())
    with machines(sluice, prefect, where) as trial:
        whole = reference()
        name = "reference" if middle.service == "fhir" else middle.service
        expected = services.count_effects(name)
        services.forget()
        skip = middle.skip + 2 * middle.made_up
        services.hold(middle.service, skip=skip, at=middle.at, method=middle.method, path=middle.path)
        trial.start(**crtdl)
        position = middle.steps.index(middle.step) + 1

        trial.machine_dies_in(f"step {position} {middle.step}", lambda: services.struck(middle.service) > 0)
        again = 2 * (middle.made_up - middle.refused)
        may_be_repeated = middle.each * max(services.struck(middle.service), middle.together) + again
        services.release()
        trial.go_on()
        trial.completes()
    repeated = services.count_effects(middle.service) - expected
    trial.print_result(dict(repeated))
    assert repeated.total() <= may_be_repeated
    assert expected - services.count_effects(middle.service) == Counter()
    trial.begun(middle.steps, middle.step)
    assert digests(trial.directory) == digests(whole)
    assert services.held("fhir") == services.held("reference")


def test_a_machine_dies_in_the_middle_of_an_import_from_a_directory(
    sluice: Commands, prefect: PrefectApi, tmp_path: Path, services: HeldServices
) -> None:
    """Nothing can hold a directory: there are more files than can be read before the first is noticed."""
    steps = ["local_import", "send"]
    write_input(tmp_path / "data", files=1500, observations=2)
    blocks: Json = {"local_import": {"dir": "data"}, "send": DIRECT | {"batch_size": 1000}}
    configure_both(tmp_path, steps, blocks, services)
    reference = undisturbed(sluice)
    with machines(sluice, prefect, "local_import") as trial:
        whole = reference()
        trial.start()
        trial.machine_dies_in("step 1 local_import", lambda: 100 < len(outputs(trial.directory)) < 1501)
        trial.name += f", {len(trial.finished)} of 1501 files imported"
        trial.go_on()
        trial.completes()
    trial.print_result("")
    trial.begun(steps, "local_import")
    assert digests(trial.directory) == digests(whole)
    assert services.held("fhir") == services.held("reference")


def test_a_machine_dies_in_the_middle_of_an_import_from_urls(
    sluice: Commands, prefect: PrefectApi, tmp_path: Path, services: HeldServices
) -> None:
    steps = ["http_import", "send"]
    write_input(tmp_path / "data", files=9, observations=2)
    bodies = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    fetched: Counter[str] = Counter()
    stalling = False

    def answer(seen: SeenRequest) -> Reply | Raw:
        name = seen.target.rpartition("/")[2]
        reply = Reply(200, bodies[name], {"Content-Type": "application/fhir+ndjson"})
        if "ndjson" not in seen.headers.get("accept", ""):
            return reply  # the preflight looks whether it is there
        fetched[name] += 1
        if stalling and fetched.total() > 5:
            whole = reply.render("GET")
            return Raw(whole[: len(whole) - len(bodies[name]) // 2], then="stall")
        return reply

    with loopback(answer) as server:
        urls = [f"{server.url}/{name}" for name in sorted(bodies)]
        blocks: Json = {"http_import": {"urls": urls}, "send": DIRECT}
        configure_both(tmp_path, steps, blocks, services)
        reference = undisturbed(sluice)
        with machines(sluice, prefect, "http_import") as trial:
            whole = reference()
            once = Counter(fetched)
            fetched.clear()
            stalling = True
            trial.start()
            trial.machine_dies_in("step 1 http_import", lambda: len(outputs(trial.directory)) == 5)
            trial.name += f", {len(trial.finished)} of 10 files fetched, {fetched.total() - 5} under way"
            stalling = False
            trial.go_on()
            trial.completes()
    repeated = fetched - once
    trial.print_result(dict(repeated))
    assert not {path.name.removesuffix(".zst") for path in trial.finished} & set(repeated)
    assert max(repeated.values()) == 1
    trial.begun(steps, "http_import")
    assert digests(trial.directory) == digests(whole)
    assert services.held("fhir") == services.held("reference")


def test_a_machine_dies_in_the_middle_of_an_upload_to_a_bucket(
    sluice: Commands, prefect: PrefectApi, tmp_path: Path, services: HeldServices
) -> None:
    """The bridge between the step and the store holds what comes after the second object."""
    with start_object_store() as store, bridge(store.url) as between:
        send: Json = {
            "send_as": "s3_upload",
            "s3": {
                "bucket": BUCKET, "region": REGION, "access_key_id": ACCESS_KEY_ID, "use_path_style": True,
                "secret_access_key": SECRET_ACCESS_KEY, "endpoint": between.url,
            },
        }  # fmt: skip
        flattening = {"service_url": services.urls["flattening"], "lookup_path": str(DEMO_LOOKUP)}
        blocks: Json = {"local_import": {"dir": str(DATA)}, "flattening": flattening, "send": send}
        configure_both(tmp_path, FLATTENED, blocks, services)
        reference = undisturbed(sluice, DEMO_CRTDL)
        with machines(sluice, prefect, "s3") as trial:
            whole = reference()
            objects = store.objects(prefix=whole.name)
            between.hold("PUT", after=2)
            trial.start(crtdl=str(DEMO_CRTDL))
            trial.machine_dies_in("step 3 send", lambda: between.held > 0 and put(between, trial.job).total() >= 2)
            there = store.objects(prefix=trial.job)
            trial.name += f", {len(there)} of {len(objects)} objects there, {between.held} on their way"
            between.release()
            trial.go_on()
            trial.completes()
        again = store.objects(prefix=trial.job)
        repeated = Counter({key: count - 1 for key, count in put(between, trial.job).items() if count > 1})
        trial.print_result(dict(repeated))
        assert not repeated.keys() & there.keys()
        assert {key.partition("/")[2]: (one.size, one.sha256) for key, one in again.items()} == {
            key.partition("/")[2]: (one.size, one.sha256) for key, one in objects.items()
        }
    trial.begun(FLATTENED, "send")
    assert digests(trial.directory) == digests(whole)


def put(between: Bridge, job: str) -> Counter[str]:
    """Count the puts that reached the store, by object of a job."""
    paths = (path.removeprefix(f"/{BUCKET}/") for method, path in between.passed if method == "PUT")
    return Counter(path for path in paths if path.startswith(job))


# --- the extraction of one machine, continued on another ------------------------------------------------------------


@pytest.fixture
def hospital(tmp_path: Path) -> Iterator[HeldServices]:
    """Yield an extraction server with a result of ``FILES`` files, and a FHIR server."""
    made = write_hospital(tmp_path / "hospital", 3)
    settings = {"batchsize": str(made.per_batch), "batch_delay": "0.3", "maxconcurrency": "1"}
    (tmp_path / "query.json").write_text(json.dumps(QUERY))
    with start_child(SandboxOptions(data=made.directory, settings=settings)) as sandbox:
        extractor = {
            "base_url": sandbox.urls["extraction"], "polling_interval": "1s", "max_polling_interval": "1s",
            "file_ready_interval": "50ms",
        }  # fmt: skip
        blocks = {"extractor": extractor, "send": DIRECT | {"batch_size": 1000}}
        configure(tmp_path, ["extractor", "send"], blocks, server=sandbox.urls["fhir"])
        yield HeldServices(sandbox.urls)


def ends_with_one_extraction(trial: WorkerKillTrial, server: Extractor, services: HeldServices) -> Counter[str]:
    """One submission in all; the files are the server's; the step after it began once. How often each was fetched."""
    fetched = server.fetched()
    assert [one["status"] for one in server.submissions()][1:] == []
    (extraction,) = server.tasks()
    assert trial.record().extraction.job_id in {extraction, None}
    trial.begun(["extractor", "send"], "extractor")
    assert contents(trial.directory / "import") == server.files(extraction)
    steps = trial.record().steps
    assert steps[1].resources_in == steps[1].resources_out
    assert len(services.held("fhir")) == steps[1].resources_out
    return fetched


def polls(server: Extractor) -> int:
    return sum("/__status/" in one["path"] for one in server.requests())


def test_a_machine_dies_when_its_submission_was_taken_and_not_answered(
    sluice: Commands, prefect: PrefectApi, tmp_path: Path, hospital: HeldServices
) -> None:
    """The other machine finds the server's one new job, waits for it, and uses it if its query is ours."""
    server = Extractor(hospital.urls["extraction"])
    hospital.hold("extraction", skip=0, at="applied", path="/fhir/$extract-data")
    with machines(sluice, prefect, "extractor, submitted and not answered") as trial:
        trial.start(crtdl=str(tmp_path / "query.json"))
        trial.machine_dies_in("step 1 extractor", lambda: len(server.tasks()) == 1)
        assert trial.record().extraction.job_id is None
        hospital.release()
        trial.go_on()
        trial.completes()
    trial.print_result("")
    assert set(ends_with_one_extraction(trial, server, hospital).values()) == {1}


def test_a_machine_dies_while_the_extraction_runs_and_is_held_back_by_a_person(
    sluice: Commands, prefect: PrefectApi, tmp_path: Path, hospital: HeldServices
) -> None:
    """``extraction pause`` and ``extraction resume`` from the machine that lives are for the same job."""
    server = Extractor(hospital.urls["extraction"])
    with machines(sluice, prefect, "extractor, polling") as trial:
        trial.start(crtdl=str(tmp_path / "query.json"))
        trial.reaches(lambda: trial.record().extraction.job_id is not None and polls(server) > 0)
        extraction = str(trial.record().extraction.job_id)
        paused = sluice("extraction", "pause", "config.yaml", extraction)
        assert paused.code == 0, paused.err
        trial.machine_dies_in("step 1 extractor", lambda: polls(server) > 1)
        before = polls(server)
        trial.go_on()
        trial.reaches(lambda: polls(server) > before)
        assert not outputs(trial.directory)
        resumed = sluice("extraction", "resume", "config.yaml", extraction, env=trial.living.environment)
        assert resumed.code == 0, resumed.err
        trial.completes()
    trial.print_result("")
    assert trial.record().extraction.job_id == extraction
    assert set(ends_with_one_extraction(trial, server, hospital).values()) == {1}


@pytest.mark.parametrize("by_hand", [False, True], ids=["submitted by the run", "a result that is complete"])
def test_a_machine_dies_while_result_files_are_fetched(
    sluice: Commands, prefect: PrefectApi, tmp_path: Path, hospital: HeldServices, by_hand: bool
) -> None:
    server = Extractor(hospital.urls["extraction"])
    asks = {"crtdl": str(tmp_path / "query.json")}
    if by_hand:
        asks = {"input": submitted(server, tmp_path / "query.json")}
    hospital.hold("extraction", skip=4, method="GET", path="/output/*.ndjson")
    with machines(sluice, prefect, f"extractor, download{' of a given result' if by_hand else ''}") as trial:
        trial.start(**asks)
        trial.machine_dies_in("step 1 extractor", lambda: len(outputs(trial.directory)) == 4)
        complete = {path.name.removesuffix(".zst") for path in trial.finished}
        under_way = server.fetched().total() - 4
        trial.name += f", 4 of {FILES} files fetched, {under_way} under way"
        hospital.release()
        trial.go_on()
        trial.completes()
    fetched = ends_with_one_extraction(trial, server, hospital)
    trial.print_result(f"{fetched.total() - FILES} downloads that were under way")
    assert {fetched[name] for name in complete} == {1}
    assert fetched.total() == FILES + under_way


def submitted(server: Extractor, query: Path) -> str:
    """Submit and complete an extraction of another client; return its status URL."""
    import base64

    value = {"name": "crtdl", "valueBase64Binary": base64.b64encode(query.read_bytes()).decode()}
    body = {"resourceType": "Parameters", "parameter": [value]}
    answer = httpx.post(f"{server.url}/fhir/$extract-data", json=body, trust_env=False, timeout=60).raise_for_status()
    url = answer.headers["content-location"]
    wait_until(lambda: httpx.get(url, trust_env=False, timeout=60).status_code == 200, 60)
    return str(url)


# --- a wait ---------------------------------------------------------------------------------------------------------


@contextmanager
def parked(sluice: Commands, prefect: PrefectApi, services: HeldServices, name: str) -> Iterator[WorkerKillTrial]:
    """A run of local_import → wait → send that waits; afterwards it is complete, decided once, and nothing twice."""
    blocks: Json = {"local_import": {"dir": str(DATA)}, "send": DIRECT}
    configure(sluice.cwd, ["local_import", "send"], blocks, server=services.urls["reference"], name="reference.yaml")
    configure(sluice.cwd, ["local_import", "wait", "send"], blocks, server=services.urls["fhir"])
    reference = undisturbed(sluice)
    with machines(sluice, prefect, f"wait, {name}") as trial:
        whole = reference()
        expected = services.count_effects("reference")
        trial.start()
        trial.reaches(lambda: trial.state() == "PAUSED")
        wait_until(lambda: not any(worker.runs for worker in trial.workers), 60)
        trial.finished = {path: facts(path) for path in outputs(trial.directory)}
        yield trial
        trial.completes()
    trial.print_result("")
    assert trial.log.count("step 1 local_import begins") == 1
    assert trial.log.count("step 2 wait is complete") == 1
    assert trial.log.count("step 3 send begins") == 1
    assert services.count_effects("fhir") == expected
    assert digests(trial.directory) == digests(whole)
    assert services.held("fhir") == services.held("reference")
    assert trial.record().approvals[2].approved
    events = [json.loads(line) for line in (trial.directory / "events.ndjson").read_text().splitlines()]
    assert sum(event.get("event") == "wait" and event.get("state") == "asked" for event in events) == 1, events


def parker(trial: WorkerKillTrial) -> WorkerProcess:
    """Return the machine whose run parked itself."""
    (found,) = (worker for worker in trial.workers if worker.submitted_runs)
    return found


def test_a_parked_run_of_a_dead_machine_continues_elsewhere_when_approved(
    sluice: Commands, prefect: PrefectApi, services: HeldServices
) -> None:
    with parked(sluice, prefect, services, "parked") as trial:
        trial.dies(parker(trial), idle=True)
        assert trial.shown() == "waiting"
        trial.go_on("--approve", "--comment", "looked at", "--despite", "made up", lapses=False)
    assert trial.record().approvals[2].comment == "looked at"


def test_a_parked_run_of_a_dead_machine_continues_elsewhere_when_approved_in_the_ui(
    sluice: Commands, prefect: PrefectApi, services: HeldServices
) -> None:
    with parked(sluice, prefect, services, "parked, approved in the UI") as trial:
        trial.dies(parker(trial), idle=True)
        answer = {"decision": "release", "by": "anna", "comment": "looked at"}
        trial.prefect.request("POST", f"/flow_runs/{trial.job}/resume", {"run_input": answer})
    assert trial.record().approvals[2].comment == "looked at"


def test_a_command_that_dies_between_the_decision_and_the_resumption_has_decided(
    sluice: Commands, prefect: PrefectApi, services: HeldServices
) -> None:
    """The record has the decision and the run is parked still, as such a command leaves it."""
    with parked(sluice, prefect, services, "decided, not resumed") as trial:
        trial.dies(parker(trial), idle=True)
        decision = Approval(approved=True, by="anna", files=trial.record().seen[2])
        RecordWriter(trial.prefect, trial.job).approve(2, decision)
        trial.go_on(lapses=False)
    assert trial.record().approvals[2].by == "anna"


def test_the_machine_that_took_an_approved_run_up_dies_before_it_has_begun(
    sluice: Commands, prefect: PrefectApi, services: HeldServices
) -> None:
    with parked(sluice, prefect, services, "approved, taken up") as trial:
        approved = sluice("pipeline", "continue", "config.yaml", trial.job, "--approve", "--despite", "made up")
        assert approved.code == 0, approved.err
        wait_until(lambda: any(worker.runs for worker in trial.workers), 60)
        (takes,) = (worker for worker in trial.workers if worker.runs)
        takes.freeze()
        assert trial.state() == "PENDING"
        trial.dies(takes)
        print("shown as", trial.shown())
        trial.go_on(lapses=False)


def test_the_machine_that_acts_on_an_approval_dies(
    sluice: Commands, prefect: PrefectApi, services: HeldServices
) -> None:
    with parked(sluice, prefect, services, "approved, about to act") as trial:
        approved = sluice("pipeline", "continue", "config.yaml", trial.job, "--approve", "--despite", "made up")
        assert approved.code == 0, approved.err
        trial.reaches(lambda: bool((trial.directory / ".lock").read_bytes()) and trial.state() == "RUNNING")
        (runs,) = (worker for worker in trial.workers if worker.runs)
        runs.freeze()
        assert "step 3 send begins" not in trial.log
        trial.dies(runs)
        trial.go_on()


# --- a machine that was only asleep ---------------------------------------------------------------------------------


@pytest.mark.parametrize("complete", [False, True], ids=["while the other works", "when the other is done"])
def test_a_machine_that_wakes_up_after_its_lease_ends_by_itself_and_harms_nothing(
    sluice: Commands, prefect: PrefectApi, tmp_path: Path, services: HeldServices, complete: bool
) -> None:
    steps = ["local_import", "send"]
    blocks: Json = {"local_import": {"dir": str(DATA)}, "send": DIRECT}
    configure_both(tmp_path, steps, blocks, services)
    reference = undisturbed(sluice)
    with machines(sluice, prefect, f"asleep, awake {'when the other is done' if complete else 'meanwhile'}") as trial:
        whole = reference()
        services.hold("fhir", skip=6, at="applied")
        trial.start()
        trial.reaches(lambda: services.struck("fhir") > 0)
        (asleep,) = (worker for worker in trial.workers if worker.runs)
        asleep.freeze()
        trial.dead, trial.died = asleep, time.monotonic()
        services.slow("fhir", 0.0 if complete else 1.0)
        trial.go_on()
        trial.reaches((lambda: trial.state() == "COMPLETED") if complete else (lambda: services.struck("fhir") > 3))
        asleep.thaw()
        wait_until(lambda: not asleep.runs, 60)
        if not complete:
            assert trial.living.runs, "it was too late"
            assert trial.state() == "RUNNING"
        trial.completes()
        wait_until(lambda: b"error[job-lease-lost]" in asleep.log.read_bytes(), 60)
        assert trial.shown() == "completed"
    trial.print_result("")
    trial.begun(steps, "send")
    assert digests(trial.directory) == digests(whole)
    assert services.held("fhir") == services.held("reference")
