"""Errors of a call: for an answer that is not accepted, and for no answer (docs/services.md).

An error names service, operation, host and status, and the issue codes of an OperationOutcome. It never quotes a body,
because services put patient data and stack traces into it, nor a text of httpx, which may quote headers. The answer
itself is an attribute that ``str`` and ``repr`` do not show, so that a step can keep it in the job directory.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar
from urllib.parse import urlsplit

import httpx

from tasks.shared.errors import (
    InternalError,
    NetworkError,
    ServiceBusyError,
    ServiceError,
    SluiceError,
    StalledError,
)
from tasks.shared.http.answer import Answer, place
from tasks.shared.http.retry import parse_retry_after

DEFAULT_TRANSIENT: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which the same call may succeed later; a caller may give another set for its service."""

E = TypeVar("E", bound=SluiceError)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The request that an error is about. ``service`` is the key under ``services``, ``proxy`` the proxy's host."""

    service: str
    operation: str
    method: str
    url: str = field(repr=False)
    proxy: str | None = None

    @property
    def host(self) -> str:
        """Return the host of the request."""
        return urlsplit(self.url).hostname or "?"

    def error(
        self, kind: type[E], reference: str, what: str, *, hint: str | None = None, status: int | None = None
    ) -> E:
        """Return an error of ``kind`` about this request. ``what`` completes "service: operation …"."""
        return kind(
            reference,
            f"{self.service}: {self.operation} {what}",
            context=f"{self.method} {place(self.url)}",
            hint=hint,
            operation=self.operation,
            status=status,
        )


_TERMINAL: Final = {
    401: ("service-unauthorized", "check the credentials in services.{service}.auth"),
    403: ("service-forbidden", "the credentials in services.{service}.auth do not allow this"),
    404: ("service-not-found", "check the URL of services.{service}"),
    407: ("proxy-authentication", "give user and password in the proxy variable: http://user:password@host:port"),
    413: ("service-too-large", "raise the request size limit of services.{service}, or of the proxy before it"),
}


def error_for(answer: Answer, where: RequestContext, *, transient: Collection[int]) -> SluiceError:
    """Return the error for a status that the caller did not accept: a ``ServiceBusyError`` for one in ``transient``
    (``service-busy``), else a ``ServiceError`` with a reference for each case that a person handles differently."""
    status, codes = answer.status, answer.issue_codes()
    shown = f" (issue codes: {', '.join(codes[:5])})" if codes else ""
    by = where.host
    if where.proxy is not None and status in (407, 502, 503, 504):
        by = f"the proxy {where.proxy}" if status == 407 else f"{by}, or by the proxy {where.proxy} before it"
    what = f"was answered {status} by {by}{shown}"
    if status in transient:
        hint = "the service is busy; repeat the command later"
        busy = where.error(ServiceBusyError, "service-busy", what, hint=hint, status=status)
        busy.retry_after = parse_retry_after(answer.headers.get("retry-after"))
        return busy.made_from(answer)
    reference, hint = _TERMINAL.get(status) or _other(status)
    hint = hint.format(service=where.service)
    return where.error(ServiceError, reference, what, hint=hint, status=status).made_from(answer)


def wrong_answer(answer: Answer, where: RequestContext, what: str, *, reference: str, hint: str) -> ServiceError:
    """Return the error for an answer with an accepted status but unexpected content."""
    what = f"was answered {answer.status} {what}"
    return where.error(ServiceError, reference, what, hint=hint, status=answer.status).made_from(answer)


def _other(status: int) -> tuple[str, str]:
    if status >= 400:
        return "service-failed" if status >= 500 else "service-refused", "see the log of services.{service}"
    return "service-unexpected", "check that the URL of services.{service} is that of the right service"


def error_without_answer(error: Exception, where: RequestContext, *, in_body: bool = False) -> SluiceError:
    """Return our error for an exception of httpx. ``in_body``: the answer had begun, so a timeout is a
    ``StalledError``."""
    later = f"services.{where.service}: is the service running, and reachable from this machine?"
    through = f", through the proxy {where.proxy}" if where.proxy else ""
    peer = f"the proxy {where.proxy}" if where.proxy else where.host
    match error:
        case httpx.ProxyError():
            return _proxy_error(error, where)
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return _connect_error(error, where, peer, later)
        case httpx.TimeoutException() if in_body:
            return where.error(StalledError, "transfer-stalled", f"stalled: {where.host} stopped sending", hint=later)
        case httpx.TimeoutException():
            hint = f"the service may be busy; a timeout of services.{where.service} can be raised"
            return where.error(
                NetworkError, "timeout", f"failed: no answer from {where.host} in time{through}", hint=hint
            )
        case httpx.DecodingError():
            return where.error(ServiceError, "answer-encoding", "was answered in an encoding that cannot be read")
        case httpx.NetworkError() | httpx.RemoteProtocolError():
            what = f"failed: {where.host} broke the connection{through}"
            return where.error(NetworkError, "connection-broken", what, hint=later)
    return where.error(InternalError, "internal", f"failed with an unexpected {type(error).__name__}")


def _connect_error(error: Exception, where: RequestContext, peer: str, later: str) -> SluiceError:
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _certificate_error(cause, where)
        if isinstance(cause, ssl.SSLError):
            what = f"failed: the TLS handshake with {where.host} failed ({cause.reason or 'no reason given'})"
            hint = "check the port, and whether the service uses https"
            return where.error(NetworkError, "tls-handshake", what, hint=hint)
        if isinstance(cause, socket.gaierror | UnicodeError):
            what = f"failed: {peer} could not be resolved to an address"
            return where.error(NetworkError, "host-unknown", what, hint="check the host name, and this machine's DNS")
    return where.error(NetworkError, "connect-failed", f"failed: no connection to {peer}", hint=later)


def _certificate_error(error: ssl.SSLCertVerificationError, where: RequestContext) -> SluiceError:
    what = f"failed: the certificate of {where.host} is not trusted ({error.verify_message})"  # OpenSSL's words
    hint = "use the host name of the certificate, renew it, or add it or its CA to the file in tls.ca_cert_path"
    return where.error(ServiceError, "tls-untrusted", what, hint=hint)


def _proxy_error(error: Exception, where: RequestContext) -> SluiceError:
    # The proxy's answer to CONNECT comes as text alone, "407 Proxy Authentication Required".
    status = int(str(error)[:3]) if str(error)[:3].isdigit() else None
    if status == 407:
        what = f"failed: the proxy {where.proxy} requires credentials, or rejected those given"
        return where.error(ServiceError, "proxy-authentication", what, hint=_TERMINAL[407][1], status=status)
    if status is not None and status < 500:
        what, hint = f"failed: the proxy {where.proxy} refused with {status}", "add the host to NO_PROXY, or allow it"
        return where.error(ServiceError, "proxy-refused", what, hint=hint, status=status)
    what = f"failed: the proxy {where.proxy} does not reach {where.host}"
    return where.error(NetworkError, "proxy-unreachable", what, hint="check the proxy variables", status=status)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__
