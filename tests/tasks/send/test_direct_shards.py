"""A load that is divided among child runs loads what it loads undivided (6-scale-out.md)."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.send.direct import LoadBounds
from tasks.send.step import STEP
from tasks.shared.errors import ServiceError, SluiceError, TerminalError
from tasks.shared.files.ledger import Ledger
from tasks.shared.shards import plan_division
from tests.peers import job as jobs
from tests.peers.fhir import (
    DirectLoadJob,
    FakeFhir,
    FhirReply,
    bundle,
    hapi_missing,
    observation,
    outcome,
    patient_line,
    resource,
    serving,
)
from tests.peers.job import in_process, printed
from tests.peers.shards import KilledError, run_divided

NAMES = ("a", "b", "c", "d")

CLIENT = """
import sys
from pathlib import Path
from tests.peers.fhir import DirectLoadJob

result = DirectLoadJob(Path(sys.argv[1])).send(sys.argv[2], batch_size=3, shards=3)
print(result.resources_in, result.resources_out)
"""
"""A process of its own, so that it can be killed: directory, URL."""


class ShardedLoad(DirectLoadJob):
    """A load of which the requests are noted by who sends: the parent before, a shard, the parent after."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.bytes_out: int | None = 0
        self.sent: list[list[str]] = []
        """What each of them sent, in its order: ``Type/id``."""

    def load(
        self, server: FakeFhir, shards: int = 4, order: Iterable[int] | None = None, *, run: Any = None, **send: Any
    ) -> dict[str, Any]:
        services = {"send": {"send_as": "direct_resource_load", "url": server.url, "batch_size": 3, **send}}
        context = self.prepare(jobs.configuration(services, attempts=1))
        self.sent.clear()

        def sent(context: Any) -> Any:
            before = len(server.history)
            try:
                return STEP.run(context)
            finally:
                self.sent.append(server.history[before:])

        if shards == 1:
            report = STEP.run(context)
        else:
            report = run_divided(replace(STEP, run=sent), context, shards, order=order)
        self.bytes_out = report.bytes_out
        found = report.model_copy(update={"content": None, "bytes_out": 0}).result()
        found["details"].pop("requests")
        return found


@pytest.fixture
def job(tmp_path: Path) -> ShardedLoad:
    return ShardedLoad(tmp_path / "job")


def fill(job: DirectLoadJob) -> DirectLoadJob:
    """Write a core file, to which every patient refers, and four files of patients of about the same size."""
    job.write("core.ndjson", *[resource("Organization", f"org{n}") for n in range(4)])
    for at, name in enumerate(NAMES):
        lines = [patient_line(10 * at + n, 4) for n in range(4)]
        for line in lines:
            line["entry"][1]["resource"]["performer"] = [{"reference": f"Organization/org{at}"}]
        job.write(f"{name}.ndjson", *lines)
    return job


def integrity(server: FakeFhir) -> Callable[[int, dict[str, Any]], FhirReply | None]:
    """Return a script that refuses references to what is neither stored nor in the same transaction."""

    def script(_: int, content: dict[str, Any]) -> FhirReply | None:
        own = {entry["request"]["url"] for entry in content["entry"]}
        for target in re.findall(r'"reference": "([^"]+)"', json.dumps(content)):
            if target not in own and target not in server.stored:
                return hapi_missing(target)
        return None

    return script


def refusing(key: str) -> Callable[[int, dict[str, Any]], FhirReply | None]:
    def script(_: int, content: dict[str, Any]) -> FhirReply | None:
        there = any(entry["request"]["url"] == key for entry in content["entry"])
        return FhirReply(422, outcome("invariant"), apply=False) if there else None

    return script


def undivided(directory: Path, filled: Callable[[DirectLoadJob], object] = fill) -> tuple[Any, dict[str, Any]]:
    """Return what is stored by an undivided load with one request at a time, and its report."""
    job = ShardedLoad(directory)
    filled(job)
    with serving() as server:
        server.script = integrity(server)
        report = job.load(server, 1, max_concurrent_requests=1)
        return server.stored, report


@pytest.mark.parametrize(("shards", "order"), [(2, (1, 0)), (3, (0, 2, 1, 2)), (8, None)])
def test_what_is_stored_and_reported_is_that_of_an_undivided_load(
    tmp_path: Path, job: ShardedLoad, shards: int, order: tuple[int, ...] | None
) -> None:
    stored, report = undivided(tmp_path / "undivided")
    fill(job)
    with serving() as server:
        server.script = integrity(server)
        assert job.load(server, shards, order) == report
        assert server.stored == stored
        assert set(Counter(server.history).values()) == {1}
        assert server.history[:4] == [f"Organization/org{n}" for n in range(4)]
    assert job.sent[0] == server.history[:4]
    assert job.sent[-1] == []
    left = {path.relative_to(job.directory).as_posix() for path in job.directory.rglob("*") if path.is_file()}
    assert {path for path in left if not path.startswith("import/")} - {
        f".results/1/{shard}/send/ledger.ndjson" for shard in range(4)
    } == {".results/1/shards.json", "send/ledger.ndjson"}


@pytest.mark.parametrize("long", [8 << 20, 300])
def test_a_patient_in_two_files_is_sent_by_no_shard_and_the_last_file_wins(
    tmp_path: Path, job: ShardedLoad, monkeypatch: pytest.MonkeyPatch, long: int
) -> None:
    monkeypatch.setattr("tasks.send.batches._LINE", long)
    monkeypatch.setattr("tasks.send.batches._PART", 200)

    def filled(job: DirectLoadJob) -> None:
        fill(job)
        for version, name in enumerate("adb"):
            twice = [resource("Patient", "twice", v=name), observation("shared", v=name)]
            alone = observation(f"of-{name}", subject={"reference": "Patient/twice"})
            with (job.input / f"{name}.ndjson").open("ab") as file:
                file.write(json.dumps(bundle(*twice, alone, v=version)).encode() + b"\n")

    filled(job)
    stored, report = undivided(tmp_path / "undivided", filled)
    with serving() as server:
        server.script = integrity(server)
        found = job.load(server, order=(3, 2, 1, 0))
        assert server.stored == stored
    ours = {"Patient/twice", "Observation/shared", "Observation/of-a", "Observation/of-b", "Observation/of-d"}
    assert all(ours.isdisjoint(sent) for sent in job.sent[:-1])
    assert set(job.sent[-1]) == ours
    assert json.loads(server.stored["Patient/twice"])["v"] == "d"
    assert (found["resources_in"], found["details"]["types"]) == (report["resources_in"], report["details"]["types"])


def test_other_ids_in_several_files_are_sent_last_and_the_last_file_wins(tmp_path: Path, job: ShardedLoad) -> None:
    def filled(job: DirectLoadJob) -> None:
        job.write("core.ndjson", resource("Medication", "m0", v="core"), resource("Organization", "o"))
        for name in NAMES:
            medications = [resource("Medication", f"m{n}", v=name) for n in range(2)]
            job.write(f"{name}.ndjson", bundle(resource("Patient", name), *medications, observation(f"o-{name}")))

    filled(job)
    stored, report = undivided(tmp_path / "undivided", filled)
    with serving() as server:
        assert job.load(server, order=(3, 1, 2, 0)) == report
        assert server.stored == stored
        assert job.bytes_out == sum(server.sizes)
    shared = {"Medication/m0", "Medication/m1"}
    assert job.sent[0] == ["Medication/m0", "Organization/o"]
    assert all(shared.isdisjoint(sent) for sent in job.sent[1:-1])
    assert set(job.sent[-1]) == shared
    assert [json.loads(server.stored[key])["v"] for key in sorted(shared)] == ["d", "d"]


def test_what_is_no_bundle_of_a_patient_is_sent_last(tmp_path: Path, job: ShardedLoad) -> None:
    def filled(job: DirectLoadJob) -> None:
        fill(job)
        with (job.input / "b.ndjson").open("ab") as file:
            for one in (observation("plain", subject={"reference": "Patient/p0"}), bundle(observation("bundled"))):
                file.write(json.dumps(one).encode() + b"\n")

    filled(job)
    stored, report = undivided(tmp_path / "undivided", filled)
    with serving() as server:
        server.script = integrity(server)
        assert job.load(server) == report
        assert server.stored == stored
    assert set(job.sent[-1]) == {"Observation/plain", "Observation/bundled"}


def test_a_resource_whose_target_is_in_another_file_is_sent_last(tmp_path: Path, job: ShardedLoad) -> None:
    def filled(job: DirectLoadJob) -> None:
        fill(job)
        early = observation("early", focus=[{"reference": "Patient/p30"}])
        with (job.input / "a.ndjson").open("ab") as file:
            file.write(json.dumps(bundle(resource("Patient", "mother"), early)).encode() + b"\n")

    filled(job)
    stored, report = undivided(tmp_path / "undivided", filled)
    with serving() as server:
        server.script = integrity(server)
        found = job.load(server)
        assert server.stored == stored
        assert set(Counter(server.history).values()) == {1}
    assert "Observation/early" in job.sent[-1]
    assert found["details"].pop("deferred") > 0
    report["details"].pop("deferred")
    assert found == report


def test_refused_resources_are_reported_as_by_an_undivided_load(tmp_path: Path, job: ShardedLoad) -> None:
    key, plain = "Observation/p20-o2", ShardedLoad(tmp_path / "undivided")
    caught: list[SluiceError] = []
    stored: list[Any] = []
    for one, shards in ((plain, 1), (job, 4)):
        fill(one)
        first, rest = (one.input / "a.ndjson").read_bytes().split(b"\n", 1)
        one.put("a.ndjson", first + b"\n{\n" + rest)
        with serving(refusing(key)) as server, pytest.raises(TerminalError) as error:
            one.load(server, shards)
        caught.append(error.value)
        stored.append(server.stored)
    assert caught[0].reference == caught[1].reference == "send-refused"
    assert (caught[0].message, caught[0].hint) == (caught[1].message, caught[1].hint)
    assert stored[0] == stored[1]
    assert job.failed() == plain.failed()
    assert not [*(job.directory / ".results").rglob("[0-9]*.json")]


def test_continued_after_a_refusal_only_what_was_refused_is_sent(job: ShardedLoad) -> None:
    fill(job)
    with serving(refusing("Observation/p20-o2")) as server:
        with pytest.raises(TerminalError):
            job.load(server)
        server.script, before = None, len(server.history)
        job.load(server)
        assert server.history[before:] == ["Observation/p20-o2"]


@pytest.mark.parametrize("at", [0, 1, 3])
def test_killed_while_the_ledgers_are_put_together_nothing_is_sent_twice(
    tmp_path: Path, job: ShardedLoad, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    stored, report = undivided(tmp_path / "undivided")
    fill(job)
    adopted, real = [0], Ledger.adopt

    def killed(ledger: Ledger, path: Path) -> None:
        adopted[0] += 1
        if adopted[0] == at + 1:
            raise KilledError
        real(ledger, path)

    monkeypatch.setattr(Ledger, "adopt", killed)
    with serving() as server:
        with pytest.raises(KilledError):
            job.load(server)
        assert job.load(server) == report
        assert server.stored == stored
        assert set(Counter(server.history).values()) == {1}


def test_stopped_among_the_last_resources_the_others_are_sent_once(job: ShardedLoad) -> None:
    for name in NAMES:
        job.write(f"{name}.ndjson", bundle(resource("Patient", name)), *[observation(f"{name}{n}") for n in range(3)])
    with serving(lambda number, _: FhirReply(403, apply=False) if number == 6 else None) as server:
        with pytest.raises(ServiceError):
            job.load(server, max_concurrent_requests=1)
        assert len(job.sent[-1]) == 6
        server.script = None
        assert job.load(server)["resources_out"] == 16
        assert set(Counter(server.history).values()) == {1}


def test_a_load_of_which_too_much_is_refused_gives_up(job: ShardedLoad) -> None:
    fill(job)
    with serving(lambda *_: FhirReply(422, outcome("invariant"), apply=False)) as server:
        with pytest.raises(TerminalError) as caught:
            job.send(server.url, bounds=LoadBounds(max_failures=6), shards=4, batch_size=1)
        # The core file, four shards and the rest gave up after six failures and what was under way; all are 68.
        assert len(server.bundles) < 6 * 14
    assert caught.value.reference == "send-refused"
    assert len(job.failed()) >= 6
    assert not [*(job.directory / ".results").rglob("[0-9]*.json")]


def test_a_shard_makes_no_more_requests_at_once_than_its_share(job: ShardedLoad) -> None:
    fill(job)
    with serving(lambda *_: time.sleep(0.005)) as server:
        job.load(server, max_concurrent_requests=4)  # each shard may make one
        spans = server.spans[2:]  # behind the core file
    assert max(sum(begin <= start < end for begin, end in spans) for start, _ in spans) == 1


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 2, 6, 13, 20, 23])
@pytest.mark.parametrize("applied", [False, True])
def test_kill_9_of_a_shard_or_the_parent_repeats_only_open_requests(tmp_path: Path, at: int, applied: bool) -> None:
    stored, report = undivided(tmp_path / "undivided")
    job = fill(DirectLoadJob(tmp_path / "job"))
    for name in NAMES:  # for the parent, after the shards
        with (job.input / f"{name}.ndjson").open("ab") as file:
            file.writelines(json.dumps(observation(f"{name}{n}")).encode() + b"\n" for n in range(3))
    with serving() as server:
        server.kill_at(at, lambda: in_process(CLIENT, job.directory, server.url), FhirReply(reset=True, apply=applied))
        total = report["resources_in"] + 12
        assert printed(CLIENT, job.directory, server.url).split() == [str(total), str(total)]
        assert {key: body for key, body in server.stored.items() if key in stored} == stored
        assert len(server.stored) == total
        # Two transactions of three resources may have been under way, and two more not yet noted.
        assert len(server.history) - total <= 4 * 3


@pytest.mark.parametrize("files", [
    {"a": [observation("o")], "b": [patient_line(1, 2)]},
    {"a": [bundle(observation("o"))], "b": [patient_line(1, 2)]},
])  # fmt: skip
def test_a_load_is_not_divided_if_a_file_begins_with_something_else(
    job: ShardedLoad, files: dict[str, list[dict[str, Any]]]
) -> None:
    for name, lines in files.items():
        job.write(f"{name}.ndjson", *lines)
    context = job.prepare(jobs.configuration({"send": {"send_as": "direct_resource_load", "url": "http://x.example"}}))
    assert STEP.splits is not None
    assert plan_division(STEP.splits, context, 2) is None
    assert [*context.meter.snapshot().warnings] == [
        "send: the load is not divided, because not every file holds Bundles of patients"
    ]
