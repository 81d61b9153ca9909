"""``s3_upload``: what is in the bucket afterwards, on the wire, and when the store refuses (docs/services.md)."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import ssl
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from s3transfer.manager import TransferConfig

from config import PipelineConfig
from tasks.send.step import STEP
from tasks.shared.errors import NetworkError, ServiceBusyError, ServiceError, SluiceError, Stopped
from tasks.shared.report import StepReport
from tasks.shared.service import ProbeWarning
from tests.peers.job import keep_secret, probed
from tests.peers.proxy import ForwardProxy
from tests.peers.s3 import BUCKET, KEY_ID, SECRET, Script, ScriptedStore, refusal, sha256
from tests.peers.server import Raw, Reply, loopback
from tests.tasks.send.place import SendJob

MIB = 1 << 20
CONTENT = b'{"resourceType":"Patient","id":"canary-patient"}\n'
MANIFEST = "j/upload_manifest.json"
PROXY_AUTH = "Basic " + base64.b64encode(b"u:p\xc3\xa4ss").decode()
PROXY_BLOCK: dict[str, Any] = {"auth": {"username": "u", "password": "päss"}}


def configuration(endpoint: str | None, *, more: dict[str, Any] | None = None, **s3: Any) -> PipelineConfig:
    fields: dict[str, Any] = {"bucket": BUCKET, "region": "eu-central-1", "endpoint": endpoint, "use_path_style": True}
    fields |= {"access_key_id": KEY_ID, "secret_access_key": SECRET} | s3
    top = dict(more or {})
    send = {"send_as": "s3_upload", "s3": fields} | {key: top.pop(key) for key in ("auth",) if key in top}
    retry = {"max_attempts": 3, "initial_backoff_ms": 1, "max_backoff_ms": 2}
    return PipelineConfig.model_validate({"services": {"send": send}, "retry": retry} | top)


class S3Job(SendJob):
    """A job whose files are uploaded."""

    def send(self, config: PipelineConfig | str) -> StepReport:
        return STEP.run(self.prepare(configuration(config) if isinstance(config, str) else config))

    @property
    def manifest(self) -> Path:
        return self.directory / "send/upload_manifest.json"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Job:
    # Parts as small as S3 allows, so that a test need not move much.
    small = TransferConfig(multipart_threshold=6 * MIB, multipart_chunksize=5 * MIB, max_request_concurrency=4)
    monkeypatch.setattr("tasks.send.s3_upload.AT_ONCE", small)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    job = S3Job(tmp_path)
    job.put("a.ndjson", CONTENT)
    return job


@pytest.fixture
def store() -> Iterator[ScriptedStore]:
    with ScriptedStore() as store:
        yield store


def once(name: str, reply: Reply | Raw) -> Script:
    """``reply`` to the first request of this name."""
    left = [reply]
    return lambda asked: left.pop() if asked.name == name and left else None


def always(name: str, reply: Reply | Raw) -> Script:
    return lambda asked: reply if asked.name == name else None


# Objects


def test_every_file_becomes_an_object_named_after_job_and_path(job: S3Job, store: ScriptedStore) -> None:
    kinds = {
        "core.ndjson.zst": "application/zstd",
        "a.ndjson": "application/fhir+ndjson",
        "csv/Diagnosen (ä) a%2Fb&c=d.csv": "text/csv; charset=utf-8",
        "B.NDJSON": "application/fhir+ndjson",
        "a": "application/octet-stream",
    }
    for name in kinds:
        job.put(name, CONTENT if name != "B.NDJSON" else b"")
    for name in (".facts.json", "a.ndjson.part", "csv/b.csv.partial", ".cache/x.ndjson", "a.ndjson~"):
        job.put(name, CONTENT)
    result = job.send(configuration(store.url, prefix="/projects/x/"))
    prefix = "projects/x/j/"
    assert set(store.objects) == {*(prefix + name for name in kinds), prefix + "upload_manifest.json"}
    for name, kind in kinds.items():
        content, headers = store.objects[prefix + name]
        assert content == (job.input / name).read_bytes()
        assert (headers["content-type"], headers["x-amz-meta-sha256"]) == (kind, sha256(content))
        assert "content-encoding" not in headers
    assert (result.files, result.details["uploaded"], result.output) == (5, 5, None)
    assert result.bytes_in == result.bytes_out == sum((job.input / name).stat().st_size for name in kinds)


def test_the_manifest_is_the_last_object_and_lists_all_others(job: S3Job, store: ScriptedStore) -> None:
    job.put("b.ndjson", CONTENT * 2)
    job.send(store.url)
    assert [asked.key for asked in store.of("PutObject")][-1] == MANIFEST
    assert store.objects[MANIFEST][0] == job.manifest.read_bytes()
    listed = json.loads(job.manifest.read_text())
    assert [entry["key"] for entry in listed] == ["j/a.ndjson", "j/b.ndjson"]
    for entry, content in zip(listed, (CONTENT, CONTENT * 2), strict=True):
        assert (entry["size"], entry["sha256"]) == (len(content), sha256(content))
        assert (entry["time"][:2], entry["time"][-1], '"' in entry["etag"]) == ("20", "Z", False)
        assert set(entry) == {"key", "size", "sha256", "etag", "time"}
    assert stat.S_IMODE(job.manifest.stat().st_mode) == 0o600


def test_what_is_there_is_not_sent_again_and_anything_else_is(job: S3Job, store: ScriptedStore) -> None:
    for name in ("b.ndjson", "c.ndjson"):
        job.put(name, b"one\n")
    job.send(store.url)
    theirs = replace(store.of("PutObject")[-1].seen, target=f"/{BUCKET}/j/c.ndjson", body=b"one\n")
    store.asked.clear()
    second = job.send(store.url)
    assert set(store.names()) == {"HeadObject"}
    assert (second.details["uploaded"], second.details["already_there"]) == (0, 3)
    job.put("b.ndjson", b"two\n")
    # the same content, without our metadata
    store.s3(replace(theirs, headers={"host": "x", "authorization": theirs.headers["authorization"]}))
    assert job.send(store.url).details["uploaded"] == 2
    assert store.objects["j/b.ndjson"][0] == b"two\n"


def test_a_large_file_goes_in_parts_of_which_one_is_repeated_alone(job: S3Job, store: ScriptedStore) -> None:
    content = os.urandom(11 * MIB + 17)
    job.put("large.ndjson", content)
    store.script = once("UploadPart", refusal(500, "InternalError"))
    job.send(store.url)
    assert len(store.of("UploadPart")) == 4
    body, headers = store.objects["j/large.ndjson"]
    assert (body, headers["x-amz-meta-sha256"]) == (content, sha256(content))
    assert store.s3.unfinished == []
    snapshot = job.context.meter.snapshot()
    assert (snapshot.files, snapshot.files_total) == (2, 2)
    assert snapshot.bytes >= len(CONTENT) + len(content)
    assert job.context.meter.retries == 1


@pytest.mark.slow
def test_above_64_mib_a_file_goes_in_parts(tmp_path: Path, store: ScriptedStore) -> None:
    job = S3Job(tmp_path)
    for name, more in (("a.ndjson", 0), ("b.ndjson", 1)):
        os.truncate(job.put(name, b""), 64 * MIB + more)
    job.send(store.url)
    assert [asked.key for asked in store.of("PutObject")] == ["j/a.ndjson", MANIFEST]
    assert len(store.of("UploadPart")) == 3


def test_an_upload_in_parts_that_fails_is_aborted(job: S3Job, store: ScriptedStore) -> None:
    job.put("large.ndjson", os.urandom(7 * MIB))
    store.script = always("UploadPart", refusal(403, "QuotaExceeded"))
    with pytest.raises(ServiceError) as caught:
        job.send(store.url)
    assert caught.value.reference == "s3-store-full"
    assert store.s3.unfinished == []
    assert MANIFEST not in store.objects


@pytest.mark.parametrize("there", [False, True])
def test_an_object_that_is_another_one_afterwards_is_an_error(job: S3Job, store: ScriptedStore, there: bool) -> None:
    other = Reply(200, headers={"ETag": "x", "x-amz-meta-sha256": "0" * 64}, length=len(CONTENT))
    wrong = other if there else Reply(404)
    store.script = lambda asked: wrong if asked.name == "HeadObject" and "PutObject" in store.names() else None
    with pytest.raises(ServiceError) as caught:
        job.send(store.url)
    assert caught.value.reference == "s3-differs"
    assert not job.manifest.exists()


def test_keys_that_may_not_list_learn_403_of_what_is_not_there_yet(job: S3Job, store: ScriptedStore) -> None:
    store.script = lambda asked: Reply(403) if asked.name == "HeadObject" and asked.key not in store.objects else None
    job.send(store.url)
    assert store.objects["j/a.ndjson"][0] == CONTENT


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
def test_a_transient_failure_is_repeated_with_the_same_bytes(
    job: S3Job, store: ScriptedStore, reply: Reply | Raw
) -> None:
    store.script = once("PutObject", reply)
    job.send(store.url)
    first, second, _ = store.of("PutObject")
    assert first.seen.body == second.seen.body == CONTENT
    assert store.objects["j/a.ndjson"][0] == CONTENT


@pytest.mark.parametrize("reply", [refusal(503, "SlowDown"), refusal(400, "RequestTimeout")])
def test_a_transient_failure_that_stays_is_exit_code_3(job: S3Job, store: ScriptedStore, reply: Reply) -> None:
    store.script = always("PutObject", reply)
    with pytest.raises(ServiceBusyError) as caught:
        job.send(store.url)
    assert (caught.value.reference, caught.value.status, caught.value.exit_code) == ("service-busy", reply.status, 3)
    assert len(store.of("PutObject")) == 3


def test_an_error_under_status_200_at_the_end_of_an_upload_in_parts_is_repeated(
    job: S3Job, store: ScriptedStore
) -> None:
    job.put("large.ndjson", os.urandom(7 * MIB))
    body = b"<?xml version='1.0'?>\n<Error><Code>InternalError</Code><Message>CANARY</Message></Error>"
    store.script = once("CompleteMultipartUpload", Reply(200, body))
    job.send(store.url)
    assert len(store.of("CompleteMultipartUpload")) == 2
    assert "j/large.ndjson" in store.objects


@pytest.mark.parametrize(
    ("reply", "reference", "said"),
    [
        (refusal(403, "AccessDenied"), "s3-access-denied", "put objects"),
        (refusal(404, "NoSuchBucket"), "s3-bucket", "services.send.s3.bucket"),
        (refusal(403, "InvalidAccessKeyId"), "s3-access-key", "access_key_id"),
        (refusal(403, "SignatureDoesNotMatch"), "s3-signature", "secret_access_key"),
        (refusal(400, "AuthorizationHeaderMalformed", "<Region>eu-west-3</Region>"), "s3-region", "region eu-west-3"),
        (refusal(301, "PermanentRedirect", **{"x-amz-bucket-region": "us-west-2"}), "s3-region", "region us-west-2"),
        (refusal(307, "TemporaryRedirect", Location="http://127.0.0.2:1/"), "redirect-refused", "redirected"),
        (Reply(507), "s3-store-full", "full"),
        (Reply(407), "proxy-authentication", "services.send.auth"),
        (refusal(400, "EntityTooLarge"), "s3-refused", "400 EntityTooLarge"),
        (refusal(400, "InvalidArgument"), "s3-refused", "400 InvalidArgument"),
        (Reply(403, b"not xml: CANARY"), "s3-access-denied", "403"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_terminal_refusal_says_what_to_change_and_is_not_repeated(
    job: S3Job, store: ScriptedStore, reply: Reply, reference: str, said: str
) -> None:
    store.script = always("PutObject", reply)
    with pytest.raises(ServiceError) as caught:
        job.send(store.url)
    shown = f"{caught.value.render()} {caught.value!r}"
    assert caught.value.reference == reference
    assert said in shown
    assert len(store.of("PutObject")) == 1
    assert not job.manifest.exists()
    for secret in (SECRET, KEY_ID, "CANARY", "canary"):
        assert secret not in shown


def test_a_page_in_place_of_the_store_is_no_s3(job: S3Job, store: ScriptedStore) -> None:
    job.put("large.ndjson", os.urandom(7 * MIB))
    store.script = always("CreateMultipartUpload", Reply(200, b"<html>Log in", {"Content-Type": "text/html"}))
    with pytest.raises(ServiceError) as caught:
        job.send(store.url)
    assert caught.value.reference == "s3-answer"


def test_the_access_key_that_a_store_quotes_is_blanked_in_what_is_kept(job: S3Job, store: ScriptedStore) -> None:
    quoted = refusal(403, "InvalidAccessKeyId", f"<AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId>")
    store.script = always("PutObject", quoted)
    config = configuration(store.url)
    keep_secret(config)
    with pytest.raises(SluiceError):
        job.send(config)
    (kept,) = job.failed()
    assert b"<AWSAccessKeyId>[blanked]</AWSAccessKeyId>" in kept.read_bytes()


@pytest.mark.slow
def test_a_store_that_does_not_answer_in_time_is_a_transient_error(job: S3Job, store: ScriptedStore) -> None:
    store.script = always("PutObject", Raw(then="stall"))
    with pytest.raises(NetworkError) as caught:
        job.send(configuration(store.url, timeout="PT0.3S"))
    assert len(store.of("PutObject")) == 3
    assert caught.value.reference == "timeout"


def test_a_stop_while_waiting_for_the_next_attempt_ends_at_once(job: S3Job, store: ScriptedStore) -> None:
    store.script = always("PutObject", refusal(503, "SlowDown", **{"Retry-After": "600"}))
    context = job.prepare(configuration(store.url))

    def watch() -> None:
        while "PutObject" not in store.names():
            time.sleep(0.01)
        context.stop.request("SIGTERM")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    with pytest.raises(Stopped):
        STEP.run(context)
    thread.join()


def test_nothing_secret_is_logged_at_any_level(
    job: S3Job, store: ScriptedStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.script = once("PutObject", refusal(503, "SlowDown"))
    with caplog.at_level(logging.DEBUG):
        job.send(configuration(store.url, more={"auth": {"username": "u", "password": "canary-proxy"}}))
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "failed (503)" in text
    for secret in (SECRET, KEY_ID, "canary-proxy", "CANARY", "Authorization", "Signature="):
        assert secret not in text


# On the wire


@pytest.mark.slow
def test_credentials_and_endpoint_come_from_the_configuration_alone(
    job: S3Job, store: ScriptedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".aws").mkdir(parents=True)
    planted = (
        "[default]\naws_access_key_id = AKIDFILE\naws_secret_access_key = file\nregion = mars-1\n"
        "endpoint_url = http://127.0.0.1:1\nmax_attempts = 9\nca_bundle = /nowhere\n"
        "s3 =\n  addressing_style = virtual\n"
        "services = x\n[services x]\ns3 =\n  endpoint_url = http://127.0.0.1:1\n"
        "[profile planted]\nsource_profile = default\nrole_arn = arn:aws:iam::1:role/x\n"
    )
    for name in ("config", "credentials"):
        (home / ".aws" / name).write_text(planted)
    for variable, value in {
        "HOME": str(home),
        "AWS_ACCESS_KEY_ID": "AKIDENV",
        "AWS_SECRET_ACCESS_KEY": "environment",
        "AWS_SESSION_TOKEN": "token",
        "AWS_PROFILE": "no-such-profile",
        "AWS_CONFIG_FILE": str(home / ".aws" / "config"),
        "AWS_REGION": "mars-2",
        "AWS_DEFAULT_REGION": "mars-3",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
        "AWS_CA_BUNDLE": "/nowhere",
        "AWS_MAX_ATTEMPTS": "9",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_supported",
        "AWS_USE_DUALSTACK_ENDPOINT": "true",
        "AWS_USE_FIPS_ENDPOINT": "true",
        "AWS_DATA_PATH": "/nowhere",
    }.items():
        monkeypatch.setenv(variable, value)
    job.send(store.url)
    assert len(store.seen) == 6
    for one in store.seen:
        assert f"Credential={KEY_ID}/" in (one.authorization or "")
        assert "/eu-central-1/s3/aws4_request" in (one.authorization or "")
        assert "x-amz-security-token" not in one.headers
        assert not any(name.startswith("x-amz-checksum") for name in one.headers)


@pytest.mark.parametrize(
    ("s3", "asked"),
    [
        ({"endpoint": "http://s3.hospital.example"}, f"http://s3.hospital.example/{BUCKET}/j/a.ndjson"),
        ({"endpoint": "http://s3.hospital.example:9000/"}, f"http://s3.hospital.example:9000/{BUCKET}/j/a.ndjson"),
        (
            {"endpoint": "http://s3.hospital.example", "use_path_style": False},
            f"http://{BUCKET}.s3.hospital.example/j/a.ndjson",
        ),
        # An address has no subdomains.
        ({"endpoint": "http://192.0.2.7:90", "use_path_style": False}, f"http://192.0.2.7:90/{BUCKET}/j/a.ndjson"),
        ({"use_path_style": False}, f"{BUCKET}.s3.eu-central-1.amazonaws.com:443"),
        ({}, "s3.eu-central-1.amazonaws.com:443"),
    ],
)
def test_path_style_and_virtual_hosts(
    job: S3Job, monkeypatch: pytest.MonkeyPatch, s3: dict[str, Any], asked: str
) -> None:
    with loopback([Reply(404)]) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with pytest.raises(SluiceError):
            job.send(configuration(**({"endpoint": None} | s3)))
    assert proxy.seen[0].target == asked


def test_bodies_go_with_content_md5_and_no_newer_checksum(job: S3Job, store: ScriptedStore) -> None:
    job.put("large.ndjson", os.urandom(7 * MIB))
    job.send(store.url)
    uploads = store.of("PutObject") + store.of("UploadPart")
    assert len(uploads) == 4
    for asked in uploads:
        assert asked.seen.headers["content-md5"] == base64.b64encode(hashlib.md5(asked.seen.body).digest()).decode()
        assert asked.seen.headers["content-length"] == str(len(asked.seen.body))
        # The payload is signed where TLS does not protect it.
        assert asked.seen.headers["x-amz-content-sha256"] == sha256(asked.seen.body)
    for one in store.seen:
        assert not any("checksum" in name or name == "x-amz-trailer" for name in one.headers)
        assert "transfer-encoding" not in one.headers
        assert "expect" not in one.headers


def test_basic_credentials_go_with_every_request_and_are_not_signed(job: S3Job, store: ScriptedStore) -> None:
    job.put("large.ndjson", os.urandom(7 * MIB))
    job.send(configuration(store.url, more=PROXY_BLOCK))
    assert len(store.seen) == 12
    for one in store.seen:
        assert one.headers["proxy-authorization"] == PROXY_AUTH
        assert "proxy-authorization" not in (one.authorization or "").lower()


@pytest.mark.parametrize("password", ["päss", "wrong"])
def test_the_auth_block_holds_the_credentials_of_a_forward_proxy(
    job: S3Job, store: ScriptedStore, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    hosts = {"store.example": ("127.0.0.1", store.port)}
    with ForwardProxy(credentials=("u", password), hosts=hosts) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("://", "://other:ignored@"))
        config = configuration("http://store.example:9000", more=PROXY_BLOCK)
        if password == "wrong":
            with pytest.raises(ServiceError) as caught:
                job.send(config)
            assert caught.value.reference == "proxy-authentication"
            assert "services.send.auth" in caught.value.render()
            return
        job.send(config)
        assert (proxy.requests, proxy.tunnels, proxy.refused) == (6, 0, 0)
    assert store.objects["j/a.ndjson"][0] == CONTENT


def over_tls(certificate: trustme.LeafCert) -> ScriptedStore:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return ScriptedStore(tls=context)


def test_a_store_over_tls_is_reached_through_a_tunnel(
    job: S3Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = trustme.CA()
    bundle = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(str(bundle))
    with over_tls(ca.issue_cert("store.example")) as store:
        hosts = {"store.example": ("127.0.0.1", store.port)}
        with ForwardProxy(credentials=("u", "päss"), hosts=hosts) as proxy:
            monkeypatch.setenv("https_proxy", proxy.url)
            more = PROXY_BLOCK | {"tls": {"ca_cert_path": str(bundle)}}
            job.send(configuration("https://store.example", more=more))
            assert (proxy.requests, proxy.refused) == (0, 0)
            assert proxy.tunnels >= 1
        assert {one.headers["proxy-authorization"] for one in store.seen} == {PROXY_AUTH}


def test_the_certificate_of_the_store_itself_may_stand_in_the_bundle(job: S3Job, tmp_path: Path) -> None:
    leaf, bundle = trustme.CA().issue_cert("127.0.0.1"), tmp_path / "store.pem"
    leaf.cert_chain_pems[0].write_to_path(str(bundle))
    with over_tls(leaf) as store:
        job.send(configuration(store.url, more={"tls": {"ca_cert_path": str(bundle)}}))
        assert store.objects["j/a.ndjson"][0] == CONTENT
        asked, _ = store.of("PutObject")
    # TLS and Content-MD5 protect the body: hashing it for the signature as well would only cost time.
    assert asked.seen.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"


# Before a job


def findings(config: PipelineConfig) -> list[Any]:
    return probed(*STEP.services(config), config)


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
def test_the_bucket_is_looked_for_before_a_job(store: ScriptedStore, reply: Reply | Raw, found: list[str]) -> None:
    store.script = lambda _: reply
    assert [error.reference for error in findings(configuration(store.url))] == found
    assert set(store.names()) == {"HeadBucket"}


def test_keys_that_may_not_look_for_the_bucket_are_a_doubt(store: ScriptedStore) -> None:
    store.script = lambda _: Reply(403)
    (doubt,) = findings(configuration(store.url))
    assert isinstance(doubt, ProbeWarning)
    assert "no right to look for the bucket" in doubt.text


def test_settings_that_make_no_address_are_a_finding_of_the_configuration() -> None:
    found = findings(configuration(None, bucket="Not A Bucket!", use_path_style=False))
    assert [(error.reference, error.exit_code) for error in found] == [("s3-configuration", 2)]
