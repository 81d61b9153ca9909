"""Answers of services, and the errors for an answer that is not accepted or does not arrive (document 3 §1).

An error names service, operation, host and status, and the issue codes if the body is an OperationOutcome. It never
quotes the body, because services put patient data and stack traces into ``diagnostics``. The error has the complete
answer as an attribute, which ``str`` and ``repr`` do not show, so that a caller can save it in the job directory.

If no usable answer arrives, exceptions of httpx and httpcore are translated. Connect, read and write errors and
timeouts are transient. Errors of certificates and refusals by a proxy are not, because they last until a person acts.
Messages of these exceptions are not used, because they can quote headers.
"""

from __future__ import annotations

import re
import socket
import ssl
import traceback
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import httpcore
import httpx
import msgspec

from tasks.shared.errors import (
    InputError,
    InternalError,
    NetworkError,
    ServiceBusyError,
    ServiceError,
    SluiceError,
    StalledError,
    Stopped,
)
from tasks.shared.http.body import BrokenBodyError
from tasks.shared.http.proxies import Proxy
from tasks.shared.http.retry import parse_retry_after

TOKEN_OPERATION = "obtain token"  # noqa: S105 - the name of an operation
DEFAULT_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which the same call may succeed later. A caller can use another set for its service."""

# http://hl7.org/fhir/ValueSet/issue-type, R4 and R5. A code outside this list is text from the service.
# fmt: off
ISSUE_CODES = frozenset({
    "business-rule", "code-invalid", "conflict", "deleted", "duplicate", "exception", "expired",
    "extension", "forbidden", "incomplete", "informational", "invalid", "invariant", "limited-filter",
    "lock-error", "login", "multiple-matches", "no-store", "not-found", "not-supported", "processing",
    "required", "security", "structure", "success", "suppressed", "throttled", "timeout", "too-costly",
    "too-long", "transient", "unknown", "value",
})
# fmt: on
E = TypeVar("E", bound=SluiceError)

_JSON = re.compile(r"(application|text)/([a-z0-9.-]+\+)?json")
_LARGEST_OUTCOME = 8 * 1024 * 1024
_CODES_SHOWN = 5


class _AnswerOutcome(msgspec.Struct):
    resource_type: Any = msgspec.field(default=None, name="resourceType")
    issue: Any = None


_outcome_decoder = msgspec.json.Decoder(_AnswerOutcome)


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer. ``body`` is decoded from any ``Content-Encoding``. ``repr`` shows only the status."""

    status: int
    headers: httpx.Headers = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def says_json(self) -> bool:
        """Return whether the ``Content-Type`` is JSON."""
        kind = self.headers.get("content-type", "").partition(";")[0]
        return _JSON.fullmatch(kind.strip().lower()) is not None

    def issue_codes(self) -> tuple[str, ...]:
        """Return the issue codes of an OperationOutcome, each once, in order; empty for any other body."""
        return issue_codes(self.body)


class _AnsweredError(SluiceError):
    """An error with the ``answer`` that caused it."""

    answer: Answer

    def made_from(self, answer: Answer) -> Self:
        """Set ``answer`` and return the error. ``answered`` stays unset for a token issuer, not the service."""
        self.answer = answer
        self.answered = answer.status if self.operation != TOKEN_OPERATION else None
        return self


class RefusedError(_AnsweredError, ServiceError):
    """A ``ServiceError`` with the ``answer`` that caused it."""


class BusyError(_AnsweredError, ServiceBusyError):
    """A ``ServiceBusyError`` with the ``answer`` that caused it."""


def answer_of(error: BaseException) -> Answer | None:
    """Return the answer that caused an error of ``ServiceClient``, or ``None`` if no answer arrived."""
    answer = getattr(error, "answer", None)
    return answer if isinstance(answer, Answer) else None


def issue_codes(body: bytes) -> tuple[str, ...]:
    """Return those codes of an OperationOutcome that FHIR defines; empty for any other body."""
    if len(body) > _LARGEST_OUTCOME or b"OperationOutcome" not in body:
        return ()
    try:
        outcome = _outcome_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()
    if outcome.resource_type != "OperationOutcome" or not isinstance(outcome.issue, list):
        return ()
    codes = (issue.get("code") for issue in outcome.issue if isinstance(issue, dict))
    return tuple(dict.fromkeys(code for code in codes if isinstance(code, str) and code in ISSUE_CODES))


def place(url: str) -> str:
    """Return a URL for error messages: without user, query and fragment."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        host = f"[{host}]" if ":" in host else host
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an unreadable URL"
    return f"{parts.scheme}://{host}{port}{parts.path}"


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The request an error is about. ``service`` is the key under ``services``."""

    service: str
    operation: str
    method: str
    url: str = field(repr=False)

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


def error_for(answer: Answer, where: RequestContext, *, transient: Collection[int]) -> SluiceError:
    """Return the error for a status that the caller did not accept.

    Statuses in ``transient`` give a ``BusyError`` (``service-busy``). All others give a ``RefusedError``, with a
    different reference for each case that a person handles differently.
    """
    status = answer.status
    codes = answer.issue_codes()
    shown = f" (issue codes: {', '.join(codes[:_CODES_SHOWN])})" if codes else ""
    what = f"was answered {status} by {where.host}{shown}"
    if status in transient:
        hint = "the service is busy; repeat the command later"
        busy = where.error(BusyError, "service-busy", what, hint=hint, status=status)
        busy.retry_after = parse_retry_after(answer.headers.get("retry-after"))
        return busy.made_from(answer)
    reference, hint = _TERMINAL.get(status) or _other(status)
    hint = hint.format(service=where.service)
    return where.error(RefusedError, reference, what, hint=hint, status=status).made_from(answer)


def wrong_answer(answer: Answer, where: RequestContext, what: str, *, reference: str, hint: str) -> RefusedError:
    """Return the error for an answer with an accepted status but unexpected content."""
    what = f"was answered {answer.status} {what}"
    return where.error(RefusedError, reference, what, hint=hint, status=answer.status).made_from(answer)


_TERMINAL = {
    401: ("service-unauthorized", "check the credentials in services.{service}.auth"),
    403: ("service-forbidden", "the credentials in services.{service}.auth do not allow this"),
    404: ("service-not-found", "check the URL of services.{service}"),
    407: (
        "proxy-authentication",
        "give user and password in the proxy variable: http://user:password@host:port",
    ),
    413: ("service-too-large", "raise the request size limit of services.{service}, or of the proxy before it"),
}


def _other(status: int) -> tuple[str, str]:
    if status >= 500:
        return "service-failed", "see the log of services.{service}"
    if status >= 400:
        return "service-refused", "see the log of services.{service}"
    return "service-unexpected", "check that the URL of services.{service} is that of the right service"


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
