"""Requests of ``s3_upload`` on the wire: signatures, checksums, proxies, TLS, and the sources of settings."""

from __future__ import annotations

import base64
import hashlib
import os
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.peers.proxy import ForwardProxy
from tests.peers.s3 import KEY_ID, SMALL, S3Job, configuration, scripted

CONTENT = b'{"resourceType":"Patient","id":"p"}\n'
PROXY_AUTH = "Basic " + base64.b64encode(b"u:p\xc3\xa4ss").decode()
PROXY_BLOCK: dict[str, Any] = {"send": {"auth": {"username": "u", "password": "päss"}}}


@pytest.fixture
def job(tmp_path: Path) -> S3Job:
    job = S3Job(tmp_path)
    job.write("a.ndjson", CONTENT)
    return job


class Recorder(httpx.BaseTransport):
    """An object store as a transport: it records requests, stores nothing, and refuses HEAD."""

    def __init__(self) -> None:
        self.seen: list[tuple[httpx.Request, bytes]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append((request, request.read()))
        match request.method:
            case "HEAD":
                return httpx.Response(403)
            case "PUT":
                return httpx.Response(200, headers={"ETag": '"e"'})
            case "POST" if "uploads" in str(request.url.query):
                return httpx.Response(200, content=b"<R><UploadId>u1</UploadId></R>")
            case "POST":
                return httpx.Response(200, content=b"<R><ETag>e</ETag></R>")
            case _:
                return httpx.Response(200, content=b"<R></R>")


# Where settings come from


@pytest.mark.slow
def test_credentials_and_endpoint_come_from_the_configuration_alone(
    job: S3Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    with scripted() as store:
        job.send(store.url)
        seen = store.seen
    assert len(seen) == 6
    for one in seen:
        assert f"Credential={KEY_ID}/" in (one.authorization or "")
        assert "/eu-central-1/s3/aws4_request" in (one.authorization or "")
        assert "x-amz-security-token" not in one.headers
        assert not any(name.startswith("x-amz-checksum") for name in one.headers)
    recorder = Recorder()
    job.send(configuration(None), transport=recorder)
    assert {request.url.host for request, _ in recorder.seen} == {"s3.eu-central-1.amazonaws.com"}


# Addresses


@pytest.mark.parametrize(
    ("s3", "url"),
    [
        ({"endpoint": "https://s3.hospital.example"}, "https://s3.hospital.example/sluice-demo/job-1/a.ndjson"),
        (
            {"endpoint": "https://s3.hospital.example:9000/"},
            "https://s3.hospital.example:9000/sluice-demo/job-1/a.ndjson",
        ),
        (
            {"endpoint": "https://s3.hospital.example", "use_path_style": False},
            "https://sluice-demo.s3.hospital.example/job-1/a.ndjson",
        ),
        ({"use_path_style": False}, "https://sluice-demo.s3.eu-central-1.amazonaws.com/job-1/a.ndjson"),
        # An address has no subdomains.
        (
            {"endpoint": "http://192.0.2.7:9000", "use_path_style": False},
            "http://192.0.2.7:9000/sluice-demo/job-1/a.ndjson",
        ),
        ({}, "https://s3.eu-central-1.amazonaws.com/sluice-demo/job-1/a.ndjson"),
    ],
)
def test_path_style_and_virtual_hosts(job: S3Job, s3: dict[str, Any], url: str) -> None:
    recorder = Recorder()
    job.send(configuration(**({"endpoint": None} | s3)), transport=recorder)
    assert [str(request.url) for request, _ in recorder.seen if request.method == "PUT"][:1] == [url]


# Checksums


def test_bodies_go_with_content_md5_and_no_newer_checksum(job: S3Job) -> None:
    content = os.urandom(7 * 1024 * 1024)
    job.write("large.ndjson", content)
    with scripted() as store:
        job.send(store.url, sizes=SMALL)
        uploads = store.of("PutObject") + store.of("UploadPart")
        assert len(uploads) == 4
        for asked in uploads:
            assert asked.seen.headers["content-md5"] == base64.b64encode(hashlib.md5(asked.seen.body).digest()).decode()
            assert asked.seen.headers["content-length"] == str(len(asked.seen.body))
        for one in store.seen:
            assert not any("checksum" in name or name == "x-amz-trailer" for name in one.headers)
            assert "transfer-encoding" not in one.headers
            assert "expect" not in one.headers


def test_the_payload_is_signed_on_plain_http(job: S3Job) -> None:
    with scripted() as store:
        job.send(store.url)
        asked, _ = store.of("PutObject")
    assert asked.seen.headers["x-amz-content-sha256"] == hashlib.sha256(CONTENT).hexdigest()


# Proxies


def test_basic_credentials_go_with_every_request_and_are_not_signed(job: S3Job) -> None:
    job.write("large.ndjson", os.urandom(7 * 1024 * 1024))
    with scripted() as store:
        job.send(configuration(store.url, more=PROXY_BLOCK), sizes=SMALL)
        seen = store.seen
    assert len(seen) == 12
    for one in seen:
        assert one.headers["proxy-authorization"] == PROXY_AUTH
        assert "proxy-authorization" not in (one.authorization or "").lower()


def test_the_auth_block_holds_the_credentials_of_a_forward_proxy(job: S3Job) -> None:
    with scripted() as store:
        hosts = {"store.example": ("127.0.0.1", store.port)}
        with ForwardProxy(credentials=("u", "päss"), hosts=hosts) as proxy:
            config = configuration("http://store.example:9000", more=PROXY_BLOCK)
            job.send(config, environ={"http_proxy": proxy.url.replace("://", "://other:ignored@")})
            assert (proxy.requests, proxy.tunnels, proxy.refused) == (6, 0, 0)
        assert store.objects["job-1/a.ndjson"][0] == CONTENT


def test_a_store_over_tls_is_reached_through_a_tunnel(job: S3Job, tmp_path: Path) -> None:
    ca = trustme.CA()
    bundle = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(str(bundle))
    with scripted(tls=serving(ca.issue_cert("store.example"))) as store:
        hosts = {"store.example": ("127.0.0.1", store.port)}
        with ForwardProxy(credentials=("u", "päss"), hosts=hosts) as proxy:
            config = configuration("https://store.example", more=PROXY_BLOCK | {"tls": {"ca_cert_path": str(bundle)}})
            job.send(config, environ={"https_proxy": proxy.url})
            assert (proxy.requests, proxy.refused) == (0, 0)
            assert proxy.tunnels >= 1
        assert {one.headers["proxy-authorization"] for one in store.seen} == {PROXY_AUTH}


# TLS


def serving(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


@pytest.fixture(scope="module")
def leaf() -> trustme.LeafCert:
    return trustme.CA().issue_cert("127.0.0.1")


def test_the_certificate_of_the_store_itself_may_stand_in_the_bundle(
    job: S3Job, leaf: trustme.LeafCert, tmp_path: Path
) -> None:
    bundle = tmp_path / "store.pem"
    leaf.cert_chain_pems[0].write_to_path(str(bundle))
    with scripted(tls=serving(leaf)) as store:
        job.send(configuration(store.url, more={"tls": {"ca_cert_path": str(bundle)}}))
        assert store.objects["job-1/a.ndjson"][0] == CONTENT
        asked, _ = store.of("PutObject")
    # TLS and Content-MD5 protect the body: hashing it for the signature as well would only cost time.
    assert asked.seen.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"


# Reuse


@pytest.mark.slow
def test_at_most_four_requests_are_under_way_also_for_files_in_parts(job: S3Job) -> None:
    for number in range(3):
        job.write(f"large{number}.ndjson", os.urandom(16 * 1024 * 1024))
    with scripted() as store:
        job.send(store.url, sizes=SMALL)
        assert len(store.of("UploadPart")) == 12
        # One connection for each request under way.
        assert 1 < store.connections <= 4
