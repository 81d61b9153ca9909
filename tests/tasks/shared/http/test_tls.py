# ruff: noqa: SIM117 - the outer block sets the scene, the inner one is what is tested
from __future__ import annotations

import logging
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from config import TlsConfig
from config.certificates import read_certificates
from tasks.shared.errors import InputError, NetworkError, ServiceError
from tasks.shared.http import wire as module
from tasks.shared.http.client import ServiceClient
from tasks.shared.http.wire import ssl_context
from tests.peers.client import Sleeps, client
from tests.peers.server import Reply, loopback

NOW = datetime.now(UTC)


def serving(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


def get(http: ServiceClient, url: str) -> int:
    return http.send("GET", url, operation="read").status


def refused(certificate: trustme.LeafCert, bundle: Path | None) -> ServiceError:
    """Return the error of a call to a server with ``certificate``; it must not have been repeated."""
    sleeps = Sleeps()
    with loopback([Reply()], tls=serving(certificate)) as server:
        with client(tls=TlsConfig(ca_cert_path=bundle), sleep=sleeps) as http:
            with pytest.raises(ServiceError) as caught:
                get(http, server.url)
    assert sleeps == []
    assert server.seen == []
    assert "127.0.0.1" in caught.value.message
    return caught.value


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def bundle(tmp_path: Path) -> Callable[..., Path]:
    """Writes a bundle of the PEM texts it is given."""

    def write(*blocks: bytes) -> Path:
        path = tmp_path / "bundle.pem"
        path.write_bytes(b"".join(blocks))
        return path

    return write


def test_a_ca_in_the_bundle_is_trusted(ca: trustme.CA, bundle: Callable[..., Path]) -> None:
    path = bundle(ca.cert_pem.bytes())
    with loopback([Reply()], tls=serving(ca.issue_cert("127.0.0.1"))) as server:
        with client(tls=TlsConfig(ca_cert_path=path)) as http:
            assert get(http, server.url) == 200


def test_every_certificate_of_the_bundle_is_trusted(bundle: Callable[..., Path]) -> None:
    authorities = [trustme.CA() for _ in range(3)]
    path = bundle(*("# Müller-CA\n".encode("latin-1") + authority.cert_pem.bytes() for authority in authorities))
    for authority in authorities:
        with loopback([Reply()], tls=serving(authority.issue_cert("127.0.0.1"))) as server:
            with client(tls=TlsConfig(ca_cert_path=path)) as http:
                assert get(http, server.url) == 200


def test_a_server_certificate_in_the_bundle_is_trusted_without_its_ca(
    ca: trustme.CA, bundle: Callable[..., Path]
) -> None:
    leaf, other = ca.issue_cert("127.0.0.1"), ca.issue_cert("127.0.0.1")
    path = bundle(leaf.cert_chain_pems[0].bytes())
    with loopback([Reply()], tls=serving(leaf)) as server, client(tls=TlsConfig(ca_cert_path=path)) as http:
        assert get(http, server.url) == 200
    assert refused(other, path).reference == "tls-untrusted"


def test_a_self_signed_server_certificate_in_the_bundle_is_trusted(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "blaze")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path, key_path = tmp_path / "cert.pem", tmp_path / "key.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key_path)
    with loopback([Reply()], tls=context) as server, client(tls=TlsConfig(ca_cert_path=path)) as http:
        assert get(http, f"https://localhost:{server.port}/") == 200


def test_the_bundle_is_added_to_the_systems_store(
    ca: trustme.CA, bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # OpenSSL reads the system store from here when the variable is set.
    system = trustme.CA()
    system.cert_pem.write_to_path(str(tmp_path / "system.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "system.pem"))
    for path in (None, bundle(ca.cert_pem.bytes())):
        with loopback([Reply()], tls=serving(system.issue_cert("127.0.0.1"))) as server:
            with client(tls=TlsConfig(ca_cert_path=path)) as http:
                assert get(http, server.url) == 200


def test_an_unknown_ca_is_terminal_and_the_hint_names_the_key(ca: trustme.CA) -> None:
    error = refused(ca.issue_cert("127.0.0.1"), None)
    assert error.reference == "tls-untrusted"
    assert "tls.ca_cert_path" in (error.hint or "")


def test_a_certificate_for_another_host_is_its_own_error(ca: trustme.CA, bundle: Callable[..., Path]) -> None:
    path = bundle(ca.cert_pem.bytes())
    for name in ("fhir.test", "127.0.0.2"):
        assert refused(ca.issue_cert(name), path).reference == "tls-hostname"


def test_an_expired_certificate_is_its_own_error(ca: trustme.CA, bundle: Callable[..., Path]) -> None:
    certificate = ca.issue_cert("127.0.0.1", not_before=NOW - timedelta(9), not_after=NOW - timedelta(1))
    assert refused(certificate, bundle(ca.cert_pem.bytes())).reference == "tls-expired"


def test_a_certificate_of_the_future_is_its_own_error(ca: trustme.CA, bundle: Callable[..., Path]) -> None:
    certificate = ca.issue_cert("127.0.0.1", not_before=NOW + timedelta(1), not_after=NOW + timedelta(9))
    assert refused(certificate, bundle(ca.cert_pem.bytes())).reference == "tls-not-yet-valid"


@contextmanager
def greeting(answer: bytes, *, reset: bool = False) -> Iterator[int]:
    """Yield a port that answers a TLS handshake with ``answer`` and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(4096)
                sock.sendall(answer)
                if reset:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def test_https_to_a_port_that_answers_in_plain_text_is_terminal() -> None:
    sleeps = Sleeps()
    with greeting(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port, client(sleep=sleeps) as http:
        with pytest.raises(ServiceError) as caught:
            get(http, f"https://127.0.0.1:{port}/")
    assert caught.value.reference == "tls-protocol"
    assert sleeps == []


@pytest.mark.parametrize("reset", [False, True])
def test_a_handshake_that_breaks_off_is_transient(reset: bool) -> None:
    with greeting(b"", reset=reset) as port, client(attempts=1) as http:
        with pytest.raises(NetworkError) as caught:
            get(http, f"https://127.0.0.1:{port}/")
    assert caught.value.reference in ("tls-handshake", "connect-failed")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"not a certificate", "no PEM"),
        (b"\x30\x82\x01\x0a\x02\x82", "no PEM"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "1 of 1 in the bundle is damaged"),
        (b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n", "1 of 1 in the bundle is damaged"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "no PEM"),
    ],
)
def test_a_bundle_that_holds_no_certificate_is_a_configuration_error(
    content: bytes, says: str, bundle: Callable[..., Path]
) -> None:
    path = bundle(content)
    with pytest.raises(InputError, match=says) as caught:
        client(tls=TlsConfig(ca_cert_path=path))
    assert caught.value.reference == "tls-ca-bundle"
    assert caught.value.exit_code == 2
    assert str(path) in caught.value.render()
    assert "tls.ca_cert_path" in caught.value.render()


def test_a_damaged_certificate_among_good_ones_is_named(ca: trustme.CA, bundle: Callable[..., Path]) -> None:
    good = ca.cert_pem.bytes()
    path = bundle(good, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", good)
    with pytest.raises(InputError, match="certificate 2 of 3"):
        ssl_context(TlsConfig(ca_cert_path=path))


def test_a_bundle_that_cannot_be_read_is_a_configuration_error(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.pem", tmp_path):
        with pytest.raises(InputError) as caught:
            ssl_context(TlsConfig(ca_cert_path=path))
        assert caught.value.reference == "tls-ca-bundle"


def test_a_broken_bundle_is_found_also_when_verification_is_off(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        ssl_context(TlsConfig(ca_cert_path=tmp_path / "missing.pem", insecure_skip_verify=True))


def test_certificates_are_taken_in_order_and_the_same_one_twice(ca: trustme.CA, bundle: Callable[..., Path]) -> None:
    pem = ca.cert_pem.bytes()
    path = bundle(b"subject=/CN=x\n", pem, b"\r\n", pem.replace(b"\n", b"\r\n"))
    assert len(read_certificates(path)) == 2
    ssl_context(TlsConfig(ca_cert_path=path))


def test_insecure_skip_verify_takes_any_certificate_and_warns_once(
    ca: trustme.CA, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_warned", type(module._warned)())
    certificate = ca.issue_cert("fhir.test", not_before=NOW - timedelta(9), not_after=NOW - timedelta(1))
    for _ in range(2):
        with loopback([Reply()], tls=serving(certificate)) as server:
            with client(tls=TlsConfig(insecure_skip_verify=True)) as http:
                assert get(http, server.url) == 200
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.name for record in warnings] == ["sluice.tls"]
    assert "insecure_skip_verify" in warnings[0].getMessage()


def test_verification_is_on_by_default(caplog: pytest.LogCaptureFixture) -> None:
    context = ssl_context(TlsConfig())
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert caplog.records == []
