"""A delivery that is divided among child runs sends what it sends undivided (6-scale-out.md)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tasks.send import comparison
from tasks.send.s3 import upload
from tasks.send.s3.upload import MIB
from tasks.send.step import STEP
from tasks.shared.errors import DataError
from tasks.shared.files.ledger import Ledger
from tasks.shared.report import StepReport
from tasks.shared.shards import plan_division
from tasks.shared.step import StepContext
from tests.peers.fhir import DirectLoadJob, bundle, serving
from tests.peers.job import StepJob, resource
from tests.peers.job import configuration as job_configuration
from tests.peers.s3 import SMALL, S3Job, ScriptedStore, configuration, scripted
from tests.peers.shards import KilledError, run_divided

NAMES = ("core.ndjson", "a.ndjson", "b.ndjson", "csv/c.csv", "d.ndjson")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "Sizes", lambda: SMALL)
    monkeypatch.setattr("tasks.shared.files.inventory._SETTLED", 0)


def filled(directory: Path) -> S3Job:
    """Return a job with a core file, small ones, one of them in a folder, and one that goes in parts."""
    job = S3Job(directory)
    for name in NAMES:
        job.write(name, f"{name}\n".encode())
    job.write("large.ndjson", random.Random(1).randbytes(11 * MIB))
    return job


def uploading(job: S3Job, store: ScriptedStore, **more: Any) -> StepContext:
    return job.prepare(configuration(store.url), position=2, **more)


def reported(report: StepReport) -> dict[str, Any]:
    return report.model_copy(update={"content": None}).result()


def written(store: ScriptedStore) -> list[str]:
    """Return the requests that change the bucket, in no order."""
    return sorted(f"{one.name} {one.key} {one.part}" for one in store.asked if one.seen.method in {"PUT", "POST"})


def listed(job: S3Job) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(job.manifest.read_text())
    return [{**entry, "time": ""} for entry in found]


def left_of(job: S3Job) -> list[str]:
    """Return the files that are left of the step's own, without those of its shards."""
    return sorted(
        path.relative_to(job.directory).as_posix()
        for folder in ("send", ".results")
        for path in (job.directory / folder).rglob("*")
        if path.is_file() and not path.relative_to(job.directory).match(".results/2/[0-9]*/**/*")
    )


@pytest.fixture(scope="module")
def undivided(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[str], list[dict[str, Any]], dict[str, Any]]:
    """Return the objects, requests, manifest and report of an undivided upload."""
    job = filled(tmp_path_factory.mktemp("undivided"))
    with pytest.MonkeyPatch.context() as patch, scripted() as store:
        patch.setattr(upload, "Sizes", lambda: SMALL)
        report = reported(STEP.run(uploading(job, store)))
        return store.objects, written(store), listed(job), report


@pytest.mark.parametrize(("shards", "order"), [(2, (1, 0)), (3, (0, 2, 1, 2)), (8, None)])
def test_bucket_manifest_and_report_are_those_of_an_undivided_run(
    tmp_path: Path, undivided: Any, shards: int, order: tuple[int, ...] | None
) -> None:
    objects, requests, manifest, report = undivided
    job = filled(tmp_path)
    with scripted() as store:
        found = reported(run_divided(STEP, uploading(job, store), shards, order=order))
        assert store.objects.keys() == objects.keys()
        assert all(store.objects[key][0] == body for key, (body, _) in objects.items())
        assert written(store) == requests
        assert store.of("PutObject")[0].key == "job-1/core.ndjson"
        assert store.begun == {}
    assert listed(job) == manifest
    assert found == report
    assert left_of(job) == [".results/2/shards.json", "send/upload_manifest.json"]


def test_a_shard_uploads_no_more_files_at_once_than_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    real = upload.for_each

    def counted(*arguments: Any, **more: Any) -> None:
        threads.append(more["threads"])
        real(*arguments, **more)

    monkeypatch.setattr(upload, "for_each", counted)
    with scripted() as store:
        run_divided(STEP, uploading(filled(tmp_path), store), 3)
    assert threads == [4, 1, 1, 1, 1, 4]  # one of them for the parts of the large file


def test_an_object_that_is_there_is_not_sent_by_a_shard_and_counted_as_undivided(tmp_path: Path) -> None:
    job = filled(tmp_path)
    with scripted() as store:
        STEP.run(uploading(job, store))
        store.asked.clear()
        report = run_divided(STEP, uploading(job, store), 3)
        assert written(store) == []
    assert (report.details["uploaded"], report.details["already_there"]) == (0, 6)


@pytest.mark.parametrize("whole_keys", [False, True])
def test_a_shard_leaves_the_unfinished_uploads_of_others_alone(tmp_path: Path, whole_keys: bool) -> None:
    job = filled(tmp_path)
    with scripted(whole_keys=whole_keys) as store:
        context = uploading(job, store)
        # Of another shard, whose key begins as that of ours, and of a killed attempt of our own.
        store.begun |= {"other": ("job-1/large.ndjson.2", {}), "own": ("job-1/large.ndjson", {})}
        seen: list[set[str]] = []
        run_divided(STEP, context, 3, between=lambda _: seen.append(set(store.begun)))
        assert all("other" in one for one in seen)
        assert "own" not in seen[-1]
        assert ("other" in store.begun) is whole_keys


@dataclass(frozen=True)
class ShardedDelivery:
    """A job that delivers in shards."""

    job: StepJob
    context: StepContext
    sent: Callable[[], str]
    """What the receiver got, in one text."""


@pytest.fixture(params=["direct_resource_load", "s3_upload"])
def delivery(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ShardedDelivery]:
    if request.param == "s3_upload":
        upload_job = filled(tmp_path)
        with scripted() as store:
            yield ShardedDelivery(upload_job, uploading(upload_job, store), lambda: " ".join(store.objects))
        return
    job = DirectLoadJob(tmp_path)
    job.write("core.ndjson", resource("Organization", "core.ndjson"))
    for name in NAMES[1:3]:
        job.write(name, bundle(resource("Patient", name)))
    with serving() as server:
        config = job_configuration({"send": {"send_as": request.param, "url": server.url}})
        yield ShardedDelivery(job, job.prepare(config, position=2), lambda: " ".join(server.stored))


def test_the_input_is_checked_once_and_by_each_shard_its_own_files(
    monkeypatch: pytest.MonkeyPatch, delivery: ShardedDelivery
) -> None:
    read: list[int] = []
    real: Callable[..., Any] = comparison.take_inventory

    def counted(*arguments: Any, **more: Any) -> Any:
        read.append(0)

        def count(size: int) -> None:
            read[-1] += size

        return real(*arguments, **more | {"read": count})

    monkeypatch.setattr(comparison, "take_inventory", counted)
    run_divided(STEP, delivery.context, 8)
    sizes = [path.stat().st_size for path in delivery.job.input.rglob("*") if path.is_file()]
    assert read[0] == sum(sizes)
    assert sorted(read[1:-1]) == sorted(sizes)  # the core file, and each shard its only file
    assert read[-1] == 0


def test_a_shard_sends_nothing_of_a_file_that_was_changed(delivery: ShardedDelivery) -> None:
    path = delivery.job.input / "b.ndjson"

    def change(index: int) -> None:
        if index == 0:
            path.write_bytes(path.read_bytes().swapcase())

    with pytest.raises(DataError) as caught:
        run_divided(STEP, delivery.context, 8, between=change)
    assert caught.value.reference == "send-input-differs"
    assert "import/b.ndjson" in str(caught.value.context)
    assert "a.ndjson" in delivery.sent()
    assert "b.ndjson" not in delivery.sent().lower()


def test_after_the_shards_a_file_that_was_changed_is_noticed(delivery: ShardedDelivery) -> None:
    path = delivery.job.input / "a.ndjson"

    def change(index: int) -> None:
        if index == 1:
            path.write_bytes(path.read_bytes().swapcase())

    with pytest.raises(DataError) as caught:
        run_divided(STEP, delivery.context, 2, between=change)
    assert caught.value.reference == "send-input-differs"
    assert "import/a.ndjson" in str(caught.value.context)


@pytest.mark.parametrize("at", [0, 1, 4])
def test_killed_while_the_shards_are_put_together_nothing_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undivided: Any, at: int
) -> None:
    _, requests, manifest, report = undivided
    job = filled(tmp_path)
    adopted, real = [0], Ledger.adopt

    def killed(ledger: Ledger, path: Path) -> None:
        adopted[0] += 1
        if adopted[0] == at + 1:
            raise KilledError
        real(ledger, path)

    monkeypatch.setattr(Ledger, "adopt", killed)
    with scripted() as store:
        with pytest.raises(KilledError):
            run_divided(STEP, uploading(job, store), 8)
        assert reported(run_divided(STEP, uploading(job, store), 8)) == report
        assert written(store) == requests
    assert listed(job) == manifest


def test_a_transfer_is_not_divided(tmp_path: Path) -> None:
    job = filled(tmp_path)
    send = {
        "send_as": "transfer_load",
        "url": "http://x.example",
        "transfer": {"project_identifier": "p", "organization_identifier": "o"},
    }
    with scripted() as store:
        config = configuration(store.url).model_copy(
            update={"services": configuration(store.url, more={"send": send}).services}
        )
    assert STEP.splits is not None
    assert plan_division(STEP.splits, job.prepare(config), 4) is None
