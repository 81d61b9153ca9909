"""The client of every outgoing HTTP call (document 3 §1).

``ServiceClient.send`` makes a call and hands back the whole answer, again and again while the failure is
transient; ``stream`` opens a download, once; ``peek`` checks that the service answers. Errors carry
references:

=========================  ===========================================================================
``NetworkError``           ``connect-failed``, ``connect-timeout``, ``host-unknown``, ``tls-handshake``,
                           ``timeout``, ``connection-broken``, ``proxy-unreachable``
``ServiceBusyError``       ``service-busy``, ``oauth-busy``
``ServiceError``           ``service-*`` (see ``answer.py``), ``redirect-refused``, ``redirect-cross-origin``,
                           ``redirect-downgrade``, ``redirect-invalid``, ``redirect-loop``,
                           ``answer-too-large``, ``answer-encoding``, ``proxy-authentication``,
                           ``proxy-refused``, ``tls-untrusted``, ``tls-expired``, ``tls-not-yet-valid``,
                           ``tls-hostname``, ``tls-protocol``, ``oauth-client``, ``oauth-refused``,
                           ``oauth-issuer``, ``oidc-issuer-differs``
``StalledError``           ``transfer-stalled``: the body of a ``stream`` stopped coming
``InputError``             ``url-invalid``, ``tls-ca-bundle``, ``proxy-invalid``, ``auth-value``,
                           ``header-invalid``
``StorageError``           ``file-changed`` and others: the file of a ``FileBody`` cannot be read
``InternalError``          ``request-invalid``, ``internal``
=========================  ===========================================================================

httpx is driven below its ``Client``: that halves the cost of a small request (``performance.md``), and
cookies, redirects and environment variables have no unintended effect.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self, TypeVar

import httpx

from config import AuthConfig, RetryConfig, TlsConfig
from tasks.shared.errors import NetworkError, ServiceError, SluiceError, TransientError
from tasks.shared.http_old.answer import DEFAULT_TRANSIENT, TOKEN_OPERATION, Answer, answer_of
from tasks.shared.http_old.body import SILENCE, Body
from tasks.shared.http_old.call import Call, Hop, Pairs, RequestTarget, merged, parse_target, user_agent
from tasks.shared.http_old.credentials import TOKENS, Credentials, TokenCache
from tasks.shared.http_old.retry import announcing, retrying
from tasks.shared.http_old.sockets import Patience
from tasks.shared.http_old.wire import Connections
from tasks.shared.meter import Meter
from tasks.shared.stop import Stop

__all__ = ["DEFAULT_TRANSIENT", "Answer", "ServiceClient", "answer_of"]

# These log URLs with their query, httpcore also headers; that must not depend on the root logger's level.
for _name in ("httpx", "httpcore", "authlib"):
    logging.getLogger(_name).setLevel(logging.WARNING)

T = TypeVar("T")

MAX_REDIRECTS = 5
_MIB = 1024 * 1024
_LEAST = 0.01


class ServiceClient:
    """The calls of one step to one service; thread-safe, with its own connections.

    ``service`` is the key under ``services`` in the configuration (``send`` or ``services.send``); errors and
    log lines name it.
    ``credentials_origin`` is a URL of the service: the credentials of ``auth`` are sent to its origin (scheme,
    host, port) and to no other; without it, they are never sent. ``timeout`` (seconds) is for one whole exchange of
    ``send``, from connecting to the last byte of the answer, and for one silence of the service in ``stream``.
    ``within`` (seconds, from now) is for all calls of ``send`` together, with their attempts, the waits between them
    and the token. A ``stop`` ends the wait between attempts at once, and a request that is under way after a few
    seconds of grace. ``warn`` gets warnings about the credentials; by default the meter does.
    ``transport``, ``environ``, ``tokens``, ``clock`` and ``sleep`` are seams for tests.

    Raises ``InputError`` for a certificate bundle, proxy variable, URL or credential that cannot be used.
    """

    def __init__(
        self,
        service: str,
        *,
        tls: TlsConfig,
        retry: RetryConfig,
        auth: AuthConfig | None = None,
        credentials_origin: str | None = None,
        timeout: float = 60.0,
        within: float = math.inf,
        stop: Stop | None = None,
        meter: Meter | None = None,
        max_connections: int = 8,
        transport: httpx.BaseTransport | None = None,
        environ: Mapping[str, str] | None = None,
        warn: Callable[[str], None] | None = None,
        tokens: TokenCache = TOKENS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self.service = service = service.removeprefix("services.")
        self._timeout = timeout
        self._ends = clock() + within
        self._stop = stop
        self.meter = meter or Meter()
        self._clock = clock
        self._patience = Patience(stop)
        self._connections = Connections(
            tls, self._patience, max_connections=max_connections, environ=environ, given=transport
        )
        warn = warn or functools.partial(self.meter.warn, once=True)
        self._credentials = Credentials(auth, service=service, fetch=self._fetch, warn=warn, tokens=tokens, clock=clock)
        self._origin = parse_target(credentials_origin).origin if credentials_origin is not None else None
        self._base: Pairs = [(b"User-Agent", user_agent()), (b"Accept-Encoding", b"gzip, deflate")]
        wait = sleep if sleep is not None else stop.sleep if stop is not None else time.sleep
        told = announcing(self.meter, service, retry)
        self._again = functools.partial(retrying, retry, sleep=wait, before_wait=told, seconds_left=self._seconds_left)
        self._retrying = self._again(retryable=_not_a_token)
        # A token is obtained inside an attempt and has a separate retry budget.
        self._token_retrying = self._again()

    def send(
        self,
        method: str,
        url: str,
        *,
        operation: str,
        content: bytes | Body | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        retry: bool | Collection[int] = True,
        accept: Collection[int] = (),
        transient: Collection[int] = DEFAULT_TRANSIENT,
        max_answer_bytes: int = 64 * _MIB,
        wants_body: bool = True,
        silence: float = SILENCE,
        attempt: int = 1,
    ) -> Answer:
        """Make a call; the whole answer, when its status is 2xx or in ``accept``.

        Every attempt sends the same bytes; ``retry=False`` makes one attempt, statuses let only these be
        repeated (of ``transient``). ``timeout`` is in seconds, for one attempt; ``silence`` (seconds) is how
        long the service may take no byte of a ``Body``. A redirect is followed for GET and HEAD, within the
        origin; after any other method it is an error.
        ``wants_body=False`` leaves the body of a 2xx answer unread: a server may send a large upload back.
        ``attempt`` is the number of the first attempt: more than 1 for the function of ``repeat_call``.

        Raises ``ServiceBusyError`` for a status in ``transient`` and ``NetworkError`` when no answer
        came, both after the last attempt; ``ServiceError`` for any other answer; ``Stopped``.
        ``answer_of(error)`` is the answer of an error.
        """
        call = self._call(
            method, url, operation, timeout, headers, content=content, accept=accept, transient=transient,
            max_answer_bytes=max_answer_bytes, wants_body=wants_body, silence=silence, attempt=attempt - 1,
        )  # fmt: skip
        if isinstance(retry, bool):
            return self._retrying(self._attempt, call) if retry else self._attempt(call)
        statuses = frozenset(retry)
        some = self._again(retryable=lambda error: _not_a_token(error) and error.answered in statuses)
        return some(self._attempt, call)

    def repeat_call(
        self,
        function: Callable[[int], T],
        *,
        retryable: Callable[[TransientError], bool] = lambda _: True,
        sleep: Callable[[float], None] | None = None,
    ) -> T:
        """Return the result of ``function``, repeated like a call of ``send`` while its error is transient.

        ``function`` gets the number of the attempt, from 1, and calls ``send`` with it and ``retry=False``. It may
        raise a ``TransientError`` of its own, for an answer that must be read to see that it is one. Only errors that
        are ``retryable`` are repeated. ``sleep`` takes seconds.

        Raises the last error of ``function``; ``Stopped``.
        """
        numbers = itertools.count(1)
        made = self._again if sleep is None else functools.partial(self._again, sleep=sleep)
        again = made(retryable=lambda error: _not_a_token(error) and retryable(error))
        return again(lambda: function(next(numbers)))

    @contextmanager
    def stream(
        self,
        method: str,
        url: str,
        *,
        operation: str,
        content: bytes | Body | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        accept: Collection[int] = (),
        transient: Collection[int] = DEFAULT_TRANSIENT,
        allow_cross_origin: bool = False,
        credentials: bool | None = None,
        whole: bool = False,
        attempt: int = 1,
    ) -> Iterator[httpx.Response]:
        """Open a download, in one attempt; read it with ``response.iter_raw()``.

        The caller counts its attempts: ``attempt`` begins with 1. ``content`` is a request body.

        The bytes are the file's: no encoding is asked for. Redirects of GET and HEAD are followed within the
        origin, and with ``allow_cross_origin`` to others, then without any credential; never from https to
        http. ``credentials``: ``None`` sends them to their origin, ``True`` also to the origin of this URL
        (document 2, requiresAccessToken) unless that means leaving TLS, ``False`` nowhere. ``timeout``, in seconds, is
        the longest silence between two pieces of the body; with ``whole`` that of the whole answer.

        Raises the errors of ``send``, on opening and while the body is read, and ``StalledError`` when the
        body stops.
        """
        call = self._call(
            method, url, operation, timeout, {"Accept-Encoding": "identity"} | dict(headers or {}), content=content,
            accept=accept, transient=transient, credentials=credentials, allow_cross_origin=allow_cross_origin,
            whole=whole, attempt=attempt,
        )  # fmt: skip
        hop, response = self._open_redirected(call)
        try:
            if not call.welcomes(response.status_code):
                raise hop.unwelcome(self._read(hop, response))
            hop.in_body, hop.check = True, lambda _: self.meter.moves()
            yield response
        finally:
            response.close()

    def peek(self, method: str, url: str, *, headers: Mapping[str, str] | None = None) -> Answer:
        """Return the head of the answer to one request without credentials, whatever its status. No body is read.

        One attempt, no redirect is followed, at most 10 seconds long. Raises ``NetworkError`` without an answer,
        ``ServiceError`` when a certificate or the proxy is in the way.
        """
        call = self._call(method, url, "reach", min(self._timeout, 10.0), headers)
        hop, response = self._open(call, call.target, [])
        response.close()
        status = response.status_code
        head = Answer(status, response.headers, b"")
        if hop.proxy is not None and status == 407:
            raise hop.unwelcome(head)
        if hop.proxy is not None and call.target.origin[0] == "http" and status in (502, 503, 504):
            # A forwarding proxy answers like this if it cannot reach the service.
            what = f"failed: the proxy {hop.proxy.host} does not reach {call.target.origin[1]}"
            raise hop.where.error(NetworkError, "proxy-unreachable", what, status=status)
        return head

    def authorize(self) -> None:
        """Obtain the OAuth 2.0 token now, so that a wrong client is found before a job begins.

        Does nothing for other schemes. Raises ``ServiceError`` when the issuer refuses, ``NetworkError`` or
        ``ServiceBusyError`` when it does not answer.
        """
        self._credentials.headers()

    def close(self) -> None:
        """Close every connection."""
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ServiceClient({self.service!r})"

    def _call(
        self, method: str, url: str, name: str, timeout: float | None, headers: Mapping[str, str] | None, **more: Any
    ) -> Call:
        seconds = self._timeout if timeout is None else timeout
        whole = merged(self._base, headers)
        return Call(self.service, method.upper(), parse_target(url), name, seconds, whole, **more)

    def _attempt(self, call: Call) -> Answer:
        call.attempt += 1
        call.timeout = min(call.timeout, max(self._seconds_left(), _LEAST))
        hop, response = self._open_redirected(call)
        answer = self._read(hop, response)
        if call.welcomes(answer.status):
            return answer
        raise hop.unwelcome(answer)

    def _seconds_left(self) -> float:
        return self._ends - self._clock()

    def _open_redirected(self, call: Call) -> tuple[Hop, httpx.Response]:
        """Return the response to a call, its body not read yet, from where the redirects lead to."""
        target = call.target
        for _ in range(MAX_REDIRECTS + 1):
            hop, response = self._open_authorized(call, target)
            try:
                following = hop.redirected(response)
            except SluiceError:
                response.close()
                raise
            if following is None:
                return hop, response
            response.close()
            target = following
        what = f"was redirected more than {MAX_REDIRECTS} times"
        raise replace(hop, target=call.target).where.error(ServiceError, "redirect-loop", what)

    def _open_authorized(self, call: Call, target: RequestTarget) -> tuple[Hop, httpx.Response]:
        """Return the response to one request; repeated once with a fresh token after a 401 (document 3 §1)."""
        if not self._trusts(call, target):
            return self._open(call, target, [])
        secrets = self._credentials.headers()
        hop, response = self._open(call, target, secrets)
        if response.status_code == 401 and self._credentials.renewable:
            response.close()
            self._credentials.drop(secrets)
            return self._open(call, target, self._credentials.headers())
        return hop, response

    def _trusts(self, call: Call, target: RequestTarget) -> bool:
        """Return whether ``target`` gets the credentials."""
        if call.credentials is None or not call.credentials or self._origin is None:
            return call.credentials is None and target.origin == self._origin
        leaves_tls = self._origin[0] == "https" and target.origin[0] != "https"
        return target.origin in (self._origin, call.target.origin) and not leaves_tls

    def _open(self, call: Call, target: RequestTarget, secrets: Pairs) -> tuple[Hop, httpx.Response]:
        """Return the response to one request, its body not read yet."""
        if self._stop is not None:
            self._stop.before_request()
        proxy, transport = self._connections.route(target.origin)
        hop = Hop(call, target, proxy, self._clock())
        # Repeated requests and errors do not count as progress (``Snapshot.still``).
        hop.check = functools.partial(self._check, call.attempt <= 1)
        try:
            return hop, hop.send(transport, secrets)
        finally:
            self.meter.request(self._clock() - hop.started, repeated=call.attempt > 1)

    def _read(self, hop: Hop, response: httpx.Response) -> Answer:
        """Read the whole answer."""
        try:
            unread = not hop.call.wants_body and response.is_success
            hop.check = functools.partial(self._check, hop.call.welcomes(response.status_code))
            body = b"" if unread else b"".join(hop.content(response))
        except Exception as error:  # noqa: BLE001 - the seam where foreign errors become ours
            raise hop.broken(error) from None
        finally:
            response.close()
        return Answer(response.status_code, response.headers, body)

    def _check(self, moving: bool, hop: Hop) -> None:
        # While bytes flow, no socket waits, so the stop is checked only here.
        self._patience.check()
        if moving:
            self.meter.moves()
        if self._clock() - hop.started > hop.call.timeout:
            raise hop.broken(httpx.ReadTimeout(""))

    def _fetch(self, method: str, url: str, headers: Mapping[str, str], content: bytes | None) -> Answer:
        """Send a request to the OAuth issuer: ``credentials.Fetch``."""
        timeout = min(self._timeout, 60.0)
        more = {"content": content, "accept": _ISSUER_ANSWERS, "credentials": False}
        call = self._call(method, url, TOKEN_OPERATION, timeout, headers, **more)
        return self._token_retrying(self._attempt, call)


# ``credentials.py`` reads the issuer's answers about the client and its configuration.
_ISSUER_ANSWERS = frozenset(range(400, 500)) - DEFAULT_TRANSIENT - {407}


def _not_a_token(error: TransientError) -> bool:
    return error.operation != TOKEN_OPERATION
