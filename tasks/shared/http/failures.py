"""Which error it is when no usable answer arrived: the translation of httpx's and httpcore's exceptions.

Document 3 §1: connect, read and write errors and timeouts are transient. Certificates and proxies that say no
are not: nothing changes until a person does something. The texts of the foreign exceptions are not used, they
can quote headers.
"""

from __future__ import annotations

import socket
import ssl
import traceback
from collections.abc import Iterator
from pathlib import Path

import httpcore
import httpx

from tasks.shared.errors import (
    InputError,
    InternalError,
    NetworkError,
    ServiceError,
    SluiceError,
    StalledError,
    Stopped,
)
from tasks.shared.http.answer import Where
from tasks.shared.http.packed import BrokenBodyError
from tasks.shared.http.proxies import Proxy

# What a server that cannot speak TLS, or none of ours, makes OpenSSL say: trying again changes nothing.
_PROTOCOL_REASONS = frozenset(
    {
        "WRONG_VERSION_NUMBER",
        "HTTP_REQUEST",
        "UNSUPPORTED_PROTOCOL",
        "UNKNOWN_PROTOCOL",
        "NO_PROTOCOLS_AVAILABLE",
        "TLSV1_ALERT_PROTOCOL_VERSION",
        "SSLV3_ALERT_HANDSHAKE_FAILURE",
        "DH_KEY_TOO_SMALL",
        "UNSAFE_LEGACY_RENEGOTIATION_DISABLED",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    }
)


def error_without_answer(
    error: Exception, where: Where, *, proxy: Proxy | None = None, in_body: bool = False
) -> SluiceError | Stopped:
    """Our error for ``error``; one that is ours already comes back as it is.

    ``proxy`` is the one the request went through. ``in_body`` says that the answer had begun, as a stream:
    then a silence is a ``StalledError`` (document 1, download_stall_timeout).
    """
    if isinstance(error, SluiceError | Stopped):
        return error
    if isinstance(error, httpcore.ProxyError | httpx.ProxyError):
        return _proxy_error(error, where, proxy)
    if isinstance(error, httpcore.TimeoutException | httpx.TimeoutException):
        return _timeout(error, where, proxy, in_body=in_body)
    if isinstance(error, httpcore.ConnectError | httpx.ConnectError):
        return _connect_error(error, where, proxy)
    if isinstance(error, BrokenBodyError):
        what = f"failed: the compressed answer of {where.host} is truncated or damaged, or has bytes after its end"
        return where.error(NetworkError, "connection-broken", what, hint=_later(where))
    if isinstance(error, httpx.DecodingError):
        return where.error(ServiceError, "answer-encoding", "was answered in an encoding that cannot be read")
    if isinstance(error, httpcore.LocalProtocolError | httpx.LocalProtocolError):
        return where.error(InternalError, "request-invalid", "cannot be sent: the request is not valid HTTP")
    if isinstance(
        error,
        httpcore.NetworkError | httpcore.ProtocolError | httpx.NetworkError | httpx.ProtocolError,
    ):
        what = f"failed: {where.host} broke the connection" + _through(proxy)
        return where.error(NetworkError, "connection-broken", what, hint=_later(where))
    if isinstance(error, httpcore.UnsupportedProtocol | httpx.UnsupportedProtocol | httpx.InvalidURL):
        return where.error(InputError, "url-invalid", "needs an http or https URL")
    frames = traceback.extract_tb(error.__traceback__)
    line = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return where.error(InternalError, "internal", f"failed with an unexpected {type(error).__name__}{line}")


def _timeout(error: Exception, where: Where, proxy: Proxy | None, *, in_body: bool) -> SluiceError:
    if isinstance(error, httpcore.ConnectTimeout | httpx.ConnectTimeout):
        what = f"failed: no connection to {_peer(where, proxy)} in time"
        return where.error(NetworkError, "connect-timeout", what, hint=_later(where))
    if in_body:
        what = f"stalled: {where.host} stopped sending"
        return where.error(StalledError, "transfer-stalled", what, hint=_later(where))
    what = f"failed: no answer from {where.host} in time" + _through(proxy)
    return where.error(
        NetworkError,
        "timeout",
        what,
        hint=f"the service may be busy; a timeout of services.{where.service} can be raised",
    )


def _connect_error(error: Exception, where: Where, proxy: Proxy | None) -> SluiceError:
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _certificate_error(cause, where)
        if isinstance(cause, ssl.SSLError):
            if cause.reason in _PROTOCOL_REASONS:
                return where.error(
                    ServiceError,
                    "tls-protocol",
                    f"failed: {where.host} does not speak a TLS that we do ({cause.reason})",
                    hint="is the port right, and is it https? very old TLS versions are not supported",
                )
            what = f"failed: the TLS handshake with {where.host} broke off"
            return where.error(NetworkError, "tls-handshake", what, hint=_later(where))
        if isinstance(cause, socket.gaierror | UnicodeError):
            what = f"failed: the name {_peer(where, proxy)} is not known"
            return where.error(NetworkError, "host-unknown", what, hint="check the host name, and this machine's DNS")
    what = f"failed: no connection to {_peer(where, proxy)}"
    return where.error(NetworkError, "connect-failed", what, hint=_later(where))


def _certificate_error(error: ssl.SSLCertVerificationError, where: Where) -> SluiceError:
    host = where.host
    # X509_V_ERR_*: https://docs.openssl.org/3.0/man3/X509_STORE_CTX_get_error/
    match error.verify_code:
        case 9:
            reference, what = "tls-not-yet-valid", f"failed: the certificate of {host} is not valid yet"
            hint = "check the clock of this machine and of the service"
        case 10:
            reference, what = (
                "tls-expired",
                f"failed: the certificate of {host}, or one above it, has expired",
            )
            hint = "the service needs a new certificate; check also the clock of this machine"
        case 62 | 64:
            reference, what = "tls-hostname", f"failed: the certificate of {host} is for another host name"
            hint = "use a name in the URL that the certificate holds"
        case _:
            reference = "tls-untrusted"
            what = f"failed: the certificate of {host} is not trusted ({error.verify_message})"
            hint = "add the CA's or the server's own certificate to the file that tls.ca_cert_path names"
    return where.error(ServiceError, reference, what, hint=hint)


def _proxy_error(error: Exception, where: Where, proxy: Proxy | None) -> SluiceError:
    # httpcore gives the proxy's answer to CONNECT only as text, "407 Proxy Authentication Required".
    digits = str(error)[:3]
    status = int(digits) if digits.isdigit() else None
    name = proxy.host if proxy else "?"
    if status == 407:
        return where.error(
            ServiceError,
            "proxy-authentication",
            f"failed: the proxy {name} asks for other credentials",
            hint="give user and password in the proxy variable: http://user:password@host:port",
            status=status,
        )
    what = f"failed: the proxy {name} made no connection to {where.host}"
    if status is not None and 400 <= status < 500 and status not in (408, 429):
        hint = "the proxy does not allow this host; NO_PROXY names hosts that are reached directly"
        return where.error(ServiceError, "proxy-refused", what, hint=hint, status=status)
    return where.error(NetworkError, "proxy-unreachable", what, hint=_later(where), status=status)


def _peer(where: Where, proxy: Proxy | None) -> str:
    return f"the proxy {proxy.host}:{proxy.port}" if proxy else where.host


def _through(proxy: Proxy | None) -> str:
    return f" (through the proxy {proxy.host})" if proxy else ""


def _later(where: Where) -> str:
    return f"is services.{where.service} running and reachable from here? The same command may succeed later"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """``error`` and what led to it, innermost last."""
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__
