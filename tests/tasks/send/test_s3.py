"""``s3_upload``: what is in the bucket afterwards, and what the step does when the store refuses (document 3 §7)."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.send.comparison import compare
from tasks.send.s3 import upload
from tasks.send.s3.files import content_type, job_prefix, object_key
from tasks.send.s3.upload import MIB, findings
from tasks.send.step import run
from tasks.shared.blanked import SECRETS
from tasks.shared.errors import InputError, NetworkError, ServiceBusyError, ServiceError, SluiceError, Stopped
from tasks.shared.service import ProbeWarning
from tests.peers.proxy import ForwardProxy
from tests.peers.s3 import KEY_ID, SECRET, SMALL, S3Job, S3Request, Script, configuration, refusal, scripted, sha256
from tests.peers.server import Raw, Reply

CONTENT = b'{"resourceType":"Patient","id":"canary-patient"}\n'
MANIFEST = "job-1/upload_manifest.json"


@pytest.fixture
def job(tmp_path: Path) -> S3Job:
    job = S3Job(tmp_path)
    job.write("a.ndjson", CONTENT)
    return job


def once(name: str, reply: Reply | Raw) -> Script:
    """``reply`` to the first request of this name."""
    left = [reply]

    def script(asked: S3Request) -> Reply | Raw | None:
        return left.pop() if asked.name == name and left else None

    return script


def always(name: str, reply: Reply | Raw) -> Script:
    return lambda asked: reply if asked.name == name else None


# Objects


def test_every_file_becomes_an_object_named_after_job_and_path(job: S3Job) -> None:
    job.write("core.ndjson.zst", b"\x28\xb5\x2f\xfd-not-read")
    job.write("csv/Diagnosen (ä) a%2Fb&c=d.csv", "id,größe\n1,2\n".encode())
    job.write("empty.ndjson", b"")
    for name in (".facts.json", "a.ndjson.part", "csv/b.csv.partial", ".cache/x.ndjson", "NOTES.txt", "a.ndjson~"):
        job.write(name, CONTENT)
    with scripted() as store:
        result = job.send(configuration(store.url, prefix="/projects/x/"))
    kinds = {
        "core.ndjson.zst": "application/zstd",
        "a.ndjson": "application/fhir+ndjson",
        "csv/Diagnosen (ä) a%2Fb&c=d.csv": "text/csv; charset=utf-8",
        "empty.ndjson": "application/fhir+ndjson",
    }
    prefix = "projects/x/job-1/"
    assert set(store.objects) == {*(prefix + name for name in kinds), prefix + "upload_manifest.json"}
    for name, kind in kinds.items():
        content, headers = store.objects[prefix + name]
        assert content == (job.input / name).read_bytes()
        assert (headers["content-type"], headers["x-amz-meta-sha256"]) == (kind, sha256(content))
        assert "content-encoding" not in headers
    assert (result.files, result.details["uploaded"], result.output) == (4, 4, None)
    assert result.bytes_in == result.bytes_out == sum((job.input / name).stat().st_size for name in kinds)


def test_the_manifest_is_the_last_object_and_lists_all_others(job: S3Job) -> None:
    job.write("b.ndjson", CONTENT * 2)
    with scripted() as store:
        job.send(store.url)
    assert [asked.key for asked in store.of("PutObject")][-1] == MANIFEST
    assert store.objects[MANIFEST][0] == job.manifest.read_bytes()
    listed = json.loads(job.manifest.read_text())
    assert [entry["key"] for entry in listed] == ["job-1/a.ndjson", "job-1/b.ndjson"]
    for entry, content in zip(listed, (CONTENT, CONTENT * 2), strict=True):
        assert (entry["size"], entry["sha256"]) == (len(content), sha256(content))
        assert (entry["time"][:2], entry["time"][-1], '"' in entry["etag"]) == ("20", "Z", False)
        assert set(entry) == {"key", "size", "sha256", "etag", "time"}
    assert stat.S_IMODE(job.manifest.stat().st_mode) == 0o600


def test_what_is_there_is_not_sent_again_and_anything_else_is(job: S3Job) -> None:
    job.write("b.ndjson", b"one\n")
    job.write("c.ndjson", b"one\n")
    with scripted() as store:
        job.send(store.url)
        theirs = replace(store.of("PutObject")[-1].seen, target="/sluice-demo/job-1/c.ndjson", body=b"one\n")
        store.asked.clear()
        second = job.send(store.url)
        assert set(store.names()) == {"HeadObject"}
        assert (second.details["uploaded"], second.details["already_there"]) == (0, 3)
        job.write("b.ndjson", b"two\n")
        store.s3(replace(theirs, headers={"host": "x", "authorization": theirs.headers["authorization"]}))
        assert job.send(store.url).details["uploaded"] == 2
        assert store.objects["job-1/b.ndjson"][0] == b"two\n"


def test_a_large_file_goes_in_parts_of_which_one_is_repeated_alone(job: S3Job) -> None:
    content = os.urandom(11 * MIB + 17)
    job.write("large.ndjson", content)
    with scripted(once("UploadPart", refusal(500, "InternalError"))) as store:
        job.send(store.url, sizes=SMALL)
        assert len(store.of("UploadPart")) == 4
        body, headers = store.objects["job-1/large.ndjson"]
        assert (body, headers["x-amz-meta-sha256"]) == (content, sha256(content))
        assert store.s3.unfinished == []
    snapshot = job.context.meter.snapshot()
    assert (snapshot.files, snapshot.files_total) == (2, 2)
    assert snapshot.bytes >= snapshot.bytes_total == len(CONTENT) + len(content)
    assert (job.context.meter.retries, job.slept) == (1, [0.1])


def test_an_upload_in_parts_that_fails_is_aborted(job: S3Job) -> None:
    job.write("large.ndjson", os.urandom(7 * MIB))
    with scripted(always("UploadPart", refusal(403, "QuotaExceeded"))) as store:
        with pytest.raises(ServiceError) as caught:
            job.send(store.url, sizes=SMALL)
        assert caught.value.reference == "s3-store-full"
        assert store.s3.unfinished == []
        assert MANIFEST not in store.objects


@pytest.mark.parametrize("there", [False, True])
def test_an_object_that_is_another_one_afterwards_is_an_error(job: S3Job, there: bool) -> None:
    other = Reply(200, headers={"ETag": "x", "x-amz-meta-sha256": "0" * 64}, length=len(CONTENT))
    wrong = other if there else Reply(404)

    def script(asked: S3Request) -> Reply | None:
        return wrong if asked.name == "HeadObject" and "PutObject" in store.names() else None

    with scripted(script) as store, pytest.raises(ServiceError) as caught:
        job.send(store.url)
    assert caught.value.reference == "s3-differs"
    assert not job.manifest.exists()


def test_a_content_encoding_that_was_not_sent_is_a_warning(job: S3Job) -> None:
    def script(asked: S3Request) -> Reply | None:
        if asked.name != "HeadObject" or asked.key not in store.objects:
            return None
        honest = store.serve(asked)
        return replace(honest, headers=honest.headers | {"Content-Encoding": "gzip"})

    with scripted(script) as store:
        (warning,) = job.send(store.url).warnings
    assert "Content-Encoding" in warning


@pytest.mark.parametrize("status", [403, 405, 501])
def test_keys_that_may_only_write_are_enough(job: S3Job, status: int) -> None:
    with scripted(always("HeadObject", Reply(status))) as store:
        job.send(store.url)
        assert store.objects["job-1/a.ndjson"][0] == CONTENT
    assert job.slept == []


@pytest.mark.parametrize(
    ("prefix", "expected"), [(None, "j/"), ("", "j/"), ("/", "j/"), ("a", "a/j/"), ("a/", "a/j/"), ("/a/b/", "a/b/j/")]
)
def test_a_key_begins_with_prefix_and_job_id(prefix: str | None, expected: str) -> None:
    assert object_key(job_prefix(prefix, "j"), "csv/x.csv") == f"{expected}csv/x.csv"


def test_a_key_that_no_store_takes_is_found_before_anything_is_sent(job: S3Job) -> None:
    assert len(object_key("j/", "ä" * 511).encode()) == 1024
    with scripted() as store, pytest.raises(InputError) as caught:
        job.send(configuration(store.url, prefix="x" * 1100))
    assert (caught.value.reference, store.asked) == ("s3-key-too-long", [])


@pytest.mark.parametrize(("name", "kind"), [("A.NDJSON", "application/fhir+ndjson"), ("a", "application/octet-stream")])
def test_the_content_type_is_that_of_the_ending(name: str, kind: str) -> None:
    assert content_type(name) == kind


def test_the_send_step_uploads_when_the_configuration_says_so(job: S3Job) -> None:
    with scripted() as store:
        run(job.prepare(configuration(store.url)))
        assert set(store.objects) == {"job-1/a.ndjson", MANIFEST}


# Refusals


@pytest.mark.parametrize(
    "reply",
    [
        refusal(503, "SlowDown"),
        refusal(400, "RequestTimeout"),
        Reply(429),
        Reply(502, b"<html>Bad Gateway</html>", {"Content-Type": "text/html"}),
        Raw(then="reset"),
        Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n<Put"),
    ],
    ids=["slow", "timeout", "429", "502", "reset", "cut"],
)
def test_a_transient_failure_is_repeated_with_the_same_bytes(job: S3Job, reply: Reply | Raw) -> None:
    with scripted(once("PutObject", reply)) as store:
        job.send(store.url)
        first, second, _ = store.of("PutObject")
        assert first.seen.body == second.seen.body == CONTENT
        assert store.objects["job-1/a.ndjson"][0] == CONTENT
    assert job.slept == [0.1]
    assert job.context.meter.retries == 1


def test_the_waits_are_those_of_the_retry_block_and_of_retry_after(job: S3Job) -> None:
    with scripted(always("PutObject", refusal(503, "SlowDown"))) as store, pytest.raises(ServiceBusyError) as caught:
        job.send(configuration(store.url, attempts=4))
    assert (caught.value.reference, caught.value.status, caught.value.exit_code) == ("s3-busy", 503, 3)
    assert job.slept == [0.1, 0.2, 0.25]
    job.slept.clear()
    with scripted(once("PutObject", refusal(503, "SlowDown", **{"Retry-After": "7"}))) as store:
        job.send(store.url)
    assert job.slept == [7.0]


def test_an_error_under_status_200_at_the_end_of_an_upload_in_parts_is_repeated(job: S3Job) -> None:
    job.write("large.ndjson", os.urandom(7 * MIB))
    body = b"<?xml version='1.0'?>\n<Error><Code>InternalError</Code><Message>CANARY</Message></Error>"
    with scripted(once("CompleteMultipartUpload", Reply(200, body))) as store:
        job.send(store.url, sizes=SMALL)
        assert len(store.of("CompleteMultipartUpload")) == 2
        assert "job-1/large.ndjson" in store.objects


@pytest.mark.parametrize(
    ("reply", "reference", "said"),
    [
        (refusal(403, "AccessDenied"), "s3-access-denied", "put objects"),
        (refusal(404, "NoSuchBucket"), "s3-bucket", "services.send.s3.bucket"),
        (refusal(403, "InvalidAccessKeyId"), "s3-access-key", "access_key_id"),
        (refusal(403, "SignatureDoesNotMatch"), "s3-signature", "secret_access_key"),
        (refusal(403, "RequestTimeTooSkewed"), "s3-clock", "NTP"),
        (refusal(400, "AuthorizationHeaderMalformed", "<Region>eu-west-3</Region>"), "s3-region", "region eu-west-3"),
        (
            refusal(
                301, "PermanentRedirect", **{"x-amz-bucket-region": "us-west-2", "Location": "http://127.0.0.2:1/"}
            ),
            "s3-region",
            "region us-west-2",
        ),
        (refusal(307, "TemporaryRedirect", Location="http://127.0.0.2:1/"), "s3-region", "endpoint"),
        (Reply(507), "s3-store-full", "full"),
        (Reply(407), "proxy-authentication", "services.send.auth"),
        (Reply(413), "s3-too-large", "size"),
        (refusal(400, "InvalidArgument"), "s3-refused", "400 InvalidArgument"),
        (Reply(403, b"not xml: CANARY"), "s3-access-denied", "403"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_terminal_refusal_says_what_to_change_and_is_not_repeated(
    job: S3Job, reply: Reply, reference: str, said: str
) -> None:
    with scripted(always("PutObject", reply)) as store, pytest.raises(ServiceError) as caught:
        job.send(store.url)
    shown = f"{caught.value.render()} {caught.value!r}"
    assert caught.value.reference == reference
    assert said in shown
    assert job.slept == []
    assert not job.manifest.exists()
    for secret in (SECRET, KEY_ID, "CANARY", "canary"):
        assert secret not in shown


def test_a_page_in_place_of_the_store_is_no_s3(job: S3Job) -> None:
    job.write("large.ndjson", os.urandom(7 * MIB))
    page = Reply(200, b"<html>Please log in", {"Content-Type": "text/html"})
    with scripted(always("CreateMultipartUpload", page)) as store, pytest.raises(ServiceError) as caught:
        job.send(store.url, sizes=SMALL)
    assert caught.value.reference == "s3-answer"


def test_the_access_key_that_a_store_quotes_is_blanked_in_what_is_kept(job: S3Job) -> None:
    quoted = refusal(403, "InvalidAccessKeyId", f"<AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId>")
    with scripted(lambda _: quoted) as store:
        config = configuration(store.url, attempts=1, access_key_id=KEY_ID)
        SECRETS.config(config)  # as the step's task does
        with pytest.raises(SluiceError):
            job.send(config)
    (kept,) = job.failed()
    assert b"<AWSAccessKeyId>[blanked]</AWSAccessKeyId>" in kept.read_bytes()


def test_a_proxy_that_wants_other_credentials_is_a_terminal_error(job: S3Job) -> None:
    config = configuration(
        "http://store.example:4711", more={"send": {"auth": {"username": "u", "password": "canary-wrong"}}}
    )
    with ForwardProxy(credentials=("u", "right")) as proxy, pytest.raises(ServiceError) as caught:
        job.send(config, environ={"http_proxy": proxy.url})
    assert caught.value.reference == "proxy-authentication"
    assert "services.send.auth" in caught.value.render()
    assert "canary" not in caught.value.render()


@pytest.mark.slow
def test_a_store_that_does_not_answer_in_time_is_a_transient_error(job: S3Job) -> None:
    with scripted(always("PutObject", Raw(then="stall"))) as store:
        with pytest.raises(NetworkError) as caught:
            job.send(configuration(store.url, attempts=2, timeout="PT1S"))
        assert len(store.of("PutObject")) == 2
    assert caught.value.reference == "timeout"


def stopping(job: S3Job, url: str, begun: Any) -> float:
    """Stop the step as soon as ``begun`` is true; return the seconds until its end."""
    context = job.prepare(configuration(url))
    asked: list[float] = []

    def watch() -> None:
        while not begun():
            time.sleep(0.01)
        asked.append(time.monotonic())
        context.stop.request("SIGTERM")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    with pytest.raises(Stopped):
        upload.run(context, compare(context), sizes=SMALL, environ={})
    thread.join()
    return time.monotonic() - asked[0]


@pytest.mark.slow
def test_a_stop_during_a_part_ends_within_ten_seconds_and_aborts_the_upload(job: S3Job) -> None:
    job.write("large.ndjson", os.urandom(16 * MIB))
    with scripted(always("UploadPart", Raw(then="stall"))) as store:
        seconds = stopping(job, store.url, lambda: len(store.of("UploadPart")) > 1)
        assert store.s3.unfinished == []
    assert seconds < 10


def test_a_stop_while_waiting_for_the_next_attempt_ends_at_once(job: S3Job) -> None:
    with scripted(always("PutObject", refusal(503, "SlowDown", **{"Retry-After": "600"}))) as store:
        seconds = stopping(job, store.url, lambda: "PutObject" in store.names())
    assert seconds < 10


def test_nothing_secret_is_logged_at_any_level(job: S3Job, caplog: pytest.LogCaptureFixture) -> None:
    config = {"send": {"auth": {"username": "u", "password": "canary-proxy"}}}
    with caplog.at_level(logging.DEBUG), scripted(once("PutObject", refusal(503, "SlowDown"))) as store:
        job.send(configuration(store.url, more=config))
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "failed (status 503)" in text
    for secret in (SECRET, KEY_ID, "canary-proxy", "CANARY", "Authorization", "Signature="):
        assert secret not in text


# Before a job


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (Reply(200), []),
        (Reply(404), ["s3-bucket"]),
        (Reply(405), ["s3-refused"]),
        (Reply(301, b"", {"x-amz-bucket-region": "us-west-2"}), ["s3-region"]),
        (Raw(then="reset"), ["connection-broken"]),
    ],
    ids=["there", "no bucket", "no store", "region", "reset"],
)
def test_the_bucket_is_looked_for_before_a_job(reply: Reply | Raw, found: list[str]) -> None:
    with scripted(lambda _: reply) as store:
        errors: list[Any] = findings(configuration(store.url), environ={})
        assert set(store.names()) == {"HeadBucket"}
    assert [error.reference for error in errors] == found


def test_keys_that_may_not_look_for_the_bucket_are_a_doubt() -> None:
    with scripted(lambda _: Reply(403)) as store:
        (doubt,) = findings(configuration(store.url), environ={})
    assert isinstance(doubt, ProbeWarning)
    assert "may not look for the bucket" in doubt.text


def test_settings_that_make_no_address_are_a_finding_of_the_configuration() -> None:
    found: list[Any] = findings(configuration(None, bucket="Not A Bucket!", use_path_style=False), environ={})
    assert [(error.reference, error.exit_code) for error in found] == [("s3-configuration", 2)]
