"""Uploads to S3 servers that verify every signature and digest: versitygw and MinIO (document 3 §7, "s3_upload")."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.send.s3.upload import MIB, findings
from tasks.shared.errors import ServiceError, TerminalError
from tasks.shared.service import ProbeWarning
from tests.conftest import ROOT, wait_until
from tests.peers.s3 import SMALL, S3Job, configuration, victim
from tests.real.conftest import Measure
from tests.real.nginx_server import nginx
from tests.real.programs import HOST, program
from tests.real.s3_store import BUCKET, DOMAIN, REGION, STORES, S3Store, Tls, refusal, s3_running
from tests.real.squid_proxy import PASSWORD, USER, Squid, squid_running

pytestmark = pytest.mark.real


@pytest.fixture(scope="module", params=list(STORES))
def kind(request: pytest.FixtureRequest) -> str:
    """Kind of the store."""
    return str(request.param)


only = partial(pytest.mark.parametrize, "kind", indirect=True)
"""``only(["minio"])``: a test of what this store does, or of what the others cannot be told here."""


@pytest.fixture(scope="module")
def store(kind: str) -> Iterator[S3Store]:
    with s3_running(kind) as running_store:
        yield running_store


@pytest.fixture(scope="module")
def squid() -> Iterator[Squid]:
    with squid_running() as running_squid:
        yield running_squid


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> S3Job:
    """Return a job whose id no other test has, so that all can share a bucket."""
    return S3Job(tmp_path, job_id=f"job-{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]}")


def settings(store: S3Store, **s3: Any) -> Any:
    return configuration(s3.pop("endpoint", store.url), **({"bucket": BUCKET, "region": REGION} | s3))


def expected(job: S3Job, prefix: str = "") -> dict[str, str]:
    """SHA-256 of every file of the job, by the key it must have."""
    files = [path for path in job.input.rglob("*") if path.is_file()]
    return {
        f"{prefix}{job.job_id}/{path.relative_to(job.input).as_posix()}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def stored(store: S3Store, job: S3Job, prefix: str = "") -> dict[str, str]:
    return store.objects(f"{prefix}{job.job_id}/")


def filled(job: S3Job, *, large: int = 11 * MIB) -> S3Job:
    draw = random.Random(job.job_id)
    job.write("core.ndjson.zst", draw.randbytes(100_000))
    job.write("large.ndjson", draw.randbytes(large))
    for number in range(20):
        job.write(f"small-{number}.csv", draw.randbytes(number))  # the first one is empty
    return job


def test_the_store_itself_refuses_wrong_digests_and_signatures(store: S3Store) -> None:
    wrong = base64.b64encode(hashlib.md5(b"something else").digest()).decode()
    put = {"Bucket": BUCKET, "Key": "wrong", "Body": b"content"}
    assert refusal(store.s3.put_object, **put, ContentMD5=wrong) in {"BadDigest", "InvalidDigest"}
    assert refusal(store.s3.head_object, Bucket=BUCKET, Key="wrong") == "404"


# What is there afterwards


@pytest.mark.parametrize("parts", [False, True], ids=["whole", "in parts"])
def test_every_object_equals_its_source(kind: str, store: S3Store, job: S3Job, parts: bool, figure: Measure) -> None:
    filled(job)
    what = "files, the largest in parts" if parts else "files, each whole"
    result = figure(kind, what, lambda: job.send(settings(store), sizes=SMALL if parts else None))
    assert result.files == 22
    assert stored(store, job) == expected(job)
    assert store.unfinished() == []
    manifest = json.loads(job.manifest.read_text())
    assert {entry["key"]: entry["sha256"] for entry in manifest} == expected(job)
    for entry in manifest:
        head = store.s3.head_object(Bucket=BUCKET, Key=entry["key"])
        assert head["Metadata"] == {"sha256": entry["sha256"]}
        assert head["ContentLength"] == entry["size"]
        assert head["ETag"].strip('"') == entry["etag"]


def test_objects_say_what_they_are(store: S3Store, job: S3Job) -> None:
    for name in ("a.ndjson", "a.ndjson.zst", "a.csv"):
        job.write(name, b"x")
    job.send(settings(store))
    heads = {
        name: store.s3.head_object(Bucket=BUCKET, Key=f"{job.job_id}/{name}")
        for name in ("a.ndjson", "a.ndjson.zst", "a.csv")
    }
    kinds = {name: head["ContentType"] for name, head in heads.items()}
    assert kinds == {
        "a.ndjson": "application/fhir+ndjson",
        "a.ndjson.zst": "application/zstd",
        "a.csv": "text/csv; charset=utf-8",
    }
    assert all(not head.get("ContentEncoding") for head in heads.values())


def test_sent_twice_leaves_the_bucket_as_after_one_time(store: S3Store, job: S3Job) -> None:
    filled(job)
    job.send(settings(store), sizes=SMALL)
    key = f"{job.job_id}/large.ndjson"
    before = store.s3.head_object(Bucket=BUCKET, Key=key)["LastModified"]
    result = job.send(settings(store), sizes=SMALL)
    assert (result.details["uploaded"], result.details["already_there"]) == (0, 22)
    assert store.s3.head_object(Bucket=BUCKET, Key=key)["LastModified"] == before
    assert stored(store, job) == expected(job)


def test_other_bytes_of_the_same_size_are_sent_again(store: S3Store, job: S3Job) -> None:
    job.write("a.csv", b"before")
    job.send(settings(store))
    job.write("a.csv", b"after!")
    assert job.send(settings(store)).details["uploaded"] == 1
    assert stored(store, job) == expected(job)


@pytest.mark.parametrize(
    "name",
    [
        "with blank.csv",
        "plus+and%20.csv",
        "Größe µ.csv",
        "a&b=c;d,e.csv",
        "日本.csv",
        "~!*'().csv",
        "#?.csv",
        "sub/a.csv",
    ],
)
def test_any_file_name_is_signed_right_and_found_under_its_name(store: S3Store, job: S3Job, name: str) -> None:
    job.write(name, b"x")
    job.send(settings(store, prefix="/project x/ä/"))
    assert stored(store, job, "project x/ä/") == expected(job, "project x/ä/")


def test_virtual_host_addressing(store: S3Store, squid: Squid, job: S3Job) -> None:
    filled(job)
    # Only squid knows the address of a bucket's host.
    config = configuration(
        f"http://{DOMAIN}:{store.port}", bucket=BUCKET, region=REGION, use_path_style=False, attempts=1
    )
    job.send(config, environ={"HTTP_PROXY": squid.url}, sizes=SMALL)
    assert stored(store, job) == expected(job)


# Unfinished uploads


@only(["versitygw"])
def test_what_an_earlier_run_of_this_job_left_unfinished_is_aborted(store: S3Store, job: S3Job) -> None:
    job.write("a.csv", b"x")
    mine, others = f"{job.job_id}/large.ndjson", f"{job.job_id}-other/large.ndjson"
    for key in (mine, others):
        store.s3.create_multipart_upload(Bucket=BUCKET, Key=key)
    job.send(settings(store))
    assert store.unfinished() == [others]
    (upload,) = store.s3.list_multipart_uploads(Bucket=BUCKET)["Uploads"]
    store.s3.abort_multipart_upload(Bucket=BUCKET, Key=others, UploadId=upload["UploadId"])


@only(["minio"])
@pytest.mark.differs(
    "minio", "lists an upload in parts for its whole key only; Sluice asks for each key that went in parts"
)
def test_minio_lists_an_upload_for_its_whole_key_only(store: S3Store, job: S3Job) -> None:
    key = f"{job.job_id}/large.ndjson"
    upload = store.s3.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
    found = {
        prefix: len(store.s3.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix).get("Uploads", ()))
        for prefix in (f"{job.job_id}/", key)
    }
    assert found == {f"{job.job_id}/": 0, key: 1}
    assert len(store.unfinished()) == 1
    store.s3.abort_multipart_upload(Bucket=BUCKET, Key=key, UploadId=upload)
    assert store.unfinished() == []


@pytest.mark.parametrize("changed", ["same", "gone", "small"])
def test_multipart_uploads_of_a_killed_run_are_aborted_even_if_their_files_changed(
    store: S3Store, job: S3Job, changed: str
) -> None:
    """129 MB of patients' data once stayed in a MinIO."""
    large = job.write("large.ndjson", random.Random(5).randbytes(100 * MIB))
    job.write("a.csv", b"x")
    process = victim(job, store.url, BUCKET)
    wait_until(lambda: bool(store.unfinished()), 60)
    process.kill()
    assert process.wait() == -9
    assert len(store.unfinished()) == 1
    if changed == "gone":
        large.unlink()
    if changed == "small":
        large.write_bytes(b"x")
    job.send(settings(store), sizes=SMALL)
    assert store.unfinished() == []
    assert stored(store, job) == expected(job)


@pytest.mark.parametrize("moments", [3])
def test_killed_at_random_moments_and_continued_every_object_equals_its_source(
    store: S3Store, job: S3Job, moments: int
) -> None:
    filled(job, large=60 * MIB)
    draw = random.Random(4)
    killed = 0
    for _ in range(moments):
        process = victim(job, store.url, BUCKET)
        time.sleep(draw.uniform(0.3, 1.2))
        process.kill()
        killed += process.wait() == -9
    assert killed
    job.send(settings(store), sizes=SMALL)
    assert stored(store, job) == expected(job)
    assert store.unfinished() == []


# What goes wrong


@pytest.mark.parametrize(
    ("s3", "reference"),
    [
        ({"secret_access_key": "canary-wrong"}, "s3-signature"),
        ({"access_key_id": "CANARYWRONG"}, "s3-access-key"),
        ({"bucket": "no-such-bucket"}, "s3-bucket"),
        ({"region": "eu-west-3"}, "s3-region"),
    ],
)
def test_wrong_settings_are_terminal_errors_found_before_the_first_byte(
    store: S3Store, job: S3Job, s3: dict[str, str], reference: str
) -> None:
    job.write("a.csv", b"x")
    config = settings(store, **s3)
    with pytest.raises(TerminalError) as caught:
        job.send(config)
    found = findings(config, environ={})
    assert (caught.value.reference, [one.reference for one in found]) == (reference, [reference])
    assert caught.value.hint
    assert "canary" not in caught.value.render().lower()
    assert job.slept == []


def test_a_clock_that_is_wrong_is_a_terminal_error_that_says_by_how_much(store: S3Store, job: S3Job) -> None:
    faketime = program("faketime", "SLUICE_REAL_FAKETIME", "python tests/real/get.py faketime")
    job.write("a.csv", b"x")
    script = (
        "import sys, pathlib\n"
        "from tasks.shared.errors import TerminalError\n"
        "from tests.peers.s3 import S3Job, configuration\n"
        "config = configuration(sys.argv[2], bucket=sys.argv[3])\n"
        "try:\n    S3Job(pathlib.Path(sys.argv[1])).send(config)\n"
        "except TerminalError as error:\n    print(error.render())\n"
    )
    command = [faketime, "-f", "-2h", sys.executable, "-c", script, job.directory, store.url, BUCKET]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    ran = subprocess.run(
        [str(part) for part in command], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert "error[s3-clock]" in ran.stdout, ran.stderr
    assert "behind" in ran.stdout
    assert "7,2" in ran.stdout or "7,1" in ran.stdout


@only(["versitygw"])  # users of MinIO are made with a client of its own
def test_keys_that_may_only_write_are_enough(store: S3Store, job: S3Job) -> None:
    store.add_user("WRITEONLY", "write-only-secret", "s3:PutObject")
    filled(job)
    config = settings(store, access_key_id="WRITEONLY", secret_access_key="write-only-secret")
    (found,) = findings(config, environ={})
    assert isinstance(found, ProbeWarning)
    assert "the keys may not look into the bucket" in found.text
    job.send(config, sizes=SMALL)
    assert stored(store, job) == expected(job)


@only(["versitygw"])
def test_keys_that_may_only_read_are_a_terminal_error(store: S3Store, job: S3Job) -> None:
    store.add_user("READONLY", "read-only-secret", "s3:GetObject")
    job.write("a.csv", b"x")
    with pytest.raises(ServiceError) as caught:
        job.send(settings(store, access_key_id="READONLY", secret_access_key="read-only-secret"))
    assert caught.value.reference == "s3-access-denied"


class Damaging(httpx.HTTPTransport):
    """The network, which changes the last byte of the first few objects on their way."""

    def __init__(self, times: int, **options: Any) -> None:
        super().__init__(**options)
        self.times = times

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        body = request.read() if request.method == "PUT" else b""
        if body and self.times:
            self.times -= 1
            damaged = body[:-1] + bytes([body[-1] ^ 1])
            request.stream = httpx.ByteStream(damaged)
        return super().handle_request(request)


@pytest.mark.parametrize("parts", [False, True], ids=["whole", "in parts"])
@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
def test_damage_on_the_way_is_noticed_by_the_store_and_repaired_by_repeating(
    kind: str, job: S3Job, tmp_path: Path, secure: bool, parts: bool
) -> None:
    job.write("a.ndjson", random.Random(7).randbytes(7 * MIB))
    tls = Tls.issue(tmp_path) if secure else None
    with s3_running(kind, tls=tls) as store, Damaging(1, verify=False) as network:
        job.send(settings(store), transport=network, sizes=SMALL if parts else None)
        assert stored(store, job) == expected(job)
        assert store.unfinished() == []
    assert len(job.slept) == 1


def test_tls_is_the_tls_block_of_the_configuration(kind: str, job: S3Job, tmp_path: Path) -> None:
    filled(job)
    tls = Tls.issue(tmp_path)
    with s3_running(kind, tls=tls) as store:
        with pytest.raises(ServiceError) as caught:
            job.send(settings(store))
        assert caught.value.reference == "tls-untrusted"
        for trusted in (tls.authority, tls.chain):
            job.send(settings(store, more={"tls": {"ca_cert_path": str(trusted)}}), sizes=SMALL)
        assert stored(store, job) == expected(job)


def test_a_full_store_is_a_clear_error_and_the_upload_continues_when_there_is_room(kind: str, job: S3Job) -> None:
    filled(job, large=8 * MIB)
    with s3_running(kind, space=100 * MIB) as store:
        fillers = 0
        while fillers < 200 and not refusal(
            store.s3.put_object, Bucket=BUCKET, Key=f"filler-{fillers}", Body=b"x" * MIB
        ):
            fillers += 1
        assert 20 < fillers < 200
        with pytest.raises(ServiceError) as caught:
            job.send(settings(store))
        # Of some writes that do not fit MinIO says no more than "internal error", which may pass.
        assert caught.value.reference in {"s3-store-full", *(["s3-busy"] if kind == "minio" else [])}
        for number in range(fillers):
            store.s3.delete_object(Bucket=BUCKET, Key=f"filler-{number}")
        # MinIO gives the room of what was deleted back a moment later.
        probe = {"Bucket": BUCKET, "Key": "probe", "Body": b"x" * 20 * MIB}
        wait_until(lambda: not refusal(store.s3.put_object, **probe))
        store.s3.delete_object(Bucket=BUCKET, Key="probe")
        job.send(settings(store))
        assert stored(store, job) == expected(job)


# Proxies


def with_proxy_credentials(store: S3Store, password: str = PASSWORD, **s3: Any) -> Any:
    return settings(store, more={"send": {"auth": {"username": USER, "password": password}}}, **s3)


def test_a_forward_proxy_gets_the_credentials_of_the_auth_block(store: S3Store, squid: Squid, job: S3Job) -> None:
    filled(job)
    config = with_proxy_credentials(store, endpoint=f"http://{DOMAIN}:{store.port}", use_path_style=False)
    job.send(config, environ={"HTTP_PROXY": f"http://{HOST}:{squid.port}"}, sizes=SMALL)
    assert stored(store, job) == expected(job)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_407_of_a_forward_proxy_is_a_terminal_error(store: S3Store, squid: Squid, job: S3Job, scheme: str) -> None:
    job.write("a.csv", b"x")
    config = with_proxy_credentials(store, "canary", endpoint=f"{scheme}://{DOMAIN}:{store.port}", use_path_style=False)
    with pytest.raises(ServiceError) as caught:
        job.send(config, environ={f"{scheme}_proxy": f"http://{HOST}:{squid.port}"})
    assert (caught.value.reference, caught.value.status) == ("proxy-authentication", 407)
    assert "canary" not in caught.value.render()
    assert job.slept == []


@pytest.mark.real("nginx")
def test_a_reverse_proxy_gets_proxy_authorization_always_and_signatures_hold(store: S3Store, job: S3Job) -> None:
    filled(job)
    wanted = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    guard = f"""
      client_max_body_size 0;
      if ($http_proxy_authorization != "Basic {wanted}") {{ return 407; }}
      location / {{
        proxy_pass {store.url};
        proxy_set_header Host $http_host;
        proxy_set_header Proxy-Authorization "";
        proxy_request_buffering off;
        proxy_http_version 1.1;
      }}
    """
    with nginx(guard) as front:
        job.send(with_proxy_credentials(store, endpoint=front.url), sizes=SMALL)
        assert 407 not in front.statuses()
        with pytest.raises(ServiceError) as caught:
            job.send(with_proxy_credentials(store, "canary", endpoint=front.url))
    assert (caught.value.reference, caught.value.status) == ("proxy-authentication", 407)
    assert stored(store, job) == expected(job)


@pytest.mark.real("nginx")
def test_a_body_limit_of_a_reverse_proxy_is_a_terminal_error(store: S3Store, job: S3Job) -> None:
    job.write("large.ndjson", b"x" * 2 * MIB)
    through = f"location / {{ proxy_pass {store.url}; proxy_set_header Host $http_host; }}"
    with nginx(through) as front, pytest.raises(ServiceError) as caught:
        job.send(settings(store, endpoint=front.url))
    assert (caught.value.reference, caught.value.status) == ("s3-too-large", 413)
