"""Errors of the transport of flattening and send; answers and refusals are those of ``tasks.shared.http``."""

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
from tasks.shared.http.answer import ISSUE_CODES, Answer, issue_codes, place
from tasks.shared.http.errors import (
    DEFAULT_TRANSIENT,
    TOKEN_OPERATION,
    BusyError,
    RefusedError,
    RequestContext,
    answer_of,
    error_for,
    wrong_answer,
)
from tasks.shared.http_old.body import BrokenBodyError
from tasks.shared.http_old.proxies import Proxy

__all__ = [
    "DEFAULT_TRANSIENT",
    "ISSUE_CODES",
    "TOKEN_OPERATION",
    "Answer",
    "BusyError",
    "RefusedError",
    "RequestContext",
    "answer_of",
    "error_for",
    "error_without_answer",
    "issue_codes",
    "place",
    "wrong_answer",
]

# OpenSSL's reasons for a server without TLS, or without a common version: a retry changes nothing.
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
    error: Exception, where: RequestContext, *, proxy: Proxy | None = None, in_body: bool = False
) -> SluiceError | Stopped:
    """Return the project's error for ``error``. An error of the project is returned unchanged.

    ``proxy`` is the proxy that the request used. With ``in_body``, a part of a streamed answer had arrived, so a
    timeout becomes a ``StalledError`` (document 1, download_stall_timeout).
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


def _timeout(error: Exception, where: RequestContext, proxy: Proxy | None, *, in_body: bool) -> SluiceError:
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


def _connect_error(error: Exception, where: RequestContext, proxy: Proxy | None) -> SluiceError:
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _certificate_error(cause, where)
        if isinstance(cause, ssl.SSLError):
            if cause.reason in _PROTOCOL_REASONS:
                return where.error(
                    ServiceError,
                    "tls-protocol",
                    f"failed: {where.host} supports no TLS version that Sluice supports ({cause.reason})",
                    hint="check the port, and whether the service uses https; very old TLS versions are not supported",
                )
            what = f"failed: the TLS handshake with {where.host} broke off"
            return where.error(NetworkError, "tls-handshake", what, hint=_later(where))
        if isinstance(cause, socket.gaierror | UnicodeError):
            what = f"failed: {_peer(where, proxy)} could not be resolved to an address"
            return where.error(NetworkError, "host-unknown", what, hint="check the host name, and this machine's DNS")
    what = f"failed: no connection to {_peer(where, proxy)}"
    return where.error(NetworkError, "connect-failed", what, hint=_later(where))


def _certificate_error(error: ssl.SSLCertVerificationError, where: RequestContext) -> SluiceError:
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
            hint = "renew the certificate of the service, and check the clock of this machine"
        case 62 | 64:
            reference, what = "tls-hostname", f"failed: the certificate of {host} is for another host name"
            hint = "use a host name in the URL that is in the certificate"
        case _:
            reference = "tls-untrusted"
            what = f"failed: the certificate of {host} is not trusted ({error.verify_message})"
            hint = "add the certificate of the CA or of the server to the file in tls.ca_cert_path"
    return where.error(ServiceError, reference, what, hint=hint)


def _proxy_error(error: Exception, where: RequestContext, proxy: Proxy | None) -> SluiceError:
    # httpcore gives the proxy's answer to CONNECT only as text, "407 Proxy Authentication Required".
    digits = str(error)[:3]
    status = int(digits) if digits.isdigit() else None
    name = proxy.host if proxy else "?"
    if status == 407:
        return where.error(
            ServiceError,
            "proxy-authentication",
            f"failed: the proxy {name} requires credentials, or rejected those given",
            hint="give user and password in the proxy variable: http://user:password@host:port",
            status=status,
        )
    what = f"failed: the proxy {name} made no connection to {where.host}"
    if status is not None and 400 <= status < 500 and status not in (408, 429):
        hint = "allow the host on the proxy, or add it to NO_PROXY to reach it directly"
        return where.error(ServiceError, "proxy-refused", what, hint=hint, status=status)
    return where.error(NetworkError, "proxy-unreachable", what, hint=_later(where), status=status)


def _peer(where: RequestContext, proxy: Proxy | None) -> str:
    return f"the proxy {proxy.host}:{proxy.port}" if proxy else where.host


def _through(proxy: Proxy | None) -> str:
    return f" (through the proxy {proxy.host})" if proxy else ""


def _later(where: RequestContext) -> str:
    return f"check that services.{where.service} is running and reachable from here, then repeat the command"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield ``error`` and its causes, innermost last."""
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__
