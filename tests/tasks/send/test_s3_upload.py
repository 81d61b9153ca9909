"""``s3_upload`` against an S3 server: what is in the bucket afterwards (document 3 §7)."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.send.s3.upload import MIB, findings
from tasks.send.step import run
from tasks.shared.errors import InputError, SluiceError
from tests.peers.objectstore import BUCKET, ObjectStoreChild, start_object_store
from tests.peers.s3 import SMALL, S3Job, configuration, make_bucket, sha256, unfinished_uploads

NO_DATA = ("NOTES.txt", "README.md", "Thumbs.db", ".DS_Store", "desktop.ini", "a.ndjson~", "#a.ndjson#", "csv/~$b.xlsx")
LINE = b'{"resourceType":"Patient","id":"p"}\n'


@pytest.fixture(scope="module")
def running() -> Iterator[ObjectStoreChild]:
    with start_object_store() as store:
        yield store


@pytest.fixture
def store(running: ObjectStoreChild) -> ObjectStoreChild:
    """Return the store with an empty bucket."""
    client = running.client()
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        for entry in page.get("Contents", ()):
            client.delete_object(Bucket=BUCKET, Key=entry["Key"])
    return running


@pytest.fixture
def job(tmp_path: Path) -> S3Job:
    return S3Job(tmp_path)


@pytest.mark.slow
def test_every_file_becomes_an_object_named_after_job_and_path(store: ObjectStoreChild, job: S3Job) -> None:
    job.write("core.ndjson.zst", b"\x28\xb5\x2f\xfd-not-read")
    job.write("batch-1.ndjson", LINE * 3)
    job.write("csv/Diagnosen (ä).csv", "id,größe\n1,2\n".encode())
    job.write("empty.ndjson", b"")
    result = job.send(store.url)
    objects = store.objects()
    assert set(objects) == {
        "job-1/core.ndjson.zst",
        "job-1/batch-1.ndjson",
        "job-1/csv/Diagnosen (ä).csv",
        "job-1/empty.ndjson",
    }
    for key, found in objects.items():
        source = (job.input / key.removeprefix("job-1/")).read_bytes()
        assert (found.size, found.sha256) == (len(source), sha256(source))
        assert found.metadata == {"sha256": sha256(source)}
        assert found.content_encoding is None
    assert objects["job-1/core.ndjson.zst"].content_type == "application/zstd"
    assert objects["job-1/batch-1.ndjson"].content_type == "application/fhir+ndjson"
    assert objects["job-1/csv/Diagnosen (ä).csv"].content_type == "text/csv; charset=utf-8"
    assert result.files == 4
    assert result.bytes_in == result.bytes_out == sum(found.size for found in objects.values())
    assert result.output is None
    assert result.details["uploaded"] == 4


@pytest.mark.slow
def test_the_prefix_stands_in_front_of_the_job_id(store: ObjectStoreChild, job: S3Job) -> None:
    job.write("a.ndjson", LINE)
    job.send(configuration(store.url, prefix="/projects/x/"))
    assert list(store.objects()) == ["projects/x/job-1/a.ndjson"]


@pytest.mark.parametrize("name", ["a b+c&d=e.csv", "100%.csv", "~_-.'()!*.csv", "a%2Fb.csv", "ü@:;,$?#.csv", "a..csv"])
def test_any_file_name_is_a_key(store: ObjectStoreChild, job: S3Job, name: str) -> None:
    job.write(name, b"x\n")
    job.send(store.url)
    assert [*store.objects()] == [f"job-1/{name}"]


@pytest.mark.slow
def test_sent_twice_leaves_the_bucket_as_after_one_time(store: ObjectStoreChild, job: S3Job) -> None:
    store_name = f"versioned-{os.getpid()}"
    make_bucket(store, store_name)
    config = configuration(store.url, bucket=store_name)
    job.write("a.ndjson", LINE)
    job.write("large.ndjson", os.urandom(7 * MIB))
    first = job.send(config, sizes=SMALL)
    before = store.objects(store_name)
    listed = [{**entry, "time": None} for entry in json.loads(job.manifest.read_text())]
    second = job.send(config, sizes=SMALL)
    assert (first.details["uploaded"], second.details["uploaded"], second.details["already_there"]) == (2, 0, 2)
    assert store.objects(store_name) == before
    assert {found.versions for found in before.values()} == {1}
    assert [{**entry, "time": None} for entry in json.loads(job.manifest.read_text())] == listed


def test_other_bytes_of_the_same_size_are_sent_again(store: ObjectStoreChild, job: S3Job) -> None:
    job.write("a.ndjson", b"one\n")
    job.write("b.ndjson", b"one\n")
    job.send(store.url)
    job.write("a.ndjson", b"two\n")
    assert job.send(store.url).details["uploaded"] == 1
    assert store.objects()["job-1/a.ndjson"].sha256 == sha256(b"two\n")


def test_an_object_that_somebody_else_put_there_is_replaced(store: ObjectStoreChild, job: S3Job) -> None:
    job.write("a.ndjson", LINE)
    client = store.client()
    client.put_object(Bucket=BUCKET, Key="job-1/a.ndjson", Body=LINE)
    job.send(store.url)
    assert store.objects()["job-1/a.ndjson"].metadata == {"sha256": sha256(LINE)}


@pytest.mark.slow
def test_a_file_above_the_threshold_goes_in_parts(store: ObjectStoreChild, job: S3Job) -> None:
    content = os.urandom(11 * MIB + 17)
    job.write("large.ndjson", content)
    job.write("exactly.ndjson", os.urandom(6 * MIB))
    job.send(store.url, sizes=SMALL)
    objects = store.objects()
    assert objects["job-1/large.ndjson"].etag.endswith("-3")
    assert "-" not in objects["job-1/exactly.ndjson"].etag
    assert objects["job-1/large.ndjson"].sha256 == sha256(content)
    assert objects["job-1/large.ndjson"].content_type == "application/fhir+ndjson"
    assert objects["job-1/large.ndjson"].metadata == {"sha256": sha256(content)}
    assert unfinished_uploads(store) == []


def test_what_a_killed_run_of_this_job_left_unfinished_is_aborted(store: ObjectStoreChild, job: S3Job) -> None:
    client = store.client()
    for key in ("job-1/large.ndjson", "job-1/gone.ndjson", "job-10/other.ndjson"):
        client.create_multipart_upload(Bucket=BUCKET, Key=key)
    job.write("a.ndjson", LINE)
    job.send(store.url)
    assert unfinished_uploads(store) == ["job-10/other.ndjson"]
    for upload in client.list_multipart_uploads(Bucket=BUCKET)["Uploads"]:
        client.abort_multipart_upload(Bucket=BUCKET, Key=upload["Key"], UploadId=upload["UploadId"])


def test_the_manifest_lists_key_size_sha256_etag_and_time(store: ObjectStoreChild, job: S3Job) -> None:
    job.write("b.ndjson", LINE)
    job.write("a.ndjson", LINE * 2)
    job.send(store.url)
    listed = json.loads(job.manifest.read_text())
    assert [entry["key"] for entry in listed] == ["job-1/a.ndjson", "job-1/b.ndjson"]
    objects = store.objects()
    for entry in listed:
        found = objects[entry["key"]]
        assert (entry["size"], entry["sha256"], entry["etag"]) == (found.size, found.sha256, found.etag)
        assert entry["time"].startswith("20")
        assert entry["time"].endswith("Z")
        assert set(entry) == {"key", "size", "sha256", "etag", "time"}
    assert stat.S_IMODE(job.manifest.stat().st_mode) == 0o600
    assert stat.S_IMODE(job.manifest.parent.stat().st_mode) == 0o700


def test_hidden_and_unfinished_files_and_what_is_no_data_stay_here(store: ObjectStoreChild, job: S3Job) -> None:
    for name in (".facts.json", "a.ndjson.part", "csv/b.csv.partial", ".cache/x.ndjson", "a.ndjson", *NO_DATA):
        job.write(name, LINE)
    job.send(store.url)
    assert [*store.objects()] == ["job-1/a.ndjson"]


def test_sources_are_only_read(store: ObjectStoreChild, job: S3Job) -> None:
    path = job.write("a.ndjson", LINE)
    path.chmod(0o400)
    before = path.stat()
    job.send(store.url)
    after = path.stat()
    assert (after.st_mtime_ns, after.st_size, after.st_mode, after.st_ino) == (
        before.st_mtime_ns,
        before.st_size,
        before.st_mode,
        before.st_ino,
    )
    assert list(job.input.iterdir()) == [path]


def test_a_key_that_no_store_takes_is_found_before_anything_is_sent(store: ObjectStoreChild, job: S3Job) -> None:
    job.write("a.ndjson", LINE)
    with pytest.raises(InputError) as caught:
        job.send(configuration(store.url, prefix="x" * 1100))
    assert caught.value.reference == "s3-key-too-long"
    assert store.objects() == {}


def test_progress_counts_files_and_bytes_and_requests_are_counted(store: ObjectStoreChild, job: S3Job) -> None:
    job.write("a.ndjson", LINE)
    job.write("large.ndjson", b"x" * (7 * MIB))
    job.send(store.url, sizes=SMALL)
    snapshot = job.context.meter.snapshot()
    assert (snapshot.files, snapshot.files_total) == (2, 2)
    assert snapshot.bytes == snapshot.bytes_total == len(LINE) + 7 * MIB
    # two lists of unfinished uploads; look, upload, look; look, begin, two parts, end, look
    assert (job.context.meter.requests, job.context.meter.retries) == (11, 0)


def test_the_send_step_uploads_when_the_configuration_says_so(store: ObjectStoreChild, job: S3Job) -> None:
    job.write("a.ndjson", LINE)
    run(job.prepare(configuration(store.url)))
    assert [*store.objects()] == ["job-1/a.ndjson"]


def test_preflight_finds_nothing_where_the_bucket_is_there(store: ObjectStoreChild) -> None:
    assert findings(configuration(store.url)) == []


def test_preflight_names_a_bucket_that_is_not_there(store: ObjectStoreChild) -> None:
    found: list[SluiceError] = findings(configuration(store.url, bucket="no-such-bucket"))
    assert [error.reference for error in found] == ["s3-bucket"]


@pytest.mark.slow
def test_a_missing_bucket_ends_the_step_at_its_first_request(store: ObjectStoreChild, job: S3Job) -> None:
    job.write("a.ndjson", LINE)
    with pytest.raises(SluiceError) as caught:
        job.send(configuration(store.url, bucket="no-such-bucket"))
    assert caught.value.reference == "s3-bucket"
    assert not caught.value.transient
    assert job.slept == []
