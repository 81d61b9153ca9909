"""``s3_upload`` when the store or the network does not do what it should (document 3 §7, transient and terminal)."""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from tasks.send.checks import service
from tasks.send.s3.upload import MIB, findings
from tasks.send.step import run
from tasks.shared.blanked import SECRETS
from tasks.shared.errors import DataError, ServiceError, SluiceError
from tasks.shared.prefect_task import proved
from tasks.shared.service import ProbeWarning
from tests.peers.proxy import ForwardProxy
from tests.peers.s3 import KEY_ID, SECRET, SMALL, S3Job, S3Request, Script, configuration, refusal, scripted
from tests.peers.server import Raw, Reply

CONTENT = b'{"resourceType":"Patient","id":"canary-patient"}\n'


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


def refused(job: S3Job, script: Script, *, attempts: int = 3) -> SluiceError:
    """Return the error that the job ends with."""
    with scripted(script) as store, pytest.raises(SluiceError) as caught:
        job.send(configuration(store.url, attempts=attempts))
    shown = f"{caught.value.render()} {caught.value!r}"
    for secret in (SECRET, KEY_ID, "CANARY", "canary"):
        assert secret not in shown
    return caught.value


# Transient


@pytest.mark.parametrize(
    "reply",
    [
        refusal(503, "SlowDown"),
        refusal(400, "RequestTimeout"),
        refusal(400, "BadDigest"),
        refusal(409, "OperationAborted"),
        Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n<Put"),
    ],
)
def test_a_transient_code_is_repeated_with_the_same_bytes(job: S3Job, reply: Reply | Raw) -> None:
    with scripted(once("PutObject", reply)) as store:
        job.send(store.url)
        first, second = store.of("PutObject")
        assert first.seen.body == second.seen.body
        assert store.objects["job-1/a.ndjson"][0] == CONTENT
    assert job.slept == [0.1]


@pytest.mark.slow
def test_a_part_is_repeated_alone(job: S3Job) -> None:
    content = os.urandom(11 * MIB)
    job.write("large.ndjson", content)
    with scripted(once("UploadPart", refusal(500, "InternalError"))) as store:
        job.send(store.url, sizes=SMALL)
        assert len(store.of("UploadPart")) == 4
        assert store.objects["job-1/large.ndjson"][0] == content
        assert store.begun == {}


@pytest.mark.slow
def test_an_error_under_status_200_at_the_end_of_an_upload_in_parts_is_repeated(job: S3Job) -> None:
    job.write("large.ndjson", os.urandom(7 * MIB))
    body = b"<?xml version='1.0'?>\n<Error><Code>InternalError</Code><Message>CANARY</Message></Error>"
    with scripted(once("CompleteMultipartUpload", Reply(200, body))) as store:
        job.send(store.url, sizes=SMALL)
        assert len(store.of("CompleteMultipartUpload")) == 2
        assert "job-1/large.ndjson" in store.objects


@pytest.mark.slow
def test_an_end_whose_answer_was_lost_is_found_by_looking_for_the_object(job: S3Job) -> None:
    job.write("large.ndjson", os.urandom(7 * MIB))
    lost = [True]

    def script(asked: S3Request) -> Reply | Raw | None:
        if asked.name == "CompleteMultipartUpload" and lost:
            lost.pop()
            store.serve(asked)
            return Raw(then="reset")
        return None

    with scripted(script) as store:
        job.send(store.url, sizes=SMALL)
        assert len(store.of("CompleteMultipartUpload")) == 2
        assert "AbortMultipartUpload" not in store.names()


# Terminal


@pytest.mark.parametrize(
    ("reply", "reference", "said"),
    [
        (refusal(403, "AccessDenied"), "s3-access-denied", "put objects"),
        (refusal(404, "NoSuchBucket"), "s3-bucket", "services.send.s3.bucket"),
        (refusal(403, "InvalidAccessKeyId"), "s3-access-key", "access_key_id"),
        (refusal(403, "SignatureDoesNotMatch"), "s3-signature", "secret_access_key"),
        (refusal(403, "RequestTimeTooSkewed", Date="Mon, 02 Mar 2020 09:15:00 GMT"), "s3-clock", "this one is ahead"),
        (refusal(403, "RequestTimeTooSkewed", Date="Mon, 02 Mar 2099 09:15:00 GMT"), "s3-clock", "this one is behind"),
        (refusal(403, "RequestTimeTooSkewed", Date="soon"), "s3-clock", "NTP"),
        (refusal(400, "AuthorizationHeaderMalformed", "<Region>eu-west-3</Region>"), "s3-region", "to eu-west-3"),
        (
            refusal(
                301, "PermanentRedirect", **{"x-amz-bucket-region": "us-west-2", "Location": "http://127.0.0.2:1/"}
            ),
            "s3-region",
            "to us-west-2",
        ),
        (refusal(307, "TemporaryRedirect", Location="http://127.0.0.2:1/"), "s3-region", "endpoint"),
        (refusal(400, "AuthorizationHeaderMalformed", "<Region>CANARY !</Region>"), "s3-region", "endpoint"),
        (refusal(400, "ExpiredToken"), "s3-token-expired", "have expired"),
        (refusal(403, "QuotaExceeded"), "s3-store-full", "quota"),
        (refusal(507, "XMinioStorageFull"), "s3-store-full", "full"),
        (Reply(507), "s3-store-full", "full"),
        (Reply(407), "proxy-authentication", "services.send.auth"),
        (Reply(413), "s3-too-large", "size"),
        (Reply(501), "s3-not-supported", "endpoint"),
        (refusal(400, "InvalidArgument"), "s3-refused", "400 InvalidArgument"),
        (Reply(403, b"not xml: CANARY"), "s3-access-denied", "403"),
        (Reply(200, b"<html>Please log in</html>", {"Content-Type": "text/html"}), "s3-answer", "not that of an S3"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_terminal_refusal_says_what_to_change_and_is_not_repeated(
    job: S3Job, reply: Reply, reference: str, said: str
) -> None:
    error = refused(job, always("PutObject", reply))
    assert isinstance(error, ServiceError)
    assert error.reference == reference
    assert said in error.render()
    assert job.slept == []
    assert not job.manifest.exists()


def test_a_code_in_which_a_store_echoes_a_secret_is_blanked(job: S3Job) -> None:
    secret = "CanarySecretKeyOfTheStore"
    config = configuration(None, attempts=1, secret_access_key=secret)
    SECRETS.config(config)  # as the step's task does
    with scripted(lambda _: refusal(403, secret)) as store, pytest.raises(SluiceError) as caught:
        job.send(configuration(store.url, attempts=1, secret_access_key=secret))
    assert "403" in caught.value.render()
    assert secret not in caught.value.render()


@pytest.mark.parametrize("key_id", [KEY_ID, "min"])
def test_the_access_key_that_a_store_quotes_is_blanked_in_what_is_kept(job: S3Job, key_id: str) -> None:
    quoted = refusal(403, "InvalidAccessKeyId", f"<AWSAccessKeyId>{key_id}</AWSAccessKeyId>")
    with scripted(lambda _: quoted) as store:
        config = configuration(store.url, attempts=1, access_key_id=key_id)
        SECRETS.config(config)  # as the step's task does
        with pytest.raises(SluiceError):
            job.send(config)
    (kept,) = job.failed()
    assert b"<AWSAccessKeyId>[blanked]</AWSAccessKeyId>" in kept.read_bytes()


def test_wrong_keys_end_the_step_at_its_first_request(job: S3Job) -> None:
    with scripted(lambda _: refusal(403, "SignatureDoesNotMatch")) as store:
        with pytest.raises(ServiceError) as caught:
            job.send(store.url)
        assert store.names() == ["ListMultipartUploads"]
    assert caught.value.reference == "s3-signature"


@pytest.mark.parametrize(
    "reply", [refusal(403, "AccessDenied"), Reply(405), Reply(501), refusal(400, "InvalidArgument")]
)
def test_keys_that_may_only_write_are_enough(job: S3Job, reply: Reply) -> None:
    def script(asked: S3Request) -> Reply | None:
        return reply if asked.name in ("ListMultipartUploads", "HeadObject") else None

    with scripted(script) as store:
        job.send(store.url)
        assert store.objects["job-1/a.ndjson"][0] == CONTENT
    assert job.slept == []


def test_a_file_that_changes_while_it_is_uploaded_is_an_error(job: S3Job) -> None:
    def script(asked: S3Request) -> Reply | None:
        if asked.name == "HeadObject":
            job.write("a.ndjson", b"x" * len(CONTENT))
        if asked.name == "PutObject":
            right = hashlib.md5(asked.seen.body).digest() == base64.b64decode(asked.seen.headers["content-md5"])
            return None if right else refusal(400, "BadDigest")
        return None

    with scripted(script) as store, pytest.raises(DataError) as caught:
        job.send(store.url)
    assert caught.value.reference == "send-input-changed"


def test_a_file_that_shrinks_is_an_error(job: S3Job) -> None:
    path = job.write("large.ndjson", os.urandom(7 * MIB))

    def script(asked: S3Request) -> None:
        if asked.name == "CreateMultipartUpload":
            os.truncate(path, MIB)

    with scripted(script) as store:
        with pytest.raises(DataError) as caught:
            job.send(store.url, sizes=SMALL)
        assert "job-1/large.ndjson" not in store.objects
        assert store.begun == {}
    assert caught.value.reference == "send-input-changed"


@pytest.mark.parametrize("tls", [False, True])
def test_a_proxy_that_wants_other_credentials_is_a_terminal_error(job: S3Job, tls: bool) -> None:
    scheme = "https" if tls else "http"
    config = configuration(
        f"{scheme}://store.example:4711", more={"send": {"auth": {"username": "u", "password": "canary-wrong"}}}
    )
    with ForwardProxy(credentials=("u", "right")) as proxy:
        with pytest.raises(ServiceError) as caught:
            job.send(config, environ={f"{scheme}_proxy": proxy.url})
        assert proxy.refused == 1
    assert caught.value.reference == "proxy-authentication"
    assert "services.send.auth" in caught.value.render()
    assert "canary" not in caught.value.render()


# Preflight


@pytest.mark.parametrize(
    ("code", "reference"),
    [
        ("InvalidAccessKeyId", "s3-access-key"),
        ("SignatureDoesNotMatch", "s3-signature"),
        ("RequestTimeTooSkewed", "s3-clock"),
    ],
)
def test_preflight_asks_a_second_time_because_head_says_no_reason(code: str, reference: str) -> None:
    with scripted(lambda asked: Reply(403) if asked.name == "HeadBucket" else refusal(403, code)) as store:
        found = findings(configuration(store.url), environ={})
    assert [error.reference for error in found] == [reference]


def test_preflight_lets_keys_pass_that_may_only_write() -> None:
    with scripted(lambda asked: Reply(403) if asked.name == "HeadBucket" else refusal(403, "AccessDenied")) as store:
        (doubt,) = findings(configuration(store.url), environ={})
    assert isinstance(doubt, ProbeWarning)
    assert "may not look into the bucket" in doubt.text


class PartProbe(NamedTuple):
    code: int
    said: str


NOT_FOUND = b'{"resourceType":"OperationOutcome"}'
PAGE = b"<html><body><p>canary</p></body></html>"


def step_of_a_job(job: S3Job, url: str) -> PartProbe:
    """Run the whole step, as for a resume in a worker: without a preflight."""
    context = job.prepare(configuration(url, attempts=2))
    try:
        doubts = list(proved([service(context.config)], context))
    except SluiceError as error:
        return PartProbe(error.exit_code, error.reference)
    run(replace(context, doubts=tuple(doubts)))
    return PartProbe(0, " ".join(doubts))


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (Reply(404, NOT_FOUND, {"Content-Type": "application/fhir+json"}), (2, "wrong-service")),
        (Reply(404), (2, "wrong-service")),
        (Reply(405), (2, "wrong-service")),
        (Reply(200, PAGE), (2, "wrong-service")),
        (Reply(200, b"<p>"), (2, "wrong-service")),
        (refusal(404, "NoSuchBucket"), (1, "s3-bucket")),
        (refusal(403, "InvalidAccessKeyId"), (1, "s3-access-key")),
    ],
    ids=["fhir", "404", "405", "page", "no-xml", "bucket", "key"],
)
def test_no_store_and_no_bucket_get_nothing_of_the_data(job: S3Job, reply: Reply, found: tuple[int, str]) -> None:
    with scripted(lambda _: reply) as store:
        assert step_of_a_job(job, store.url) == found
        assert set(store.names()) <= {"HeadBucket", "ListObjectsV2"}
        assert not any(asked.seen.body for asked in store.asked)


def test_the_step_asks_as_often_as_the_retry_block_says(job: S3Job) -> None:
    with scripted(once("HeadBucket", refusal(503, "SlowDown"))) as store:
        assert step_of_a_job(job, store.url) == (0, "")
        assert store.names()[:3] == ["HeadBucket", "HeadBucket", "ListObjectsV2"]


def test_keys_that_may_only_write_are_told_by_the_step_and_write(job: S3Job) -> None:
    denied = {"HeadBucket": Reply(403), "ListObjectsV2": refusal(403, "AccessDenied")}
    with scripted(lambda asked: denied.get(asked.name)) as store:
        code, said = step_of_a_job(job, store.url)
        assert (code, "may not look into the bucket" in said) == (0, True)
        assert [*store.objects] == ["job-1/a.ndjson"]


def test_preflight_names_the_region_that_head_names() -> None:
    with scripted(lambda _: Reply(301, b"", {"x-amz-bucket-region": "us-west-2"})) as store:
        found = findings(configuration(store.url), environ={})
        assert store.names() == ["HeadBucket"]
    assert "us-west-2" in found[0].render()


def test_preflight_says_that_nobody_answers_after_all_attempts() -> None:
    with scripted(lambda _: Raw(then="reset")) as store:
        found = findings(configuration(store.url), environ={})
        assert store.names() == ["HeadBucket"] * 3
    assert [(error.reference, error.transient) for error in found] == [("connection-broken", True)]


def test_settings_that_make_no_address_are_a_finding_of_the_configuration() -> None:
    found = findings(configuration(None, bucket="Not A Bucket!", use_path_style=False), environ={})
    assert [(error.reference, error.exit_code) for error in found] == [("s3-configuration", 2)]
